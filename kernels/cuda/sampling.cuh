// Choosing a token by chance: every worker has the scores of its own rows, and all come to the same choice together.
//
// The order of steps is that of infer/sampling.py: top-k, top-p, min-p, and one uniform number that picks by the cumulative
// distribution, most probable first where top-k or top-p sorted it, else by id.  Nothing is sorted here.  A score becomes a
// key, its distance from the best in steps of 1/48,000 nat, and a key has a weight, a whole number, 2^30 for the best: so sums
// do not depend on their order.  A token less probable than 2^-30 times the best is never chosen.
//
// Workers add the weights of their tokens to a histogram of the upper half of the keys, tell each other that they have, and
// all look for the bin in which a cut or the pick falls; then the same for the lower half of the keys in that bin.  What is
// left has one key and so one weight, and its order is by id.  The worker that has the token tells the others.
//
// A round orders like this: adds to the histogram, barrier, fence, packet | packet, fence, barrier, reads.  Histograms of one
// token are cleared while the next one is chosen: all workers have sent their parts of that one's best by then, and the first
// round of it orders the clearing before the adds of the one after.
#pragma once

#include "head.cuh"

namespace laneformer {

constexpr float KEYS_PER_NAT = 48000;
constexpr unsigned LAST_KEY = BINS * BINS - 1;  // 21.8 nats below the best: it weighs nothing
// Above this temperature steps grow no more, or the order among the best would be lost.  There a score is taken to be at most
// 700 below the best, which the scores of a vocabulary are.
constexpr float MOST_SCALED = 32;
constexpr float BEST_WEIGHT = 1 << 30;

enum Level : int { UPPER, TOP_K_CUT, TOP_P_CUT, PICK, GUESS, LEVELS };  // the last one is not told in a round of its own

struct Histograms {
    unsigned long long weight[BINS];  // by upper half
    unsigned count[LEVELS][BINS];     // tokens: by upper half, where top-k asks for it; then by lower half in one upper one
};
constexpr int HISTOGRAMS = 3;  // of as many tokens in turn
constexpr long long HISTOGRAM_BYTES = 1ll * HISTOGRAMS * sizeof(Histograms);
static_assert(LEVELS + 1 <= ROUNDS && BINS % (4 * MATH_THREADS) == 0);

struct Sampling {
    Worker& w;
    unsigned rounds = 0;  // told for this token, a bit each

    // The token for a uniform number in [0, 1); `made` tokens have been chosen before.
    __device__ void choose(Choice& choice, double uniform, int made) {
        w.look_round();
        const Request& request = w.request;
        Histograms& histograms = request.histograms[made % HISTOGRAMS];
        clear(request.histograms[(made + 1) % HISTOGRAMS]);
        const float scaled = fminf(request.temperature, MOST_SCALED);
        const Keys keys{choice.best, KEYS_PER_NAT / scaled, scaled / (request.temperature * KEYS_PER_NAT)};
        const bool counted = request.top_k > 0 && request.top_k < VOCABULARY, sorted = request.top_k > 0 || request.top_p < 1.0f;
        const unsigned least = request.min_p > 0.0f ? max(keys.weight_of(key_of(-logf(request.min_p) / keys.nats)), 1u) : 1u;
        unsigned long long own = 0;
        each_own(keys, [&](int, unsigned key) {
            const unsigned weight = keys.weight_of(key);
            if (weight >= least) own += weight;
            if (!sorted || weight == 0) return;
            const int word = word_of(key / BINS);
            atomicAdd(histograms.weight + word, static_cast<unsigned long long>(weight));
            if (counted) atomicAdd(histograms.count[UPPER] + word, 1u);
        });
        // Of sorted tokens the histogram tells what all weigh, but for those that min-p leaves out.
        const bool summed = !sorted || least > 1;
        unsigned long long before = 0, all = ~0ull;
        if (w.thread == 0) w.shared.token.sampling.given_up = 0;  // before the barrier in tell()
        if (summed) own = sum_over_block(own);
        tell(UPPER, own);
        if (summed) before = hear_sums(UPPER, all);
        else hear(UPPER);
        if (sorted) {
            pick_sorted(keys, histograms, uniform, all, counted);
        } else {
            pick_by_id(keys, before, own, part_of(all, uniform), [&](unsigned key) {
                const unsigned weight = keys.weight_of(key);
                return weight >= least ? weight : 0u;
            });
        }
        if constexpr (CHECKSUMS)  // half an epoch may be that of a packet from long ago: none of them is left that old
            for (int round = TOP_K_CUT; round <= LEVELS; ++round)
                if (!(rounds >> round & 1)) tell(round, 0);
        take_choice(choice);
    }

private:
    __device__ static unsigned key_of(float distance) { return min(__float2uint_rz(distance), LAST_KEY); }
    struct Keys {
        float best, scale;  // keys per unit of the score
        float nats;         // of a key

