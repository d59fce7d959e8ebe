// Attention of one token, split over positions, and the merging of the splits.
//
// A task is one key head and one of its SPLITS: every SPLITS-th run of blocks of 16 positions.  Blocks come through the ring like
// weights; the token's own key and value, which memory has not yet when the loader reads it, are put in their place in
// registers.  Each warp takes every eighth block of the task with a softmax of its own; partial results are merged in
// a fixed order, so that nothing depends on the number of workers.
//
// Scores: rows 0-7 of the product are the query heads that share the key head, rows 8-15 the lower parts of the same
// queries; columns are positions.  A thread's scores are at once its part of the left matrix of the second product, weights
// by position times values.
//
// Shared memory: `queries`, `key` and `value`, stored before the barrier that ends take_projected(), and read until the one before
// publish_task(); key and value by the warps that stored them once more, when they keep them.  `part_most` to `part_mixed` of each warp,
// stored before that barrier and read before the next.  `split_share` between two barriers of merge_few().
#pragma once

#include "worker.cuh"

namespace laneformer {

struct Attention {
    Worker& w;
    const int position;

    // The two angles of elements 4 * group to 4 * group + 3 of a head: cosine, sine, cosine, sine.
    __device__ static float4 angles(const Request& request, int position, int group) {
        return __ldg(reinterpret_cast<const float4*>(request.rotation) + static_cast<long long>(position) * HEAD_GROUPS + group);
    }
    __device__ static float4 turned(float4 v, float4 a) {
        return make_float4(fmaf(v.x, a.x, -v.y * a.y), fmaf(v.y, a.x, v.x * a.y), fmaf(v.z, a.z, -v.w * a.w),
                           fmaf(v.w, a.z, v.z * a.w));
    }
    __device__ float4 normed(float4 v, int which) const {  // over the head, which lies in one warp
        if constexpr (!QUERY_KEY_NORM) return v;
        const bool inside = w.in_warp < HEAD_GROUPS;
        const float squares = warp_sum(inside ? sum_of_squares(v) : 0.0f);
        const float factor = rsqrtf(squares / HEAD_SIZE + w.request.norm_epsilon);
        if (!inside) return v;
        const float* scale = w.request.head_norms + (w.layer * 2 + which) * HEAD_ROWS;
        return times(times(v, factor), __ldg(reinterpret_cast<const float4*>(scale) + w.in_warp));
    }

