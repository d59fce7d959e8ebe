// Keys, values and attention of a chunk of a prompt.
//
// Keys and values are appended by all workers of the lane, and after an exchange read from memory, not through the ring.  The
// rows of a product are up to eight queries, as for one token: see attention.cuh.
//
// Shared memory: `attention[warp]`, first the warp's queries, each thread's own, then, after __syncwarp(), what the warp found;
// `row_most` and `row_total` go with it.  A barrier, and all threads merge what all warps found; another, and the next group begins.
//
// Keys and values are plain stores of any worker of the lane, then an exchange by flags: see chunk_state.cuh.
#pragma once

#include "chunk_state.cuh"

namespace laneformer {

struct ChunkAttention : ChunkState {
    __device__ __forceinline__ void append() const {
        for (int item = w.place * MATH_WARPS + w.warp; item < KEY_HEADS * count; item += WORKERS * MATH_WARPS) {
            const int token = item / KEY_HEADS, key_head = item % KEY_HEADS, position = start + token;
            const Attention attention{w, position};
            const int task = key_head * SPLITS + place_of_block(position / TILE).split;
            const bool inside = w.in_warp < HEAD_GROUPS;
            const float* from = projected() + token * PROJECTED_ROWS + w.in_warp * GROUP;
            float4 key = make_float4(0, 0, 0, 0), value = key;
            if (inside) {
                key = *reinterpret_cast<const float4*>(from + (QUERY_HEADS + key_head) * HEAD_ROWS);
                value = *reinterpret_cast<const float4*>(from + (QUERY_HEADS + KEY_HEADS + key_head) * HEAD_ROWS);
            }
            key = attention.normed(key, 1);
            if (!inside) continue;
            key = Attention::turned(key, Attention::angles(w.request, position, w.in_warp));
            attention.keep_key(task, make_uint2(narrowed(key.x, key.y), narrowed(key.z, key.w)));
            attention.keep_value(task, make_uint2(narrowed(value.x, value.y), narrowed(value.z, value.w)));
        }
    }

    // Up to eight queries that share a key head are the rows of a product: some tokens times the heads of the group.
    static constexpr int TOKENS_AT_ONCE = 8 / QUERIES_PER_KEY, ROWS = TOKENS_AT_ONCE * QUERIES_PER_KEY;
    static constexpr int TOKEN_GROUPS = divide_up(CHUNK, TOKENS_AT_ONCE);