        __device__ unsigned of(float score) const { return key_of((best - score) * scale); }
        __device__ unsigned weight_of(unsigned key) const {
            return __float2uint_rn(__expf(-static_cast<float>(key) * nats) * BEST_WEIGHT);
        }
    };
    __device__ static unsigned long long part_of(unsigned long long all, double part) {
        return static_cast<unsigned long long>(static_cast<double>(all) * part);
    }
    // Of the upper halves neighbours lie in different lines of the cache, each of which takes one add after the other: best tokens
    // are many in few bins.
    __device__ static int word_of(int bin) { return bin % (BINS / 16) * 16 + bin / (BINS / 16); }
    __device__ static int bin_in(int word) { return word / 16 + word % 16 * (BINS / 16); }

    // use(row, key) for the rows of this worker, by the threads that wrote their scores.
    template <class Use>
    __device__ void each_own(const Keys& keys, Use use) const {
        const HeadPhase head{w};
        const int tiles = Head::tiles(head.slice()), from = Head::first_tile(head.slice()) * TILE;
#pragma unroll 2
        for (int block = 0; block < Head::BLOCKS; ++block) {
            const int start = Head::block_start(tiles, block) * TILE, end = Head::block_start(tiles, block + 1) * TILE;
            const int row = start + w.thread;
            if (row < end && from + row < HEAD_SLICE) use(row, keys.of(*head.score_of(row)));
        }
    }

    __device__ void clear(Histograms& histograms) const {
        constexpr int WORDS = sizeof(Histograms) / sizeof(uint4);
        auto* words = reinterpret_cast<uint4*>(&histograms);
        for (int at = w.index * MATH_THREADS + w.thread; at < WORDS; at += ALL_WORKERS * MATH_THREADS)
            words[at] = make_uint4(0, 0, 0, 0);
    }

    // A packet of each worker to all others, after whatever it wrote before.  Its third word is whether the worker waited in vain
    // for what it wrote by: then whoever reads that has, too.
    __device__ Packet* told(int round) const { return w.packets(TOLD_AT) + static_cast<long long>(round) * ALL_WORKERS; }
    __device__ unsigned epoch() const { return HeadPhase{w}.token_epoch(); }
    __device__ void tell(int round, unsigned long long value) {
        rounds |= 1u << round;
        math_barrier();
        if (w.thread != 0) return;
        fence();
        const unsigned low = static_cast<unsigned>(value), high = static_cast<unsigned>(value >> 32);
        store_packet(told(round) + w.index, low, high, w.shared.token.sampling.given_up, epoch());
    }
    // What the worker of this thread's number told, after all have.
    __device__ unsigned long long hear(int round) const {
        unsigned long long value = 0;
        if (w.thread < ALL_WORKERS) {
            Packet found[1];
            const bool heard = receive(found, always, [&](int) { return told(round) + w.thread; }, epoch(), w.patience(AT_CHOICE));
            if (!heard || found[0].words[2]) w.shared.token.sampling.given_up = 1;
            value = static_cast<unsigned long long>(found[0].words[1]) << 32 | found[0].words[0];
            fence();
        }
        math_barrier();
        return value;
    }
    // The sum of what the workers before this one told, and of what all did.
    __device__ unsigned long long hear_sums(int round, unsigned long long& all) {
        const unsigned long long before = sum_before(hear(round), all);
        if (w.thread == w.index) w.shared.token.sampling.found.mass_before = before;
        math_barrier();
        return w.shared.token.sampling.found.mass_before;
    }

