// Choosing a token by chance: every worker has the scores of its own rows, and all come to the same choice together.
//
// The order of steps is that of infer/sampling.py: top-k, top-p, min-p, and one uniform number that picks by the cumulative
// distribution, most probable first where top-k or top-p sorted it, else by id.  Nothing is sorted here.  A score becomes a
// key, its distance from the best in steps of 2^-17 nats, and a key has a weight, a whole number, 2^30 for the best: so sums
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

constexpr int HALF_KEY_BITS = 11, BINS = 1 << HALF_KEY_BITS;
constexpr float KEYS_PER_NAT = 1 << 17;
constexpr unsigned LAST_KEY = BINS * BINS - 1;  // 32 nats below the best: it weighs nothing
constexpr float BEST_WEIGHT = 1 << 30;

struct Histogram {
    unsigned long long weight[BINS];
    unsigned count[BINS];
};
enum Level : int { UPPER, TOP_K_CUT, TOP_P_CUT, GUESS, PICK, LEVELS };
static_assert(LEVELS + 1 <= ROUNDS);
constexpr long long HISTOGRAM_BYTES = 2ll * LEVELS * sizeof(Histogram);  // of two tokens in turn

struct Sampling {
    Worker& w;

    // The token for a uniform number in [0, 1); `made` tokens have been chosen before.
    __device__ void choose(Choice& choice, double uniform, int made) {
        const Request& request = w.request;
        Histogram* histograms = request.histograms + made % 2 * LEVELS;
        clear(request.histograms + (made + 1) % 2 * LEVELS);
        const Keys keys{choice.best, KEYS_PER_NAT / request.temperature};
        const bool by_count = request.top_k > 0 && request.top_k < VOCABULARY, sorted = request.top_k > 0 || request.top_p < 1.0f;
        const unsigned least = request.min_p > 0.0f ? max(weight_of(key_of(-logf(request.min_p) * KEYS_PER_NAT)), 1u) : 1u;
        unsigned long long kept = 0;
        each_own(keys, [&](unsigned key) {
            const unsigned weight = weight_of(key);
            if (weight >= least) kept += weight;
            if (sorted && weight > 0) add(histograms[UPPER], key / BINS, weight, by_count);
        });
        tell(UPPER, sum_over_block(kept));
        unsigned long long kept_by_all;
        const unsigned long long before_own = hear_sums(UPPER, kept_by_all);
        if (sorted) pick_sorted(keys, histograms, uniform, kept_by_all, by_count);
        else pick_by_id(keys, least, before_own, static_cast<unsigned long long>(uniform * static_cast<double>(kept_by_all)));
        take_choice(choice);
    }

private:
    struct Keys {
        float best, scale;
        __device__ unsigned of(float score) const { return key_of((best - score) * scale); }
    };
    __device__ static unsigned key_of(float distance) { return min(__float2uint_rz(distance), LAST_KEY); }
    __device__ static unsigned weight_of(unsigned key) {
        return __float2uint_rn(__expf(-static_cast<float>(key) / KEYS_PER_NAT) * BEST_WEIGHT);
    }

    // use(key) for the rows of this worker, by the threads that wrote their scores.
    template <class Use>
    __device__ void each_own(const Keys& keys, Use use) const {
        const HeadPhase head{w};
        const int tiles = Head::tiles(head.slice()), from = Head::first_tile(head.slice()) * TILE;
#pragma unroll 4
        for (int block = 0; block < Head::BLOCKS; ++block) {
            const int start = Head::block_start(tiles, block) * TILE, end = Head::block_start(tiles, block + 1) * TILE;
            const int row = start + w.thread;
            if (row < end && from + row < HEAD_SLICE) use(keys.of(*head.score_of(row)));
        }
    }

    __device__ void clear(Histogram* histograms) const {
        constexpr int WORDS = LEVELS * sizeof(Histogram) / sizeof(uint4);
        auto* words = reinterpret_cast<uint4*>(histograms);
        for (int at = w.index * MATH_THREADS + w.thread; at < WORDS; at += ALL_WORKERS * MATH_THREADS) words[at] = make_uint4(0, 0, 0, 0);
    }
    __device__ static void add(Histogram& histogram, int bin, unsigned weight, bool by_count) {
        atomicAdd(&histogram.weight[bin], static_cast<unsigned long long>(weight));
        if (by_count) atomicAdd(&histogram.count[bin], 1u);
    }

    // A packet of each worker to all others, after whatever it wrote before.
    __device__ Packet* told(int round) const { return w.packets(TOLD_AT) + static_cast<long long>(round) * ALL_WORKERS; }
    __device__ unsigned epoch() const { return HeadPhase{w}.token_epoch(); }
    __device__ void tell(int round, unsigned long long value) const {
        math_barrier();
        if (w.thread != 0) return;
        fence();
        store_packet(told(round) + w.index, static_cast<unsigned>(value), static_cast<unsigned>(value >> 32), 0, epoch());
    }
    // What the worker of this thread's number told, after all have.
    __device__ unsigned long long hear(int round) const {
        unsigned long long value = 0;
        if (w.thread < ALL_WORKERS) {
            Packet found[1];
            receive(found, [&](int) { return told(round) + w.thread; }, epoch(), w.patience(AT_CHOICE));
            value = static_cast<unsigned long long>(found[0].words[1]) << 32 | found[0].words[0];
            fence();
        }
        math_barrier();
        return value;
    }
    // The sum of what the workers before this one told, and of what all did.
    __device__ unsigned long long hear_sums(int round, unsigned long long& all) {
        const unsigned long long before = sum_before(hear(round), all);
        if (w.thread == w.index) w.shared.token.found.mass_before = before;
        math_barrier();
        return w.shared.token.found.mass_before;
    }