    __device__ __forceinline__ void attend() {
        const int groups = KEY_HEADS * TOKEN_GROUPS;
        for (int group = groups * w.place / WORKERS; group < groups * (w.place + 1) / WORKERS; ++group)
            attend_group(group / TOKEN_GROUPS, group % TOKEN_GROUPS * TOKENS_AT_ONCE);
    }
    __device__ __forceinline__ void attend_group(int key_head, int first_token) {
        if (first_token >= count) return;
        look_round();
        const int row = w.in_warp / 4, column = w.in_warp % 4;
        const int token = first_token + row / QUERIES_PER_KEY, head = key_head * QUERIES_PER_KEY + row % QUERIES_PER_KEY;
        const bool used = row < ROWS && token < count;
        const int position = start + token, oldest = oldest_visible(w.layer, position);
        math_barrier();  // shared memory of all below has been read, the last time round
        uint4 queries[QUERIES_IN_REGISTERS ? HEAD_TILES : 1];
        load_queries(used, token, head, column, [&](int step, uint4 query) {
            if constexpr (QUERIES_IN_REGISTERS) queries[step] = query;
            else w.shared.chunk.attention[w.warp].queries[step][w.in_warp] = query;
        });
        float mixed[2 * HEAD_TILES][4] = {};
        float most = NEVER, total = 0;
        const int first = start + first_token, last = min(start + count, first + TOKENS_AT_ONCE) - 1;
        const int low = oldest_visible(w.layer, first) / TILE;
        for (int block = low + w.warp; block <= last / TILE; block += MATH_WARPS) {
            const BlockPlace at = place_of_block(block);
            const unsigned char* keys =
                w.request.cache + cache_address(w.request, w.layer, w.lane, key_head * SPLITS + at.split, at.index) + w.in_warp * 16;
            float scores[2][4] = {};
            uint4 k[HEAD_TILES], v[HEAD_TILES];
#pragma unroll
            for (int step = 0; step < HEAD_TILES; ++step) k[step] = *reinterpret_cast<const uint4*>(keys + step * TILE_BYTES);
#pragma unroll
            for (int step = 0; step < HEAD_TILES; ++step)
                v[step] = *reinterpret_cast<const uint4*>(keys + (HEAD_TILES + step) * TILE_BYTES);
#pragma unroll
            for (int step = 0; step < HEAD_TILES; ++step) {
                uint4 q;
                if constexpr (QUERIES_IN_REGISTERS) q = queries[step];
                else q = w.shared.chunk.attention[w.warp].queries[step][w.in_warp];
                tensor_product(scores[0], q.x, q.y, q.z, q.w, k[step].x, k[step].y);
                tensor_product(scores[1], q.x, q.y, q.z, q.w, k[step].z, k[step].w);
            }
            float weight[4], top = most;
            bool seen[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int seen_at = block * TILE + i / 2 * 8 + column * 2 + i % 2;
                seen[i] = seen_at >= oldest && seen_at <= position;
                weight[i] = scores[i / 2][i % 2] + scores[i / 2][i % 2 + 2];
                if (seen[i]) top = fmaxf(top, weight[i]);
            }
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            const float shrink = exp2_fast(most - top);
            most = top;
#pragma unroll
            for (int i = 0; i < 4; ++i) weight[i] = seen[i] ? exp2_fast(weight[i] - top) : 0.0f;
            total = total * shrink + ((weight[0] + weight[1]) + (weight[2] + weight[3]));
            const unsigned early = narrowed(weight[0], weight[1]), late = narrowed(weight[2], weight[3]);
            const float2 a = widened_pair(early), b = widened_pair(late);
            const unsigned early_rest = narrowed(weight[0] - a.x, weight[1] - a.y);
            const unsigned late_rest = narrowed(weight[2] - b.x, weight[3] - b.y);
#pragma unroll
            for (int tile = 0; tile < HEAD_TILES; ++tile)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float(&sums)[4] = mixed[2 * tile + half];
#pragma unroll
                    for (int i = 0; i < 4; ++i) sums[i] *= shrink;
                    tensor_product(sums, early, early_rest, late, late_rest, half ? v[tile].z : v[tile].x,
                                   half ? v[tile].w : v[tile].y);
                }
        }
        merge_warps(key_head, first_token, mixed, most, total);
    }
    // use(step, the thread's part of the left matrix) for each step.
    template <class Use>
    __device__ __forceinline__ void load_queries(bool used, int token, int head, int column, Use use) const {
        float4 values[HEAD_TILES];
        const float* from = projected() + token * PROJECTED_ROWS + head * HEAD_ROWS;
        const auto inside = [&](int step) { return used && step * 4 + column < HEAD_GROUPS; };
        float squares = 0;
#pragma unroll
        for (int step = 0; step < HEAD_TILES; ++step) {
            values[step] = inside(step) ? reinterpret_cast<const float4*>(from)[step * 4 + column] : make_float4(0, 0, 0, 0);
            squares += sum_of_squares(values[step]);
        }
        float factor = 1.44269504f * rsqrtf(static_cast<float>(HEAD_SIZE));  // exp(x) is exp2_fast(1.4427 x)
        if constexpr (QUERY_KEY_NORM) {
            squares += __shfl_xor_sync(~0u, squares, 1);
            squares += __shfl_xor_sync(~0u, squares, 2);
        }
#pragma unroll
        for (int step = 0; step < HEAD_TILES; ++step) {
            const int group = step * 4 + column;
            float4 v = values[step];
            if (inside(step)) {
                if constexpr (QUERY_KEY_NORM) {
                    const float* scale = w.request.head_norms + w.layer * 2 * HEAD_ROWS;
                    v = times(times(v, rsqrtf(squares / HEAD_SIZE + w.request.norm_epsilon)),
                              __ldg(reinterpret_cast<const float4*>(scale) + group));
                }
                v = times(Attention::turned(v, Attention::angles(w.request, start + token, group)), factor);
            }
            const unsigned early = narrowed(v.x, v.y), late = narrowed(v.z, v.w);
            const float2 a = widened_pair(early), b = widened_pair(late);
            use(step, make_uint4(early, narrowed(v.x - a.x, v.y - a.y), late, narrowed(v.z - b.x, v.w - b.y)));
        }
    }
    __device__ __forceinline__ void merge_warps(int key_head, int first_token, const float (&mixed)[2 * HEAD_TILES][4], float most, float total) {
        const int row = w.in_warp / 4, column = w.in_warp % 4;
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        __syncwarp();  // the warp's queries have been read
        if (row < ROWS) {
            if (column == 0) w.shared.chunk.row_most[w.warp][row] = most, w.shared.chunk.row_total[w.warp][row] = total;
            auto* to = reinterpret_cast<float*>(w.shared.chunk.attention[w.warp].mixed[row]);
#pragma unroll
            for (int tile = 0; tile < 2 * HEAD_TILES; ++tile) {
                const int element = tile * 8 + column * 2;
                if (element < HEAD_ROWS) to[element] = mixed[tile][0] + mixed[tile][2], to[element + 1] = mixed[tile][1] + mixed[tile][3];
            }
        }
        math_barrier();
        for (int item = w.thread; item < ROWS * HEAD_GROUPS; item += MATH_THREADS) {
            const int each_row = item / HEAD_GROUPS, group = item % HEAD_GROUPS, token = first_token + each_row / QUERIES_PER_KEY;
            if (token >= count) continue;
            float top = NEVER, sum = 0;
            float4 values = make_float4(0, 0, 0, 0);
            for (int each = 0; each < MATH_WARPS; ++each) top = fmaxf(top, w.shared.chunk.row_most[each][each_row]);
            for (int each = 0; each < MATH_WARPS; ++each) {
                const float factor = exp2_fast(w.shared.chunk.row_most[each][each_row] - top);
                sum += w.shared.chunk.row_total[each][each_row] * factor;
                values = plus(values, times(w.shared.chunk.attention[each].mixed[each_row][group], factor));
            }
            values = times(values, 1.0f / sum);
            const int head = key_head * QUERIES_PER_KEY + each_row % QUERIES_PER_KEY;
            store_inputs(inputs(MIXED_INPUTS, MIXED_INPUT_BYTES), head * HEAD_ROWS + group * GROUP, token, values);
        }
    }
};

}  // namespace laneformer