    // Queries of the task's head, and for the task that has the token's block its key and value: one head per warp.
    __device__ void take_projected(int task) {
        w.look_round();
        const int key_head = task / SPLITS;
        const bool owner = place_of_block(position / TILE).split == task % SPLITS;
        const Packet* from = w.packets(PROJECTED_AT) + static_cast<long long>(w.lane) * PROJECTED_TILES * (TILE / GROUP);
        for (int item = w.warp; item < QUERIES_PER_KEY + (owner ? 2 : 0); item += MATH_WARPS) {
            const bool is_key = item == QUERIES_PER_KEY, is_value = item == QUERIES_PER_KEY + 1;
            const int head = is_key     ? QUERY_HEADS + key_head
                             : is_value ? QUERY_HEADS + KEY_HEADS + key_head
                                        : key_head * QUERIES_PER_KEY + item;
            const bool inside = w.in_warp < HEAD_GROUPS;
            const float4 turn = inside ? angles(w.request, position, w.in_warp) : make_float4(0, 0, 0, 0);  // asked for before it waits
            Packet found[1];
            receive(found, [&](int) { return inside; }, [&](int) { return from + head * HEAD_GROUPS + w.in_warp; }, w.epoch(),
                    w.patience(AT_PROJECTED));
            float4 v = inside ? opened(found[0]) : make_float4(0, 0, 0, 0);
            if (!is_value) v = normed(v, is_key);
            if (!inside) continue;
            if (!is_value) v = turned(v, turn);
            if (is_key) {
                reinterpret_cast<uint2*>(w.shared.token.key)[w.in_warp] = make_uint2(narrowed(v.x, v.y), narrowed(v.z, v.w));
            } else if (is_value) {
                reinterpret_cast<uint2*>(w.shared.token.value)[w.in_warp] = make_uint2(narrowed(v.x, v.y), narrowed(v.z, v.w));
            } else {
                // 1.4427 is log2(e): exp(x) is exp2_fast(1.4427 x).
                v = times(v, 1.44269504f * rsqrtf(static_cast<float>(HEAD_SIZE)));
                const uint2 high = make_uint2(narrowed(v.x, v.y), narrowed(v.z, v.w));
                const float2 a = widened_pair(high.x), b = widened_pair(high.y);
                reinterpret_cast<uint2*>(w.shared.token.queries[0][item])[w.in_warp] = high;
                reinterpret_cast<uint2*>(w.shared.token.queries[1][item])[w.in_warp] =
                    make_uint2(narrowed(v.x - a.x, v.y - a.y), narrowed(v.z - b.x, v.w - b.y));
            }
        }
        math_barrier();
    }
    // The token's own key and value go to memory, by the warps that received them, when what the task made of them has been told:
    // nobody waits for this, and a fence takes its time.
    __device__ void keep(int task) {
        if (place_of_block(position / TILE).split != task % SPLITS || w.in_warp >= HEAD_GROUPS) return;
        if (w.warp == QUERIES_PER_KEY % MATH_WARPS) keep_key(task, reinterpret_cast<const uint2*>(w.shared.token.key)[w.in_warp]);
        if (w.warp == (QUERIES_PER_KEY + 1) % MATH_WARPS) keep_value(task, reinterpret_cast<const uint2*>(w.shared.token.value)[w.in_warp]);
    }
    __device__ unsigned char* own_block(int task) const {
        return w.request.cache + cache_address(w.request, w.layer, w.lane, task, place_of_block(position / TILE).index);
    }
    // Keys: thread 4 g + c of a tile has of positions g and g + 8 elements 4 c to 4 c + 3.
    __device__ void keep_key(int task, uint2 bits) const {
        const int p = position % TILE, tile = w.in_warp / 4, column = w.in_warp % 4;
        *reinterpret_cast<uint2*>(own_block(task) + tile * TILE_BYTES + (p % 8 * 4 + column) * 16 + p / 8 * 8) = bits;
        asm volatile("fence.proxy.async.global;" ::: "memory");
    }
    // Values: thread 4 g + c has of elements g and g + 8 positions 2 c, 2 c + 1, 2 c + 8, 2 c + 9.
    __device__ void keep_value(int task, uint2 bits) const {
        const int p = position % TILE, place = p / 8 * 2 + p % 2;
        unsigned char* block = own_block(task) + HEAD_TILES * TILE_BYTES;
        const unsigned four[2] = {bits.x, bits.y};
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
            const int element = w.in_warp * GROUP + i;
            auto* at = reinterpret_cast<unsigned short*>(block + element / TILE * TILE_BYTES +
                                                         (element % 8 * 4 + p % 8 / 2) * 16 + element % TILE / 8 * 8) + place;
            *at = static_cast<unsigned short>(four[i / 2] >> i % 2 * 16);
        }
        asm volatile("fence.proxy.async.global;" ::: "memory");
    }

