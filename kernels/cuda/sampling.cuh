// Choosing a token by chance: one block more than there are workers, with the shared memory that others fill with pages.
//
// The order of steps is that of infer/sampling.py: top-k, top-p, min-p, and one uniform number that picks by the cumulative
// distribution, most probable first where top-k or top-p sorted it, else by id.  Nothing is sorted here: scores, all in
// shared memory where they fit, are counted into bins by how far they are below the best, the bin in which a cut or the pick
// falls is found by a scan, and only what lies in that bin is ranked.  Weights are whole numbers, 2^30 for the best, so
// sums do not depend on their order.  A token less probable than 2^-30 times the best is never chosen.
#pragma once

#include "head.cuh"

namespace laneformer {

constexpr int BINS = 2048, CANDIDATES = 1024;

struct SamplerMemory {
    unsigned count[BINS], high[BINS], low[BINS];  // of a bin: tokens, and their weights in two parts of 15 bits
    float value[CANDIDATES];
    int id[CANDIDATES];
    float ranked_value[CANDIDATES];
    int ranked_id[CANDIDATES];
    unsigned long long warp_mass[MATH_WARPS];
    unsigned warp_count[MATH_WARPS];
    unsigned long long mass_before;
    unsigned long long all_mass;
    unsigned count_before, found_count, listed, all_count;
    int bin, chosen;
    float largest;
};
constexpr int SCORES_OFFSET = round_up(RING_OFFSET + static_cast<int>(sizeof(SamplerMemory)), 128);
constexpr bool SCORES_FIT = SCORES_OFFSET + 4ll * VOCABULARY <= SHARED_BYTES;

class Sampler {
public:
    __device__ Sampler(Worker& worker, unsigned char* memory)
        : w(worker), request_(worker.request), memory_(*reinterpret_cast<SamplerMemory*>(memory + RING_OFFSET)),
          kept_(SCORES_FIT ? reinterpret_cast<float*>(memory + SCORES_OFFSET) : worker.request.scores) {}

    // The token for a uniform number in [0, 1); `best` is the largest score.
    __device__ int choose(float best, double uniform) {
        scale_ = 1.0f / request_.temperature;
        best_ = best;
        load();
        if (request_.top_k == 0 && request_.top_p >= 1.0f) return pick_by_id(uniform);
        count_bins(0.0f, memory_.largest, nullptr, 0);
        // Kept so far: everything in sorted order before `end`, weighing `mass`.
        unsigned end = VOCABULARY;
        unsigned long long mass = find({ANY_COUNT, ANY_MASS}).mass;  // of all
        if (request_.top_k > 0 && request_.top_k < VOCABULARY) {
            const Place place = find({static_cast<unsigned>(request_.top_k), ANY_MASS});
            end = min(end, place.count), mass = place.mass;
        }
        if (request_.top_p < 1.0f) {
            const auto least = static_cast<unsigned long long>(ceil(static_cast<double>(request_.top_p) * static_cast<double>(mass)));
            const Place place = find({ANY_COUNT, least});
            if (place.count < end) end = place.count, mass = place.mass;
        }
        if (request_.min_p > 0.0f) {
            const unsigned least = weight_of(-logf(request_.min_p));
            const Place place = weight_at_least(least);
            if (place.count < end) end = place.count, mass = place.mass;
        }
        const auto target = static_cast<unsigned long long>(uniform * static_cast<double>(mass));
        return find({end, target + 1}).id;
    }

private:
    struct Condition {  // on tokens so far and their weight
        unsigned count;
        unsigned long long mass;
        __device__ bool holds(unsigned found_count, unsigned long long found_mass) const {
            return found_count >= count || found_mass >= mass;
        }
    };
    static constexpr unsigned ANY_COUNT = ~0u;
    static constexpr unsigned long long ANY_MASS = ~0ull;

    struct Place {  // the first of the sorted tokens at which a condition on the sums up to it holds
        unsigned count;           // tokens up to it, itself included
        unsigned long long mass;  // and their weight
        int id;
    };

    __device__ float below(float score) const { return (best_ - score) * scale_; }  // in nats, 0 for the best
    __device__ static unsigned weight_of(float distance) { return __float2uint_rn(__expf(-distance) * 1073741824.0f); }