    // The sum of the values of the threads before this one, and of all.
    __device__ unsigned long long sum_before(unsigned long long value, unsigned long long& all) {
        unsigned long long sum = value;
#pragma unroll
        for (int apart = 1; apart < WARP; apart *= 2) {
            const unsigned long long other = __shfl_up_sync(~0u, sum, apart);
            if (w.in_warp >= apart) sum += other;
        }
        math_barrier();  // what is shared has been read by all, the last time round
        if (w.in_warp == WARP - 1) w.shared.token.sampling.warp_mass[w.warp] = sum;
        math_barrier();
        sum -= value, all = 0;
#pragma unroll
        for (int each = 0; each < MATH_WARPS; ++each) {
            if (each < w.warp) sum += w.shared.token.sampling.warp_mass[each];
            all += w.shared.token.sampling.warp_mass[each];
        }
        return sum;
    }
    __device__ unsigned long long sum_over_block(unsigned long long value) {
        unsigned long long all;
        sum_before(value, all);
        return all;
    }

    static constexpr int OWN_BINS = BINS / MATH_THREADS;

    // This thread's bins of the upper half of the keys, and the sums before them and over all.
    struct Upper {
        unsigned long long mass[OWN_BINS], mass_before, all_mass, count_before, all_count;
        unsigned count[OWN_BINS];
    };
    __device__ Upper upper_of(const Histograms& histograms, bool counted) {
        Upper upper{};
        unsigned long long mass = 0, count = 0;
        load_line(upper.mass, histograms.weight);
        if (counted) load_line(upper.count, histograms.count[UPPER]);
        sort_bins(upper.mass);
        if (counted) sort_bins(upper.count);
#pragma unroll
        for (int i = 0; i < OWN_BINS; ++i) mass += upper.mass[i], count += upper.count[i];
        upper.mass_before = sum_before(mass, upper.all_mass);
        if (counted) upper.count_before = sum_before(count, upper.all_count);
        return upper;
    }
    // This thread's words, neighbours in device memory: all workers read them at once, whole lines with one load.
    __device__ void load_line(unsigned (&own)[OWN_BINS], const unsigned* words) const {
        const auto* line = reinterpret_cast<const uint4*>(words) + w.thread * (OWN_BINS / 4);
#pragma unroll
        for (int i = 0; i < OWN_BINS / 4; ++i) {
            const uint4 four = __ldcg(line + i);
            own[4 * i] = four.x, own[4 * i + 1] = four.y, own[4 * i + 2] = four.z, own[4 * i + 3] = four.w;
        }
    }
    __device__ void load_line(unsigned long long (&own)[OWN_BINS], const unsigned long long* words) const {
        const auto* line = reinterpret_cast<const ulonglong2*>(words) + w.thread * (OWN_BINS / 2);
#pragma unroll
        for (int i = 0; i < OWN_BINS / 2; ++i) {
            const ulonglong2 two = __ldcg(line + i);
            own[2 * i] = two.x, own[2 * i + 1] = two.y;
        }
    }
    // Every thread's words, as they lie in device memory, become every thread's bins.
    template <class T>
    __device__ void sort_bins(T (&own)[OWN_BINS]) {
        unsigned long long* bins = w.shared.token.bins;
        math_barrier();  // they have been read by all, the last time round
#pragma unroll
        for (int i = 0; i < OWN_BINS; ++i) bins[bin_in(w.thread * OWN_BINS + i)] = own[i];
        math_barrier();
#pragma unroll
        for (int i = 0; i < OWN_BINS; ++i) own[i] = static_cast<T>(bins[w.thread * OWN_BINS + i]);
    }
    // Puts where it is the bin in which the sum of weights, or of tokens, reaches `least`, which is at least 1 and at most the sum
    // over all.  Between barriers.
    __device__ void mark_reaching(Found& mark, const Upper& upper, bool counted, unsigned long long least) {
        Found found{upper.count_before, upper.mass_before, 0, 0};
        bool before = (counted ? found.count_before : found.mass_before) < least;
#pragma unroll
        for (int i = 0; i < OWN_BINS; ++i) {
            found.mass = upper.mass[i], found.bin = w.thread * OWN_BINS + i;
            if (before && (counted ? found.count_before + upper.count[i] : found.mass_before + found.mass) >= least) {
                mark = found;
                before = false;
            }
            found.mass_before += upper.mass[i], found.count_before += upper.count[i];
        }
    }

