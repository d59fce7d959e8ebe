// A chunk of a prompt: CHUNK tokens at once, on the pages of the same tape.
//
// Every page then meets CHUNK columns of inputs instead of one.  Inputs are 16-bit numbers, in tiles, in device memory; they are
// too many for packets and for shared memory, and are copied from there a few steps ahead.  Workers write plain values and then raise a flag:
// flags[worker] holds the request and the number of the exchange, and only grows.  The store is a release and the load an
// acquire at GPU scope, and barriers inside a block carry both to all its threads.
//
// A warp takes whole tiles of rows and all columns of them in order, so a sum does not depend on the number of workers.
#pragma once

#include "embedding.cuh"

namespace laneformer {


// Regions of the chunk memory, in bytes.  Lanes follow one another within a region.
constexpr long long HIDDEN_INPUTS = 0;
constexpr long long HIDDEN_INPUT_BYTES = 1ll * columns_padded(HIDDEN) / TILE * INPUT_TILE_BYTES;
constexpr long long MIXED_INPUTS = HIDDEN_INPUTS + LANES * HIDDEN_INPUT_BYTES;
constexpr long long MIXED_INPUT_BYTES = 1ll * columns_padded(MIXED) / TILE * INPUT_TILE_BYTES;
constexpr long long UNIT_INPUTS = MIXED_INPUTS + LANES * MIXED_INPUT_BYTES;
constexpr long long UNIT_INPUT_BYTES = 1ll * columns_padded(UNITS) / TILE * INPUT_TILE_BYTES;
constexpr long long PROJECTED_ROWS = 1ll * PROJECTED_TILES * TILE;
constexpr long long PROJECTED_VALUES = UNIT_INPUTS + LANES * UNIT_INPUT_BYTES;      // float [lane][token][row]
constexpr long long RESIDUAL_ROWS = 1ll * HIDDEN_TILES * TILE;
constexpr long long RESIDUAL_VALUES = PROJECTED_VALUES + LANES * CHUNK * PROJECTED_ROWS * 4;  // float [lane][token][row]
constexpr long long TILE_SQUARES = RESIDUAL_VALUES + LANES * CHUNK * RESIDUAL_ROWS * 4;       // float [lane][tile][token]
constexpr long long CHUNK_MAIL = TILE_SQUARES + 4ll * LANES * HIDDEN_TILES * CHUNK;           // float [slot][module][lane][token][row]
constexpr int MAIL_SLOTS = smaller(LAYERS, 2 * DELAY + 2);  // see mailbox_slots() in infer/plan/phases.py
constexpr long long CHUNK_BYTES = CHUNK_MAIL + (LANES > 1 ? 8ll * MAIL_SLOTS * LANES * CHUNK * RESIDUAL_ROWS : 0);

// Tokens of a prompt that run in chunks: all but the last, whose logits are wanted.
__host__ __device__ constexpr int chunked_tokens(int prompt, bool all_logits) { return all_logits || prompt < 3 ? 0 : prompt - 1; }

// Exchanges of a layer, in order.  Where lanes add each other's present outputs these have an exchange of their own.
enum Exchange : int { PROJECTED = 1, APPENDED, ATTENDED, ATTENTION_SENT, ATTENTION_ADDED, UNITS_DONE, FEED_FORWARD_SENT, LAYER_DONE };
constexpr int EXCHANGES = 8;

__device__ inline void store_flag(unsigned long long* flag, unsigned long long value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
__device__ inline unsigned long long load_flag(const unsigned long long* flag) {
    unsigned long long value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}

struct Chunk {
    Worker& w;
    const int number, start, count;  // of the chunk, its first position, its tokens

    __device__ unsigned char* memory(long long region) const { return w.request.chunk_memory + region; }
    __device__ float* values(long long region, long long per_lane, int lane) const {
        return reinterpret_cast<float*>(memory(region)) + per_lane * lane;
    }
    __device__ float* residual() const { return values(RESIDUAL_VALUES, CHUNK * RESIDUAL_ROWS, w.lane); }
    __device__ float* projected() const { return values(PROJECTED_VALUES, CHUNK * PROJECTED_ROWS, w.lane); }
    __device__ float* squares() const { return values(TILE_SQUARES, 1ll * HIDDEN_TILES * CHUNK, w.lane); }
    __device__ float* mail(int layer, int module, int lane) const {
        return values(CHUNK_MAIL, CHUNK * RESIDUAL_ROWS, (layer % MAIL_SLOTS * 2 + module) * LANES + lane);
    }
    __device__ unsigned char* inputs(long long region, long long bytes) const { return memory(region) + bytes * w.lane; }
    // Columns from `column` on, a multiple of four, of a token in tiles of inputs: thread 4 n + c has of token n columns 4 c to 4 c + 3.
    __device__ static long long input_at(int column, int token) {
        return static_cast<long long>(column / TILE) * INPUT_TILE_BYTES + token / 8 * 256 +
               (token % 8 * 4 + column % TILE / GROUP) * 8;
    }
    __device__ static void store_inputs(unsigned char* to, int column, int token, float4 v) {  // four columns
        *reinterpret_cast<uint2*>(to + input_at(column, token)) = make_uint2(narrowed(v.x, v.y), narrowed(v.z, v.w));
    }

    __device__ unsigned long long flag_value(int layer, int exchange) const {
        return static_cast<unsigned long long>(w.request.first_epoch) << 32 |
               static_cast<unsigned>(((number + 1) * (LAYERS + 1) + layer) * EXCHANGES + exchange);
    }
    __device__ __forceinline__ void raise(int exchange) const {  // what this block wrote is there for who sees the flag
        math_barrier();
        if (w.thread == 0) store_flag(w.request.flags + w.index, flag_value(w.layer, exchange));
    }
    __device__ __forceinline__ void await(int first, int workers, int stride, unsigned long long value) const {
        if (w.thread < workers) {
            Patience patience = w.patience(AT_CHUNK);
            while (load_flag(w.request.flags + first + w.thread * stride) < value && patience.lasts()) {}
        }
        math_barrier();
    }
    __device__ __forceinline__ void exchange(int what) const {  // among the workers of the lane
        raise(what);
        await(w.lane * WORKERS, WORKERS, 1, flag_value(w.layer, what));
    }
    // Mail for this worker's rows comes from the worker at its place in every lane.
    __device__ __forceinline__ void await_lanes(int layer, int what) const { await(w.place, LANES, WORKERS, flag_value(layer, what)); }

    __device__ __forceinline__ void run() {
        w.look_round();
        w.layer = 0;
        embed();
        exchange(0);
        for (w.layer = 0; w.layer < LAYERS; ++w.layer) {
            w.look_round();
            norm_factors();
            multiply<Project>(inputs(HIDDEN_INPUTS, HIDDEN_INPUT_BYTES), [&](int tile) {
                const int group = w.in_warp % 4;
                float* to = projected() + (Project::first_tile(w.place) + tile) * TILE + group * GROUP;
#pragma unroll 2
                for (int token = w.in_warp / 4; token < CHUNK; token += 8)
                    *reinterpret_cast<float4*>(to + token * PROJECTED_ROWS) =
                        times(tile_group(token, group), w.shared.chunk.token_factor[token]);
            });
            exchange(PROJECTED);
            append();
            exchange(APPENDED);
            attend();
            exchange(ATTENDED);
            end_module<Output>(inputs(MIXED_INPUTS, MIXED_INPUT_BYTES), ATTENTION);
            exchange(ATTENTION_ADDED);
            norm_factors();
            unsigned char* units = inputs(UNIT_INPUTS, UNIT_INPUT_BYTES);
            multiply<GateUp>(inputs(HIDDEN_INPUTS, HIDDEN_INPUT_BYTES), [&](int tile) {
                const int group = w.in_warp % 2, unit = (GateUp::first_tile(w.place) + tile) * 8 + group * GROUP;
#pragma unroll 2
                for (int token = w.in_warp / 2; token < CHUNK; token += 16) {
                    const float factor = w.shared.chunk.token_factor[token];
                    const float4 gate = times(tile_group(token, group), factor), up = times(tile_group(token, group + 2), factor);
                    store_inputs(units, unit, token, make_float4(Layer::silu(gate.x) * up.x, Layer::silu(gate.y) * up.y,
                                                                 Layer::silu(gate.z) * up.z, Layer::silu(gate.w) * up.w));
                }
            });
            exchange(UNITS_DONE);
            end_module<Down>(units, FEED_FORWARD);
            exchange(LAYER_DONE);
        }
        // No lane goes on while another may read what it left for it.
        w.layer = LAYERS - 1;
        await(0, ALL_WORKERS, 1, flag_value(w.layer, LAYER_DONE));
        // Keys and values, written by any worker, are next read by bulk copies.
        asm volatile("fence.proxy.async.global;" ::: "memory");
        math_barrier();
    }

    // Sums of a tile go through shared memory, so that a thread can have four rows of one token, or of eight.
    __device__ __forceinline__ void keep_tile(const float (&sums)[TOKEN_TILES][4]) {
        __syncwarp();  // the last tile has been read
        float* to = w.shared.chunk.tile[w.warp][0] + w.in_warp / 4;
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float* at = to + (n * 8 + w.in_warp % 4 * 2 + i) * TILE_STRIDE;
                at[0] = sums[n][i], at[8] = sums[n][i + 2];
            }
        __syncwarp();
    }
    __device__ __forceinline__ float4 tile_group(int token, int group) const {
        return *reinterpret_cast<const float4*>(w.shared.chunk.tile[w.warp][token] + group * GROUP);
    }

    // All pages of a matrix times the inputs of all tokens; `use(tile)` is
    // called for every tile of the worker's rows, whose sums are in tile_group().
    template <class M, class Use>
    __device__ __forceinline__ void multiply(const unsigned char* from, Use use) {
        constexpr int MOST = divide_up(M::MOST_BLOCK_TILES, MATH_WARPS);
        w.look_round();
        const int all = M::tiles(w.place);
#pragma unroll 1
        for (int block = 0; block < M::BLOCKS; ++block) {
            const int first = M::block_start(all, block), tiles = M::block_start(all, block + 1) - first;
            if (tiles == 0) continue;
            float sums[MOST][TOKEN_TILES][4];
#pragma unroll
            for (int t = 0; t < MOST; ++t)
#pragma unroll
                for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) sums[t][n][i] = 0;
            math_barrier();  // the memory of the copies is that of the last tiles
#pragma unroll
            for (int ahead = 0; ahead < COPIES - 1; ++ahead) copy_inputs<M>(from, ahead);
            const unsigned char* weights = nullptr;
#pragma unroll 1
            for (int run = 0; run < M::STEPS / RUN_STEPS; ++run) {
                asm volatile("cp.async.wait_group %0;" ::"n"(COPIES - 2) : "memory");
                math_barrier();  // this run's inputs are there for all, and all are through with the run before it
                copy_inputs<M>(from, run + COPIES - 1);
                constexpr int RUNS_PER_PAGE = M::STEPS_PER_PAGE / RUN_STEPS;
                if (run % RUNS_PER_PAGE == 0) weights = w.wait_page() + w.warp * TILE_BYTES + w.in_warp * 16;
                const unsigned char* inputs = w.shared.chunk.inputs[run % COPIES] + w.in_warp * 8;
#pragma unroll
                for (int step = 0; step < RUN_STEPS; ++step) {
                    uint2 b[TOKEN_TILES];
#pragma unroll
                    for (int n = 0; n < TOKEN_TILES; ++n)
                        b[n] = *reinterpret_cast<const uint2*>(inputs + step * INPUT_TILE_BYTES + n * 256);
#pragma unroll
                    for (int t = 0; t < MOST; ++t)
                        if (w.warp + t * MATH_WARPS < tiles) {
                            const uint4 a = *reinterpret_cast<const uint4*>(weights + t * MATH_WARPS * TILE_BYTES);
#pragma unroll
                            for (int n = 0; n < TOKEN_TILES; ++n) tensor_product(sums[t][n], a.x, a.y, a.z, a.w, b[n].x, b[n].y);
                        }
                    weights += tiles * TILE_BYTES;
                }
                if (run % RUNS_PER_PAGE == RUNS_PER_PAGE - 1) w.release_page();
            }
            math_barrier();
#pragma unroll
            for (int t = 0; t < MOST; ++t)
                if (w.warp + t * MATH_WARPS < tiles) {
                    keep_tile(sums[t]);
                    use(first + w.warp + t * MATH_WARPS);
                }
        }
    }