    // use(id, score) for this thread's share of the tokens.  Loads of several are under way at once.
    template <class Use>
    __device__ void each_score(const float* from, Use use) const {
        constexpr int AT_ONCE = 16;
#pragma unroll 1
        for (int start = w.thread; start < VOCABULARY; start += AT_ONCE * MATH_THREADS) {
            float scores[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                scores[i] = start + i * MATH_THREADS < VOCABULARY ? from[start + i * MATH_THREADS] : 0;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (start + i * MATH_THREADS < VOCABULARY) use(start + i * MATH_THREADS, scores[i]);
        }
    }

    __device__ void load() {
        float largest = 0;
        each_score(request_.scores, [&](int id, float score) {
            if constexpr (SCORES_FIT) kept_[id] = score;
            const float distance = below(score);
            if (weight_of(distance) > 0) largest = fmaxf(largest, distance);
        });
#pragma unroll
        for (int apart = 16; apart; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
        math_barrier();
        if (w.in_warp == 0) memory_.value[w.warp] = largest;
        math_barrier();
        if (w.thread == 0) {
            for (int each = 1; each < MATH_WARPS; ++each) largest = fmaxf(largest, memory_.value[each]);
            memory_.largest = largest;
        }
        math_barrier();
    }

    struct Range {  // distances of one bin of a level
        float from, scale;
        int bin;
        __device__ int bin_of(float distance) const { return min(max(static_cast<int>((distance - from) * scale), 0), BINS - 1); }
    };
    __device__ static bool inside(const Range* ranges, int levels, float distance) {
        for (int level = 0; level < levels; ++level)
            if (ranges[level].bin_of(distance) != ranges[level].bin) return false;
        return true;
    }
    // Count tokens of the ranges so far into bins between two distances.
    __device__ Range count_bins(float from, float to, const Range* ranges, int levels) {
        math_barrier();
        for (int bin = w.thread; bin < BINS; bin += MATH_THREADS) memory_.count[bin] = memory_.high[bin] = memory_.low[bin] = 0;
        math_barrier();
        const Range range{from, to > from ? BINS / (to - from) : 0.0f, 0};
        each_score(kept_, [&](int, float score) {
            const float distance = below(score);
            const unsigned weight = weight_of(distance);
            if (weight == 0 || !inside(ranges, levels, distance)) return;
            const int bin = range.bin_of(distance);
            atomicAdd(&memory_.count[bin], 1u);
            atomicAdd(&memory_.high[bin], weight >> 15);
            atomicAdd(&memory_.low[bin], weight & 32767u);
        });
        math_barrier();
        first_ = levels == 0 ? range : first_;
        return range;
    }
    __device__ unsigned long long bin_mass(int bin) const {
        return (static_cast<unsigned long long>(memory_.high[bin]) << 15) + memory_.low[bin];
    }

    // The first bin up to whose end the condition holds; memory_.bin is BINS where there is none.
    __device__ void find_bin(Condition condition, unsigned count_before, unsigned long long mass_before) {
        constexpr int EACH = BINS / MATH_THREADS;
        unsigned count = 0;
        unsigned long long mass = 0;
        for (int i = 0; i < EACH; ++i) count += memory_.count[w.thread * EACH + i], mass += bin_mass(w.thread * EACH + i);
        const unsigned own_count = count;
        const unsigned long long own_mass = mass;
#pragma unroll
        for (int apart = 1; apart < WARP; apart *= 2) {
            const unsigned other_count = __shfl_up_sync(~0u, count, apart);
            const unsigned long long other_mass = __shfl_up_sync(~0u, mass, apart);
            if (w.in_warp >= apart) count += other_count, mass += other_mass;
        }
        math_barrier();
        if (w.in_warp == WARP - 1) memory_.warp_count[w.warp] = count, memory_.warp_mass[w.warp] = mass;
        if (w.thread == 0) memory_.bin = BINS;
        math_barrier();
        count += count_before - own_count, mass += mass_before - own_mass;  // before the thread's own bins
        for (int each = 0; each < w.warp; ++each) count += memory_.warp_count[each], mass += memory_.warp_mass[each];
        for (int i = 0; i < EACH; ++i) {
            const int bin = w.thread * EACH + i;
            const unsigned next_count = count + memory_.count[bin];
            const unsigned long long next_mass = mass + bin_mass(bin);
            if (memory_.count[bin] > 0 && condition.holds(next_count, next_mass) && !(count > 0 && condition.holds(count, mass))) {
                memory_.bin = bin, memory_.count_before = count, memory_.mass_before = mass;
                memory_.found_count = memory_.count[bin];
            }
            count = next_count, mass = next_mass;
        }
        if (w.thread == MATH_THREADS - 1) memory_.all_count = count, memory_.all_mass = mass;
        math_barrier();
    }

    __device__ __noinline__ Place find(Condition condition) {
        Range ranges[4] = {first_, first_, first_, first_};
        find_bin(condition, 0, 0);
        if (memory_.bin == BINS) {  // it holds nowhere: everything
            const Place all{memory_.all_count, memory_.all_mass, -1};
            math_barrier();
            return all;
        }
        int levels = 1;
        ranges[0].bin = memory_.bin;
        bool counted_again = false;
        while (memory_.found_count > CANDIDATES && levels < 4 && ranges[levels - 1].scale > 0) {
            const Range& last = ranges[levels - 1];
            const float from = last.from + last.bin / last.scale;
            const unsigned count_before = memory_.count_before;
            const unsigned long long mass_before = memory_.mass_before;
            ranges[levels] = count_bins(from, from + 1.0f / last.scale, ranges, levels);
            counted_again = true;
            find_bin(condition, count_before, mass_before);
            if (memory_.bin == BINS) break;
            ranges[levels++].bin = memory_.bin;
        }
        const Place place = walk(condition, ranges, levels);
        if (counted_again) count_bins(first_.from, memory_.largest, nullptr, 0);
        return place;
    }

    // Ranks what lies in the bin found, best first, ties by id, and goes through it.  Where more lie in it than can be ranked
    // they are equal to 24 bits, and by id is the order.
    __device__ Place walk(Condition condition, const Range* ranges, int levels) {
        unsigned count = memory_.count_before;
        unsigned long long mass = memory_.mass_before;
        const bool ranked = memory_.found_count <= CANDIDATES;
        if (ranked) {
            if (w.thread == 0) memory_.listed = 0;
            math_barrier();
            each_score(kept_, [&](int id, float score) {
                const float distance = below(score);
                if (weight_of(distance) == 0 || !inside(ranges, levels, distance)) return;
                const unsigned at = atomicAdd(&memory_.listed, 1u);
                memory_.value[at] = score, memory_.id[at] = id;
            });
            math_barrier();
            const int listed = memory_.listed;
            for (int own = w.thread; own < listed; own += MATH_THREADS) {
                const float value = memory_.value[own];
                const int id = memory_.id[own];
                int rank = 0;
                for (int other = 0; other < listed; ++other)
                    rank += memory_.value[other] > value || (memory_.value[other] == value && memory_.id[other] < id);
                memory_.ranked_value[rank] = value, memory_.ranked_id[rank] = id;
            }
            math_barrier();
        }
        if (w.thread == 0) {
            int id = -1;
            if (ranked) {
                for (unsigned at = 0; at < memory_.listed; ++at) {
                    ++count, mass += weight_of(below(memory_.ranked_value[at])), id = memory_.ranked_id[at];
                    if (condition.holds(count, mass)) break;
                }
            } else {
                for (int each = 0; each < VOCABULARY; ++each) {
                    const float distance = below(kept_[each]);
                    if (weight_of(distance) == 0 || !inside(ranges, levels, distance)) continue;
                    ++count, mass += weight_of(distance), id = each;
                    if (condition.holds(count, mass)) break;
                }
            }
            memory_.count_before = count, memory_.mass_before = mass, memory_.chosen = id;
        }
        math_barrier();
        const Place place{memory_.count_before, memory_.mass_before, memory_.chosen};
        math_barrier();
        return place;
    }

    // The last of the sorted tokens that weigh at least this much: there is one, the best.
    __device__ Place weight_at_least(unsigned least) {
        unsigned count = 0;
        unsigned long long mass = 0;
        each_score(kept_, [&](int, float score) {
            const unsigned weight = weight_of(below(score));
            if (weight >= least) ++count, mass += weight;
        });
        sum_over_block(count, mass);
        return {count, mass, -1};
    }
    __device__ void sum_over_block(unsigned& count, unsigned long long& mass) {
#pragma unroll
        for (int apart = 16; apart; apart /= 2) count += __shfl_xor_sync(~0u, count, apart), mass += __shfl_xor_sync(~0u, mass, apart);
        math_barrier();
        if (w.in_warp == 0) memory_.warp_count[w.warp] = count, memory_.warp_mass[w.warp] = mass;
        math_barrier();
        count = 0, mass = 0;
        for (int each = 0; each < MATH_WARPS; ++each) count += memory_.warp_count[each], mass += memory_.warp_mass[each];
    }

    // By id: every thread has a run of ids.
    __device__ int pick_by_id(double uniform) {
        constexpr int EACH = divide_up(VOCABULARY, MATH_THREADS);
        const unsigned least = request_.min_p > 0.0f ? max(weight_of(-logf(request_.min_p)), 1u) : 1u;
        const auto weight = [&](int id) {
            const unsigned found = weight_of(below(kept_[id]));
            return found >= least ? found : 0u;
        };
        const int from = w.thread * EACH, to = min(from + EACH, VOCABULARY);
        unsigned long long mass = 0;
#pragma unroll 8
        for (int id = from; id < to; ++id) mass += weight(id);
        const unsigned long long own = mass;
#pragma unroll
        for (int apart = 1; apart < WARP; apart *= 2) {
            const unsigned long long other = __shfl_up_sync(~0u, mass, apart);
            if (w.in_warp >= apart) mass += other;
        }
        if (w.in_warp == WARP - 1) memory_.warp_mass[w.warp] = mass;
        math_barrier();
        unsigned long long before = mass - own, all = 0;
        for (int each = 0; each < MATH_WARPS; ++each) {
            if (each < w.warp) before += memory_.warp_mass[each];
            all += memory_.warp_mass[each];
        }
        const auto target = static_cast<unsigned long long>(uniform * static_cast<double>(all));
        if (before <= target && target < before + own) {
            int id = from;
            for (unsigned long long sum = before + weight(id); sum <= target; sum += weight(id)) ++id;
            memory_.chosen = id;
        }
        math_barrier();
        const int chosen = memory_.chosen;
        math_barrier();
        return chosen;
    }

    Worker& w;
    const Request& request_;
    SamplerMemory& memory_;
    float* kept_;
    Range first_{};
    float scale_ = 1, best_ = 0;
};

}  // namespace laneformer