    // In a bin of the upper half: the token at which the sum over the sorted tokens reaches `least`.
    __device__ Picked place_in(const Keys& keys, const unsigned (&count)[OWN_BINS], const Found& upper, bool counted,
                               unsigned long long least) {
        const unsigned first = upper.bin * BINS + w.thread * OWN_BINS;
        const auto mass_of = [&](int i) { return static_cast<unsigned long long>(count[i]) * keys.weight_of(first + i); };
        unsigned long long own_mass = 0, own_count = 0, all;
#pragma unroll
        for (int i = 0; i < OWN_BINS; ++i) own_mass += mass_of(i), own_count += count[i];
        unsigned long long mass = upper.mass_before + sum_before(own_mass, all), sum = mass;
        if (counted) sum = upper.count_before + sum_before(own_count, all);
        if (sum < least && least <= sum + (counted ? own_count : own_mass)) {  // one thread
            unsigned key = first, ties = 0;
#pragma unroll
            for (int i = 0; i < OWN_BINS; ++i) {
                const unsigned long long here = counted ? count[i] : mass_of(i);
                if (ties == 0 && sum + here >= least) key = first + i, ties = count[i];
                if (ties == 0) mass += mass_of(i), sum += here;
            }
            const unsigned weight = keys.weight_of(key);
            unsigned tie = 0;
            if (ties > 1) {  // mostly there is one: it is spared a division
                const auto rest = static_cast<double>(least - sum - 1);  // whole numbers of less than 53 bits: the quotient is exact
                tie = __double2uint_rz(counted ? rest : rest / weight);
            }
            w.shared.token.sampling.picked = {mass + (tie + 1ull) * weight, key, tie, ties};
        }
        math_barrier();
        return w.shared.token.sampling.picked;
    }

    // Each step keeps a run of the sorted tokens from the best on, so what all steps keep weighs as much as the shortest run.
    __device__ void pick_sorted(const Keys& keys, Histograms& histograms, double uniform, unsigned long long kept_by_min_p,
                                bool counted) {
        const Request& request = w.request;
        const Upper bins = upper_of(histograms, counted);
        unsigned long long mass = bins.all_mass;
        Found guess{};  // where the pick will be, told before a cut is known exactly: it saves a round
        Picked place{};
        unsigned counts[OWN_BINS], guessed_counts[OWN_BINS] = {};
#pragma unroll 1
        for (int level = TOP_K_CUT; level <= PICK; ++level) {
            unsigned long long all = mass, least;
            if (level == TOP_K_CUT) {
                least = request.top_k;
                if (!counted || bins.all_count <= least) continue;
            } else if (level == TOP_P_CUT) {
                if (request.top_p >= 1.0f) continue;
                least = max(static_cast<unsigned long long>(ceil(static_cast<double>(request.top_p) * static_cast<double>(all))), 1ull);
            } else {
                all = min(all, kept_by_min_p);
                least = part_of(all, uniform) + 1;
            }
            if (level != TOP_K_CUT) least = min(least, all);
            Found upper = guess;
            const bool guessed = level == PICK && guess.mass_before < least && least <= guess.mass_before + guess.mass;
            w.look_round();
            if (!guessed) {
                const bool guesses = level == TOP_P_CUT;  // what is kept will weigh about `least`
                math_barrier();  // what is marked has been read by all, the last time round
                mark_reaching(w.shared.token.sampling.found, bins, level == TOP_K_CUT, least);
                if (guesses) mark_reaching(w.shared.token.sampling.guess, bins, false, part_of(min(least, kept_by_min_p), uniform) + 1);
                math_barrier();
                upper = w.shared.token.sampling.found;
                guess = w.shared.token.sampling.guess;
                if (!guesses) guess.mass = 0;
                each_own(keys, [&](int, unsigned key) {
                    if (keys.weight_of(key) == 0) return;
                    const int bin = key / BINS, half = key % BINS;
                    if (bin == upper.bin) atomicAdd(histograms.count[level] + half, 1u);
                    if (bin == guess.bin && guess.mass > 0) atomicAdd(histograms.count[GUESS] + half, 1u);
                });
                tell(level, 0);
                hear(level);
                load_line(counts, histograms.count[level]);
                if (guesses) load_line(guessed_counts, histograms.count[GUESS]);  // at once, if it may be needed
            } else {
#pragma unroll
                for (int i = 0; i < OWN_BINS; ++i) counts[i] = guessed_counts[i];
            }
            place = place_in(keys, counts, upper, level == TOP_K_CUT, least);
            mass = place.mass;
        }
        if (place.ties == 1) {
            each_own(keys, [&](int row, unsigned key) {
                if (key == place.key) tell_choice(row);
            });
            return;
        }
        // By id: how many of them do the workers before this one have?
        unsigned long long own = 0, ties;
        each_own(keys, [&](int, unsigned key) { own += key == place.key; });
        own = sum_over_block(own);
        tell(LEVELS, own);
        const unsigned long long before = hear_sums(LEVELS, ties);
        pick_by_id(keys, before, own, place.tie, [&](unsigned key) { return key == place.key ? 1u : 0u; });
    }