    // Inputs of four steps on their way into shared memory, one group of copies per run, empty past the last.
    template <class M>
    __device__ __forceinline__ void copy_inputs(const unsigned char* from, int run) {
        static_assert(M::STEPS % RUN_STEPS == 0, "columns are padded to whole runs");
        if (run < M::STEPS / RUN_STEPS) {
            const unsigned to = shared_address(w.shared.chunk.inputs[run % COPIES]);
            for (int at = w.thread * 16; at < RUN_BYTES; at += MATH_THREADS * 16)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at),
                             "l"(from + static_cast<long long>(run) * RUN_BYTES + at)
                             : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // 1 / root mean square of every token, from the sums of squares of all tiles.
    __device__ __forceinline__ void norm_factors() {
        constexpr int SHARES = MATH_THREADS / CHUNK;
        const int token = w.thread % CHUNK, share = w.thread / CHUNK;
        float sum = 0;
        for (int tile = share; tile < HIDDEN_TILES; tile += SHARES) sum += squares()[tile * CHUNK + token];
        w.shared.chunk.share_squares[share][token] = sum;
        math_barrier();
        if (share == 0) {
            for (int other = 1; other < SHARES; ++other) sum += w.shared.chunk.share_squares[other][token];
            w.shared.chunk.token_factor[token] = rsqrtf(sum / HIDDEN + w.request.norm_epsilon);
        }
        math_barrier();
    }

    // The worker's rows of the residual streams have changed: inputs of the next product, and squares for its norm.  Called by
    // whole warps; `value(token, row)` gives four rows from `row` on.
    template <class Value>
    __device__ __forceinline__ void publish_tile(int tile, const float* norm, Value value) {
        const int group = w.in_warp % 4, row = tile * TILE + group * GROUP;
        unsigned char* to = inputs(HIDDEN_INPUTS, HIDDEN_INPUT_BYTES);
        const float4 scale = row < HIDDEN ? __ldg(reinterpret_cast<const float4*>(norm + row)) : make_float4(0, 0, 0, 0);
        float* totals = squares() + tile * CHUNK;
#pragma unroll 2
        for (int token = w.in_warp / 4; token < CHUNK; token += 8) {
            const float4 four = value(token, row);  // rows past the last are zero
            store_inputs(to, row, token, times(four, scale));
            float square = sum_of_squares(four);
            square += __shfl_xor_sync(~0u, square, 1);
            square += __shfl_xor_sync(~0u, square, 2);
            if (group == 0) totals[token] = square;
        }
    }
    __device__ const float* next_norm(int module) const {
        const int which = module == ATTENTION ? 2 * w.layer + 1 : 2 * w.layer + 2;
        return w.request.norms + (static_cast<long long>(which) * LANES + w.lane) * HIDDEN;
    }

    __device__ __forceinline__ void embed() {
        const int first = Output::first_tile(w.place), tiles = Output::tiles(w.place);
        const float* scale = w.request.norms + static_cast<long long>(w.lane) * HIDDEN;
        float4* kept = reinterpret_cast<float4*>(residual());
        for (int each = w.warp; each < tiles; each += MATH_WARPS)
            publish_tile(first + each, scale, [&](int token, int row) {
                float4 four = make_float4(0, 0, 0, 0);
                if (token < count && row < HIDDEN) four = embedding_group(w, w.request.prompt[start + token], row / GROUP);
                kept[(token * RESIDUAL_ROWS + row) / GROUP] = four;
                return four;
            });
    }

    __device__ __forceinline__ void append() const {
        for (int item = w.place * MATH_WARPS + w.warp; item < KEY_HEADS * count; item += WORKERS * MATH_WARPS) {
            const int token = item / KEY_HEADS, key_head = item % KEY_HEADS, position = start + token;
            const Attention attention{w, position};
            const int task = key_head * SPLITS + position / TILE % SPLITS;
            const bool inside = w.in_warp < HEAD_GROUPS;
            const float* from = projected() + token * PROJECTED_ROWS + w.in_warp * GROUP;
            float4 key = make_float4(0, 0, 0, 0), value = key;
            if (inside) {
                key = *reinterpret_cast<const float4*>(from + (QUERY_HEADS + key_head) * HEAD_ROWS);
                value = *reinterpret_cast<const float4*>(from + (QUERY_HEADS + KEY_HEADS + key_head) * HEAD_ROWS);
            }
            key = attention.normed(key, 1);
            if (!inside) continue;
            key = attention.turned(key);
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
        w.look_round();
        const int row = w.in_warp / 4, column = w.in_warp % 4;
        const int token = first_token + row / QUERIES_PER_KEY, head = key_head * QUERIES_PER_KEY + row % QUERIES_PER_KEY;
        const bool used = row < ROWS && token < count;
        const int position = start + token, window = WINDOW[w.layer];
        const int oldest = window && position >= window ? position - window + 1 : 0;
        unsigned queries[HEAD_TILES][4];
        load_queries(queries, used, token, head, column);
        float mixed[2 * HEAD_TILES][4] = {};
        float most = NEVER, total = 0;
        const int first = start + first_token, last = min(start + count, first + TOKENS_AT_ONCE) - 1;
        const int low = window && first >= window ? (first - window + 1) / TILE : 0, slots = cache_slots(w.layer);
        for (int block = low + w.warp; block <= last / TILE; block += MATH_WARPS) {
            const int task = key_head * SPLITS + block % SPLITS;
            const unsigned char* keys =
                w.request.cache + cache_address(w.request, w.layer, w.lane, task, block / SPLITS, slots) + w.in_warp * 16;
            float scores[2][4] = {};
            uint4 k[HEAD_TILES], v[HEAD_TILES];
#pragma unroll
            for (int step = 0; step < HEAD_TILES; ++step) k[step] = *reinterpret_cast<const uint4*>(keys + step * TILE_BYTES);
#pragma unroll
            for (int step = 0; step < HEAD_TILES; ++step)
                v[step] = *reinterpret_cast<const uint4*>(keys + (HEAD_TILES + step) * TILE_BYTES);
#pragma unroll
            for (int step = 0; step < HEAD_TILES; ++step) {
                const unsigned(&q)[4] = queries[step];
                tensor_product(scores[0], q[0], q[1], q[2], q[3], k[step].x, k[step].y);
                tensor_product(scores[1], q[0], q[1], q[2], q[3], k[step].z, k[step].w);
            }
            float weight[4], top = most;
            bool seen[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = block * TILE + i / 2 * 8 + column * 2 + i % 2;
                seen[i] = at >= oldest && at <= position;
                weight[i] = scores[i / 2][i % 2] + scores[i / 2][i % 2 + 2];
                if (seen[i]) top = fmaxf(top, weight[i]);
            }
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            const float shrink = exp2f(most - top);
            most = top;
#pragma unroll
            for (int i = 0; i < 4; ++i) weight[i] = seen[i] ? exp2f(weight[i] - top) : 0.0f;
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
    __device__ __forceinline__ void load_queries(unsigned (&queries)[HEAD_TILES][4], bool used, int token, int head, int column) const {
        float4 values[HEAD_TILES];
        const float* from = projected() + token * PROJECTED_ROWS + head * HEAD_ROWS;
        const auto inside = [&](int step) { return used && step * 4 + column < HEAD_GROUPS; };
        float squares = 0;
#pragma unroll
        for (int step = 0; step < HEAD_TILES; ++step) {
            values[step] = inside(step) ? reinterpret_cast<const float4*>(from)[step * 4 + column] : make_float4(0, 0, 0, 0);
            squares += sum_of_squares(values[step]);
        }
        float factor = 1.44269504f * rsqrtf(static_cast<float>(HEAD_SIZE));  // exp(x) is exp2f(1.4427 x)
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
                v = times(Attention::turned_by(v, w.request, start + token, group), factor);
            }
            queries[step][0] = narrowed(v.x, v.y), queries[step][2] = narrowed(v.z, v.w);
            const float2 a = widened_pair(queries[step][0]), b = widened_pair(queries[step][2]);
            queries[step][1] = narrowed(v.x - a.x, v.y - a.y), queries[step][3] = narrowed(v.z - b.x, v.w - b.y);
        }
    }
    __device__ __forceinline__ void merge_warps(int key_head, int first_token, const float (&mixed)[2 * HEAD_TILES][4], float most, float total) {
        const int row = w.in_warp / 4, column = w.in_warp % 4;
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        math_barrier();  // the arrays below have been read by all, the last time round
        if (row < ROWS) {
            if (column == 0) w.shared.chunk.row_most[w.warp][row] = most, w.shared.chunk.row_total[w.warp][row] = total;
            auto* to = reinterpret_cast<float*>(w.shared.chunk.row_mixed[w.warp][row]);
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
                const float factor = exp2f(w.shared.chunk.row_most[each][each_row] - top);
                sum += w.shared.chunk.row_total[each][each_row] * factor;
                values = plus(values, times(w.shared.chunk.row_mixed[each][each_row][group], factor));
            }
            values = times(values, 1.0f / sum);
            const int head = key_head * QUERIES_PER_KEY + each_row % QUERIES_PER_KEY;
            store_inputs(inputs(MIXED_INPUTS, MIXED_INPUT_BYTES), head * HEAD_ROWS + group * GROUP, token, values);
        }
    }

    template <class M>
    __device__ __forceinline__ void end_module(const unsigned char* from, int module) {
        const Mode mode = LANES == 1 ? Mode::INDEPENDENT : MODE[module][w.layer];
        if (LANES > 1 && mode == Mode::PAST)
            await_lanes(w.layer - DELAY, module == ATTENTION ? ATTENTION_ADDED : LAYER_DONE);
        const float factor = LANES == 1 ? 1.0f : sqrtf(static_cast<float>(LANES));
        multiply<M>(from, [&](int tile) {
            const int all = M::first_tile(w.place) + tile, group = w.in_warp % 4;
            if (LANES > 1 && SENDS[module][w.layer]) {
                float* sent = mail(w.layer, module, w.lane) + all * TILE + group * GROUP;
#pragma unroll 2
                for (int token = w.in_warp / 4; token < CHUNK; token += 8)
                    *reinterpret_cast<float4*>(sent + token * RESIDUAL_ROWS) = tile_group(token, group);
            }
            if (mode == Mode::PRESENT) return;  // added when all lanes have sent theirs
            publish_tile(all, next_norm(module), [&](int token, int row) {
                const float4 own = tile_group(token, group);
                if (LANES == 1 || mode != Mode::PAST) return add_to_residual(token, row, times(own, factor));
                return add_to_residual(token, row, plus(own, other_lanes(w.layer - DELAY, module, token, row, w.lane)));
            });
        });
        if (LANES == 1 || mode != Mode::PRESENT) return;
        const int sent = module == ATTENTION ? ATTENTION_SENT : FEED_FORWARD_SENT;
        raise(sent);
        await_lanes(w.layer, sent);
        for (int each = w.warp; each < M::tiles(w.place); each += MATH_WARPS)
            publish_tile(M::first_tile(w.place) + each, next_norm(module), [&](int token, int row) {
                return add_to_residual(token, row, other_lanes(w.layer, module, token, row, -1));
            });
    }
    // What lanes sent for four rows of a token, added in order of lanes, without lane `but`.
    __device__ __forceinline__ float4 other_lanes(int layer, int module, int token, int row, int but) const {
        const float* from = mail(layer, module, 0) + token * RESIDUAL_ROWS + row;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane)
            if (lane != but) sum = plus(sum, *reinterpret_cast<const float4*>(from + lane * (CHUNK * RESIDUAL_ROWS)));
        return sum;
    }
    __device__ __forceinline__ float4 add_to_residual(int token, int row, float4 what) const {
        float4& at = *reinterpret_cast<float4*>(residual() + token * RESIDUAL_ROWS + row);
        at = plus(at, what);
        return at;
    }
};

}  // namespace laneformer