    // The sum of the values of the threads before this one, and of all.
    __device__ unsigned long long sum_before(unsigned long long value, unsigned long long& all) {
        unsigned long long sum = value;
#pragma unroll
        for (int apart = 1; apart < WARP; apart *= 2) {
            const unsigned long long other = __shfl_up_sync(~0u, sum, apart);
            if (w.in_warp >= apart) sum += other;
        }
        math_barrier();  // the array has been read by all, the last time round
        if (w.in_warp == WARP - 1) w.shared.token.warp_mass[w.warp] = sum;
        math_barrier();
        sum -= value, all = 0;
#pragma unroll
        for (int each = 0; each < MATH_WARPS; ++each) {
            if (each < w.warp) sum += w.shared.token.warp_mass[each];
            all += w.shared.token.warp_mass[each];
        }
        return sum;
    }
    __device__ unsigned long long sum_over_block(unsigned long long value) {
        unsigned long long all;
        sum_before(value, all);
        return all;
    }

    // This thread's bins of a histogram, and the sums before them and over all.
    static constexpr int OWN_BINS = BINS / MATH_THREADS;
    struct Bins {
        unsigned long long mass[OWN_BINS], mass_before, all_mass;
        unsigned long long count_before, all_count;
        unsigned count[OWN_BINS];
    };
    // `count_of(bin, mass)` is asked only where tokens are counted.
    template <class CountOf>
    __device__ Bins bins_of(const Histogram& histogram, bool by_count, CountOf count_of) {
        Bins bins{};
        const auto* from = reinterpret_cast<const ulonglong2*>(histogram.weight + w.thread * OWN_BINS);
#pragma unroll
        for (int i = 0; i < OWN_BINS; i += 2) {
            const ulonglong2 two = __ldcg(from + i / 2);
            bins.mass[i] = two.x, bins.mass[i + 1] = two.y;
        }
        unsigned long long mass = 0, count = 0;
#pragma unroll
        for (int i = 0; i < OWN_BINS; ++i) {
            if (by_count) bins.count[i] = count_of(w.thread * OWN_BINS + i, bins.mass[i]);
            mass += bins.mass[i], count += bins.count[i];
        }
        bins.mass_before = sum_before(mass, bins.all_mass);
        if (by_count) bins.count_before = sum_before(count, bins.all_count);
        return bins;
    }
    // The bin in which the sum of weights, or of tokens, reaches `least`, which is at least 1 and at most the sum over all.
    __device__ Found reaching(const Bins& bins, bool by_count, unsigned long long least) {
        unsigned long long mass = bins.mass_before, count = bins.count_before;
        bool reached = (by_count ? count : mass) >= least;  // before this thread's bins
        math_barrier();  // the place below has been read by all, the last time round
#pragma unroll
        for (int i = 0; i < OWN_BINS; ++i) {
            if (!reached && (by_count ? count + bins.count[i] : mass + bins.mass[i]) >= least) {
                w.shared.token.found = {count, mass, bins.mass[i], w.thread * OWN_BINS + i};
                reached = true;
            }
            mass += bins.mass[i], count += bins.count[i];
        }
        math_barrier();
        return w.shared.token.found;
    }
    __device__ static void add_lower(unsigned key, const Found& upper, Histogram& histogram) {
        if (static_cast<int>(key / BINS) == upper.bin && weight_of(key) > 0) add(histogram, key % BINS, weight_of(key), false);
    }

    // The token at which the sum over the sorted tokens, of weights or of their number, reaches `least`.
    struct Place {
        unsigned long long mass;  // up to it, itself included
        unsigned key;
        unsigned tie, ties;  // its number among the tokens of that key, and how many there are
    };
    __device__ Place place_in(const Histogram& histogram, const Found& upper, bool by_count, unsigned long long least) {
        const unsigned key_before = upper.bin * BINS;
        const auto ties_of = [&](int bin, unsigned long long mass) {
            return mass == 0 ? 0u : static_cast<unsigned>(mass / weight_of(key_before + bin));
        };
        const Bins bins = bins_of(histogram, by_count, ties_of);
        const Found lower = reaching(bins, by_count, least - (by_count ? upper.count_before : upper.mass_before));
        const unsigned key = key_before + lower.bin, weight = weight_of(key);
        const unsigned long long mass_before = upper.mass_before + lower.mass_before;
        const unsigned long long tie = by_count ? least - upper.count_before - lower.count_before - 1
                                                : (least - mass_before - 1) / weight;
        return {mass_before + (tie + 1) * weight, key, static_cast<unsigned>(tie), static_cast<unsigned>(lower.mass / weight)};
    }
    __device__ void share(Level level) const {
        tell(level, 0);
        hear(level);
    }