    // The worker in whose rows the sum of `value_of(key)`, by id, passes `target` tells all others which token that is.  `own`
    // is the sum over its rows.
    template <class ValueOf>
    __device__ void pick_by_id(const Keys& keys, unsigned long long before, unsigned long long own, unsigned long long target,
                               ValueOf value_of) {
        if (target < before || target >= before + own) return;
        const HeadPhase head{w};
        const int tiles = Head::tiles(head.slice()), from = Head::first_tile(head.slice()) * TILE;
#pragma unroll 1
        for (int block = 0; block < Head::BLOCKS; ++block) {
            const int start = Head::block_start(tiles, block) * TILE, end = Head::block_start(tiles, block + 1) * TILE;
            const int row = start + w.thread;
            const bool inside = row < end && from + row < HEAD_SLICE;
            const unsigned value = inside ? value_of(keys.of(*head.score_of(row))) : 0;
            unsigned long long all;
            const unsigned long long sum = before + sum_before(value, all);
            if (sum <= target && target < sum + value) tell_choice(row);
            before += all;
        }
    }
    // One packet from the worker that has the token: the token, its logit, and whether the worker waited in vain for what it chose by.
    __device__ void tell_choice(int row) const {
        const HeadPhase head{w};
        const int id = head.first_row() + row;
        // Without a penalty the score is the logit, and nearer.
        const float logit = w.request.repetition_penalty == 1.0f ? *head.score_of(row) : w.request.logits[id];
        store_packet(w.packets(CHOSEN_AT), id, __float_as_uint(logit), w.shared.token.sampling.given_up, epoch());
    }
    __device__ void take_choice(Choice& choice) const {
        math_barrier();
        if (w.thread == 0) {
            Packet found[1];
            const bool taken = receive(found, always, [&](int) { return w.packets(CHOSEN_AT); }, epoch(), w.patience(AT_CHOICE));
            Best& chosen = w.shared.token.best[0];
            chosen.id = static_cast<int>(found[0].words[0]);
            chosen.raw = __uint_as_float(found[0].words[1]);
            chosen.flags = taken && !found[0].words[2] && !w.shared.token.sampling.given_up ? 0 : GIVEN_UP;
        }
        math_barrier();
        const Best& chosen = w.shared.token.best[0];
        choice.token = chosen.id, choice.raw = chosen.raw, choice.given_up = chosen.flags != 0;
    }
};

}  // namespace laneformer