    __device__ void run_task(int task) {
        if (!visible_runs(w.layer, position).has(task % SPLITS)) {
            if constexpr (CHECKSUMS)  // half an epoch may be that of a packet from long ago: none of them is left that old
                for (int item = w.thread; item < TASK_PACKETS; item += MATH_THREADS)
                    put(task_packets(task) + item, make_float4(0, 0, 0, 0), w.epoch());
            return;
        }
        take_projected(task);
        w.look_round();
        const int row = w.in_warp / 4, column = w.in_warp % 4, split = task % SPLITS;
        uint4 queries[QUERIES_IN_REGISTERS ? HEAD_TILES : 1];
        if constexpr (QUERIES_IN_REGISTERS)
#pragma unroll
            for (int step = 0; step < HEAD_TILES; ++step) queries[step] = query(step);
        float mixed[2 * HEAD_TILES][4] = {};
        float most = NEVER, total = 0;
        const Span span = visible_blocks(w.layer, split, position);
        for (int start = span.from, count; start <= span.to; start += count) {
            count = blocks_in_page(w.layer, start, span.to);
            const unsigned char* page = w.wait_page(count * CACHE_BLOCK_BYTES);
            for (int each = 0; each < count; ++each)
                if ((start + each) % MATH_WARPS == w.warp)
                    block(page + each * CACHE_BLOCK_BYTES, block_at({split, start + each}), queries, mixed, most, total);
            w.release_page();
        }
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (row < QUERIES_PER_KEY) {
            if (column == 0) {
                w.shared.token.part_most[w.warp][row] = most;
                w.shared.token.part_total[w.warp][row] = total;
            }
            auto* to = reinterpret_cast<float*>(w.shared.token.part_mixed[w.warp][row]);
#pragma unroll
            for (int tile = 0; tile < 2 * HEAD_TILES; ++tile) {
                const int element = tile * 8 + column * 2;
                if (element < HEAD_ROWS) {
                    to[element] = mixed[tile][0] + mixed[tile][2];
                    to[element + 1] = mixed[tile][1] + mixed[tile][3];
                }
            }
        }
        math_barrier();
        publish_task(task);
        keep(task);
    }

    // The thread's part of the left matrix, upper and lower parts of the same queries.
    __device__ uint4 query(int step) const {
        const int row = w.in_warp / 4, at = step * 4 + w.in_warp % 4;
        if (row >= QUERIES_PER_KEY) return make_uint4(0, 0, 0, 0);
        const uint2 high = reinterpret_cast<const uint2*>(w.shared.token.queries[0][row])[at];
        const uint2 low = reinterpret_cast<const uint2*>(w.shared.token.queries[1][row])[at];
        return make_uint4(high.x, low.x, high.y, low.y);
    }