    // Each step keeps a run of the sorted tokens from the best on, so what all steps keep weighs as much as the shortest run.
    __device__ void pick_sorted(const Keys& keys, Histogram* histograms, double uniform, unsigned long long kept_by_min_p,
                                bool by_count) {
        const Request& request = w.request;
        const Bins bins =
            bins_of(histograms[UPPER], by_count, [&](int bin, unsigned long long) { return __ldcg(&histograms[UPPER].count[bin]); });
        const auto target = [&](unsigned long long mass) {
            return min(static_cast<unsigned long long>(uniform * static_cast<double>(mass)) + 1, mass);
        };
        unsigned long long mass = bins.all_mass;
        if (by_count && bins.all_count > static_cast<unsigned long long>(request.top_k)) {
            const Found cut = reaching(bins, true, request.top_k);
            each_own(keys, [&](unsigned key) { add_lower(key, cut, histograms[TOP_K_CUT]); });
            share(TOP_K_CUT);
            mass = place_in(histograms[TOP_K_CUT], cut, true, request.top_k).mass;
        }
        Found upper{};  // where the pick will be; one round is saved where that can be told before the cut is known exactly
        Level level = PICK;
        if (request.top_p < 1.0f) {
            const auto least = min(max(static_cast<unsigned long long>(ceil(static_cast<double>(request.top_p) * static_cast<double>(mass))), 1ull), mass);
            const Found cut = reaching(bins, false, least);
            upper = reaching(bins, false, target(min(cut.mass_before + cut.mass / 2 + 1, kept_by_min_p)));
            level = GUESS;
            each_own(keys, [&](unsigned key) {
                add_lower(key, cut, histograms[TOP_P_CUT]);
                add_lower(key, upper, histograms[GUESS]);
            });
            share(TOP_P_CUT);
            mass = place_in(histograms[TOP_P_CUT], cut, false, least).mass;
        }
        const unsigned long long least = target(min(mass, kept_by_min_p));
        if (level == PICK || least <= upper.mass_before || least > upper.mass_before + upper.mass) {
            level = PICK;
            upper = reaching(bins, false, least);
            each_own(keys, [&](unsigned key) { add_lower(key, upper, histograms[PICK]); });
            share(PICK);
        }
        const Place place = place_in(histograms[level], upper, false, least);
        unsigned long long before_own = 0, ties;
        if (place.ties > 1) {  // by id: how many of them do the workers before this one have?
            unsigned long long own = 0;
            each_own(keys, [&](unsigned key) { own += key == place.key; });
            tell(LEVELS, sum_over_block(own));
            before_own = hear_sums(LEVELS, ties);
        }
        pick_own(keys, before_own, place.tie, [&](unsigned key) { return key == place.key ? 1u : 0u; });
    }
    __device__ void pick_by_id(const Keys& keys, unsigned least, unsigned long long before_own, unsigned long long target) {
        pick_own(keys, before_own, target, [&](unsigned key) {
            const unsigned weight = weight_of(key);
            return weight >= least ? weight : 0u;
        });
    }
    // The worker in whose rows the sum of `value_of(key)`, by id, passes `target` tells all others which token that is.
    template <class ValueOf>
    __device__ void pick_own(const Keys& keys, unsigned long long before, unsigned long long target, ValueOf value_of) {
        const HeadPhase head{w};
        const int tiles = Head::tiles(head.slice()), from = Head::first_tile(head.slice()) * TILE, first = head.first_row();
#pragma unroll 1
        for (int block = 0; block < Head::BLOCKS; ++block) {
            const int start = Head::block_start(tiles, block) * TILE, end = Head::block_start(tiles, block + 1) * TILE;
            const int row = start + w.thread, id = first + row;
            const bool inside = row < end && from + row < HEAD_SLICE;
            const unsigned long long value = inside ? value_of(keys.of(*head.score_of(row))) : 0;
            unsigned long long all;
            const unsigned long long sum = before + sum_before(value, all);
            if (sum <= target && target < sum + value)
                store_packet(w.packets(CHOSEN_AT), id, __float_as_uint(w.request.logits[id]), 0, epoch());
            before += all;
        }
    }
    // One packet from the worker that has the token: the token and its logit.
    __device__ void take_choice(Choice& choice) const {
        math_barrier();
        if (w.thread == 0) {
            Packet found[1];
            receive(found, [&](int) { return w.packets(CHOSEN_AT); }, epoch(), w.patience(AT_CHOICE));
            w.shared.token.best_id[0] = static_cast<int>(found[0].words[0]);
            w.shared.token.best_raw[0] = __uint_as_float(found[0].words[1]);
        }
        math_barrier();
        choice.token = w.shared.token.best_id[0], choice.raw = w.shared.token.best_raw[0];
    }
};

}  // namespace laneformer