    // Block `index` of 16 positions of the whole context.
    template <int COUNT>
    __device__ void block(const unsigned char* keys, int index, const uint4 (&queries)[COUNT],
                          float (&mixed)[2 * HEAD_TILES][4], float& most, float& total) {
        const int row = w.in_warp / 4, column = w.in_warp % 4, p = position % TILE;
        const bool newest = index == position / TILE;
        float scores[2][4] = {};
#pragma unroll
        for (int step = 0; step < HEAD_TILES; ++step) {
            uint4 k = *reinterpret_cast<const uint4*>(keys + step * TILE_BYTES + w.in_warp * 16);
            if (newest && row == p % 8) {
                const uint2 own = reinterpret_cast<const uint2*>(w.shared.token.key)[step * 4 + column];
                if (p < 8) k.x = own.x, k.y = own.y;
                else k.z = own.x, k.w = own.y;
            }
            uint4 q;
            if constexpr (QUERIES_IN_REGISTERS) q = queries[step];
            else q = query(step);
            tensor_product(scores[0], q.x, q.y, q.z, q.w, k.x, k.y);
            tensor_product(scores[1], q.x, q.y, q.z, q.w, k.z, k.w);
        }
        const int oldest = oldest_visible(w.layer, position);
        float weight[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = index * TILE + i / 2 * 8 + column * 2 + i % 2;
            weight[i] = at >= oldest && at <= position ? scores[i / 2][i % 2] + scores[i / 2][i % 2 + 2] : NEVER;
        }
        float top = fmaxf(fmaxf(weight[0], weight[1]), fmaxf(weight[2], weight[3]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(fmaxf(top, __shfl_xor_sync(~0u, top, 2)), most);
        const float shrink = exp2_fast(most - top);
        most = top;
        // A block always has a position in sight, so `top` is a score and positions out of sight get exactly 0.
#pragma unroll
        for (int i = 0; i < 4; ++i) weight[i] = exp2_fast(weight[i] - top);
        total = total * shrink + ((weight[0] + weight[1]) + (weight[2] + weight[3]));
        const unsigned early = narrowed(weight[0], weight[1]), late = narrowed(weight[2], weight[3]);
        const float2 a = widened_pair(early), b = widened_pair(late);
        const unsigned early_rest = narrowed(weight[0] - a.x, weight[1] - a.y);
        const unsigned late_rest = narrowed(weight[2] - b.x, weight[3] - b.y);
        const unsigned char* values = keys + HEAD_TILES * TILE_BYTES;
#pragma unroll
        for (int tile = 0; tile < HEAD_TILES; ++tile) {
            uint4 v = *reinterpret_cast<const uint4*>(values + tile * TILE_BYTES + w.in_warp * 16);
            if (newest && column == p % 8 / 2) {
                const unsigned low = w.shared.token.value[tile * TILE + row], high = w.shared.token.value[tile * TILE + row + 8];
                const auto placed = [&](unsigned word, unsigned own) {
                    return p % 2 ? (word & 0x0000ffffu) | own << 16 : (word & 0xffff0000u) | own;
                };
                if (p < 8) v.x = placed(v.x, low), v.z = placed(v.z, high);
                else v.y = placed(v.y, low), v.w = placed(v.w, high);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float(&sums)[4] = mixed[2 * tile + half];
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[i] *= shrink;
                tensor_product(sums, early, early_rest, late, late_rest, half ? v.z : v.x, half ? v.w : v.y);
            }
        }
    }

    __device__ Packet* task_packets(int task) const {
        return w.packets(MIXED_AT) + (static_cast<long long>(w.lane) * TASKS + task) * TASK_PACKETS;
    }
    // The eight warps' results as one: per query head HEAD_GROUPS packets of sums, and one of maximum and total weight.
    __device__ void publish_task(int task) {
        w.look_round();
        for (int item = w.thread; item < TASK_PACKETS; item += MATH_THREADS) {
            const int query = item / (HEAD_GROUPS + 1), group = item % (HEAD_GROUPS + 1);
            float most = NEVER;
#pragma unroll
            for (int each = 0; each < MATH_WARPS; ++each) most = fmaxf(most, w.shared.token.part_most[each][query]);
            most = rounded(most);  // as the readers will see it: weights are relative to it
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int each = 0; each < MATH_WARPS; ++each) {
                const float factor = exp2_fast(w.shared.token.part_most[each][query] - most);
                if (group < HEAD_GROUPS)
                    sum = plus(sum, times(w.shared.token.part_mixed[each][query][group], factor));
                else
                    sum.y += w.shared.token.part_total[each][query] * factor;
            }
            if (group == HEAD_GROUPS) sum.x = most;
            put(task_packets(task) + item, sum, w.epoch());
        }
    }

    // Results of all tasks of the lane become inputs of the output projection.
    template <class Meanwhile>
    __device__ __forceinline__ void merge(Meanwhile meanwhile) {
        const Runs runs = visible_runs(w.layer, position);
        if constexpr (!MERGED_BY_SHARES) {
            merge_all(runs, meanwhile);
        } else {
            if constexpr (FEW_MERGED_BY_ALL)
                if (runs.count <= FEW_RUNS) return merge_few(runs, meanwhile);
            merge_shares(runs, meanwhile);
        }
    }

    // What one split made of a query head: HEAD_GROUPS packets of sums, then maximum and total weight.
    __device__ const Packet* result_packets(int head, int split) const {
        return task_packets(head / QUERIES_PER_KEY * SPLITS + split) + head % QUERIES_PER_KEY * (HEAD_GROUPS + 1);
    }

    // Every worker merges all columns of a few splits.  How much each split of a head counts is worked out once, by
    // neighbours in a warp.
    template <class Meanwhile>
    __device__ __forceinline__ void merge_few(Runs runs, Meanwhile meanwhile) {
        w.look_round();
        constexpr int AT_ONCE = MIXED_AT_ONCE;
        static_assert(!FEW_MERGED_BY_ALL || AT_ONCE % MIXED_EACH == 0, "packet i of each time belongs to the same sum");
        const int items = MIXED_EACH * runs.count;
        const auto group_of = [&](int item) { return w.thread + item % MIXED_EACH * MATH_THREADS; };
        Packet found[AT_ONCE];
        const auto wanted = [&](int item) { return item < items && group_of(item) < MIXED_GROUPS; };
        const auto at = [&](int item) {
            const int group = group_of(item), split = (runs.first + item / MIXED_EACH) % SPLITS;
            return result_packets(group / HEAD_GROUPS, split) + group % HEAD_GROUPS;
        };
        unsigned missing = ask(found, wanted, at);
        meanwhile();
        share_out(runs);
        math_barrier();
        float4 sums[MIXED_EACH];
#pragma unroll
        for (int each = 0; each < MIXED_EACH; ++each) sums[each] = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (int start = 0; start < items; start += AT_ONCE) {
            const auto next = [&](int i) { return at(start + i); };
            if (start > 0) missing = ask(found, [&](int i) { return wanted(start + i); }, next);
            take(found, missing, next, w.epoch(), w.patience(AT_MIXED));
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (!wanted(start + i)) continue;
                const float share = w.shared.token.split_share[group_of(i) / HEAD_GROUPS][(start + i) / MIXED_EACH];
                sums[i % MIXED_EACH] = plus(sums[i % MIXED_EACH], times(opened(found[i]), share));
            }
        }
#pragma unroll
        for (int each = 0; each < MIXED_EACH; ++each)
            if (group_of(each) < MIXED_GROUPS) w.store_inputs(group_of(each), sums[each]);
        w.pad_inputs<MIXED>();
        math_barrier();
    }
    __device__ void share_out(Runs runs) {
        for (int item = w.thread; item < round_up(QUERY_HEADS * FEW_RUNS, WARP); item += MATH_THREADS) {
            const int head = item / FEW_RUNS, run = item % FEW_RUNS, split = (runs.first + run) % SPLITS;
            const bool inside = head < QUERY_HEADS && run < runs.count;
            Packet found[1];
            receive(found, [&](int) { return inside; }, [&](int) { return result_packets(head, split) + HEAD_GROUPS; }, w.epoch(),
                    w.patience(AT_MIXED));
            const float4 side = opened(found[0]);
            const float most = inside ? side.x : NEVER;
            float top = most;
#pragma unroll
            for (int apart = 1; apart < FEW_RUNS; apart *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, apart));
            const float weight = exp2_fast(most - top);
            float total = inside ? side.y * weight : 0.0f;
#pragma unroll
            for (int apart = 1; apart < FEW_RUNS; apart *= 2) total += __shfl_xor_sync(~0u, total, apart);
            if (inside) w.shared.token.split_share[head][run] = weight / total;
        }
    }

    // Every worker merges all columns.  Several threads share one group of columns, neighbours in a warp.
    template <class Meanwhile>
    __device__ __forceinline__ void merge_all(Runs runs, Meanwhile meanwhile) {
        w.look_round();
        constexpr int SHARED_BY = power_of_two(smaller(SPLITS, larger(MATH_THREADS / MIXED_GROUPS, 1)));
        constexpr int EACH = SPLITS / SHARED_BY, AT_ONCE = smaller(EACH, 4);
#pragma unroll 1
        for (int start = 0; start < MIXED_GROUPS * SHARED_BY; start += MATH_THREADS) {
            const int item = start + w.thread, group = item / SHARED_BY, first = item % SHARED_BY * EACH;
            Merged merged;
#pragma unroll 1
            for (int at = 0; at < EACH; at += AT_ONCE)
                take_tasks<AT_ONCE>(merged, group, first + at, group < MIXED_GROUPS, runs, [&] {
                    if (start + at == 0) meanwhile();
                });
            merge_neighbours<SHARED_BY>(merged);
            if (group < MIXED_GROUPS && first == 0) w.store_inputs(group, times(merged.sum, 1.0f / merged.total));
        }
        w.pad_inputs<MIXED>();
        math_barrier();
    }
    // Every worker merges a share of the columns and tells the others: one exchange more, but all workers merging all columns
    // would read SPLITS times as many packets.
    template <class Meanwhile>
    __device__ __forceinline__ void merge_shares(Runs runs, Meanwhile meanwhile) {
        w.look_round();
        const int first = MIXED_GROUPS * w.place / WORKERS, last = MIXED_GROUPS * (w.place + 1) / WORKERS;
        Packet* to = w.packets(MERGED_AT) + static_cast<long long>(w.lane) * MIXED_GROUPS;
#pragma unroll 1
        for (int start = first * SPLITS; start < last * SPLITS; start += MATH_THREADS) {
            const int item = start + w.thread, group = item / SPLITS, split = item % SPLITS;
            Merged merged;
            take_tasks<1>(merged, group, split, group < last, runs, [] {});
            merge_neighbours<SPLITS>(merged);
            if (group < last && split == 0) put(to + group, times(merged.sum, 1.0f / merged.total), w.epoch());
        }
        w.gather<MIXED>(to, w.epoch(), nullptr, AT_MERGED, meanwhile);
    }

    struct Merged {
        float most = NEVER, total = 0;
        float4 sum = make_float4(0, 0, 0, 0);

        __device__ void join(float other_most, float other_total, float4 other) {
            const float top = fmaxf(most, other_most), mine = exp2_fast(most - top), theirs = exp2_fast(other_most - top);
            total = total * mine + other_total * theirs;
            sum = plus(times(sum, mine), times(other, theirs));
            most = top;
        }
    };
    // A group of columns in COUNT tasks, from split `first` on.
    template <int COUNT, class Meanwhile>
    __device__ __forceinline__ void take_tasks(Merged& merged, int group, int first, bool inside, Runs runs, Meanwhile meanwhile) const {
        const Packet* from = result_packets(group / HEAD_GROUPS, first);
        Packet found[2 * COUNT];
        const auto wanted = [&](int i) { return inside && runs.has(first + i); };
        const auto at = [&](int i) { return from + i / 2 * TASK_PACKETS + (i % 2 ? HEAD_GROUPS : group % HEAD_GROUPS); };
        const unsigned missing = ask(found, [&](int i) { return wanted(i / 2); }, at);
        meanwhile();
        take(found, missing, at, w.epoch(), w.patience(AT_MIXED));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (!wanted(i)) continue;
            const float4 side = opened(found[2 * i + 1]);
            merged.join(side.x, side.y, opened(found[2 * i]));
        }
    }
    template <int COUNT>
    __device__ static void merge_neighbours(Merged& merged) {
#pragma unroll
        for (int apart = 1; apart < COUNT; apart *= 2) {
            const float4 sum = merged.sum;
            const float4 other = make_float4(__shfl_xor_sync(~0u, sum.x, apart), __shfl_xor_sync(~0u, sum.y, apart),
                                             __shfl_xor_sync(~0u, sum.z, apart), __shfl_xor_sync(~0u, sum.w, apart));
            merged.join(__shfl_xor_sync(~0u, merged.most, apart), __shfl_xor_sync(~0u, merged.total, apart), other);
        }
    }
};

}  // namespace laneformer
