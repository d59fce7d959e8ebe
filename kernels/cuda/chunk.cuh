// A chunk of a prompt: CHUNK tokens at once, on the pages of the same tape.
//
// Every page then meets CHUNK columns of inputs instead of one, copied from device memory a few steps ahead.  A warp takes
// whole tiles of rows, a share of the tokens and all columns in order, so a sum does not depend on the number of workers.
//
// Tokens come in tiles of eight.  A chunk that is not full has fewer tiles; products of the others are made all the same, of
// whatever lies there, and nobody looks at them.
#pragma once

#include "chunk_attention.cuh"

namespace laneformer {

// How eight warps share a product: so many of them have the same rows, and each has its own tiles of tokens.  As few products for
// each warp as possible, and then as few bytes from shared memory.
template <class M>
struct ChunkShares {
    __host__ __device__ static constexpr int products(int token_warps) {
        return divide_up(M::MOST_BLOCK_TILES, MATH_WARPS / token_warps) * divide_up(TOKEN_TILES, token_warps);
    }
    __host__ __device__ static constexpr int bytes(int token_warps) {
        return MATH_WARPS / token_warps * INPUT_TILE_BYTES + token_warps * M::MOST_BLOCK_TILES * TILE_BYTES;
    }
    __host__ __device__ static constexpr int best() {
        int best = LEAST_TOKEN_WARPS;
        for (int each = best; each <= smaller(MATH_WARPS, TOKEN_TILES); each *= 2)
            if (products(each) < products(best) || (products(each) == products(best) && bytes(each) < bytes(best))) best = each;
        return best;
    }
    static constexpr int TOKEN_WARPS = best(), ROW_WARPS = MATH_WARPS / TOKEN_WARPS;
    static constexpr int MOST_TILES = divide_up(M::MOST_BLOCK_TILES, ROW_WARPS), MOST_TOKEN_TILES = TOKEN_TILES / TOKEN_WARPS;
};

// Every `stride`-th tile of tokens from `first` on, `tiles` in all.
struct TokenShare {
    int first, stride, tiles;

    __device__ int token(int local) const { return (first + local / 8 * stride) * 8 + local % 8; }
};

struct Chunk : ChunkAttention {
    __device__ __forceinline__ void run() {
        w.look_round();
        w.layer = 0;
        embed();
        exchange(0);
        for (w.layer = 0; w.layer < LAYERS; ++w.layer) {
            w.look_round();
            norm_factors();
            multiply<Project>(inputs(HIDDEN_INPUTS, HIDDEN_INPUT_BYTES), [&](int tile, TokenShare share) {
                const int group = w.in_warp % 4;
                float* to = projected() + (Project::first_tile(w.place) + tile) * TILE + group * GROUP;
#pragma unroll 2
                for (int local = w.in_warp / 4; local < share.tiles * 8; local += 8) {
                    const int token = share.token(local);
                    *reinterpret_cast<float4*>(to + token * PROJECTED_ROWS) =
                        times(tile_group(local, group), w.shared.chunk.token_factor[token]);
                }
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
            multiply<GateUp>(inputs(HIDDEN_INPUTS, HIDDEN_INPUT_BYTES), [&](int tile, TokenShare share) {
                const int group = w.in_warp % 2, unit = (GateUp::first_tile(w.place) + tile) * 8 + group * GROUP;
#pragma unroll 2
                for (int local = w.in_warp / 2; local < share.tiles * 8; local += 16) {
                    const int token = share.token(local);
                    const float factor = w.shared.chunk.token_factor[token];
                    const float4 gate = times(tile_group(local, group), factor), up = times(tile_group(local, group + 2), factor);
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

    __device__ TokenShare share_of(int first, int stride) const {  // as far as the chunk has tokens
        const int used = divide_up(count, 8);
        return {first, stride, used <= first ? 0 : divide_up(used - first, stride)};
    }

    // Sums of a tile go through shared memory, so that a thread can have four rows of one token, or of eight.
    template <int TILES>
    __device__ __forceinline__ void keep_tile(const float (&sums)[TILES][4]) {
        __syncwarp();  // the last tile has been read
        float* to = w.shared.chunk.tile[w.warp][0] + w.in_warp / 4;
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float* at = to + (n * 8 + w.in_warp % 4 * 2 + i) * TILE_STRIDE;
                at[0] = sums[n][i], at[8] = sums[n][i + 2];
            }
        __syncwarp();
    }
    __device__ __forceinline__ float4 tile_group(int local, int group) const {  // of the warp's tokens
        return *reinterpret_cast<const float4*>(w.shared.chunk.tile[w.warp][local] + group * GROUP);
    }

    // All pages of a matrix times the inputs of all tokens; `use(tile, share)` is called for every tile of the worker's rows and
    // every share of the tokens, whose sums are in tile_group().
    template <class M, class Use>
    __device__ __forceinline__ void multiply(const unsigned char* from, Use use) {
        using Shares = ChunkShares<M>;
        constexpr int MOST = Shares::MOST_TILES, TOKENS = Shares::MOST_TOKEN_TILES;
        w.look_round();
        const int all = M::tiles(w.place), row_warp = w.warp / Shares::TOKEN_WARPS, token_warp = w.warp % Shares::TOKEN_WARPS;
        const TokenShare share = share_of(token_warp, Shares::TOKEN_WARPS);
#pragma unroll 1
        for (int block = 0; block < M::BLOCKS; ++block) {
            const int first = M::block_start(all, block), tiles = M::block_start(all, block + 1) - first;
            if (tiles == 0) continue;
            float sums[MOST][TOKENS][4];
#pragma unroll
            for (int t = 0; t < MOST; ++t)
#pragma unroll
                for (int n = 0; n < TOKENS; ++n)
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
                if (run % RUNS_PER_PAGE == 0)
                    weights = w.wait_page(tiles * M::STEPS_PER_PAGE * TILE_BYTES) + row_warp * TILE_BYTES + w.in_warp * 16;
                const unsigned char* inputs = w.shared.chunk.inputs[run % COPIES] + token_warp * 256 + w.in_warp * 8;
#pragma unroll
                for (int step = 0; step < RUN_STEPS; ++step) {
                    uint2 b[TOKENS];
#pragma unroll
                    for (int n = 0; n < TOKENS; ++n)
                        b[n] = *reinterpret_cast<const uint2*>(inputs + step * INPUT_TILE_BYTES + n * Shares::TOKEN_WARPS * 256);
#pragma unroll
                    for (int t = 0; t < MOST; ++t)
                        if (row_warp + t * Shares::ROW_WARPS < tiles) {
                            const uint4 a = *reinterpret_cast<const uint4*>(weights + t * Shares::ROW_WARPS * TILE_BYTES);
#pragma unroll
                            for (int n = 0; n < TOKENS; ++n) tensor_product(sums[t][n], a.x, a.y, a.z, a.w, b[n].x, b[n].y);
                        }
                    weights += tiles * TILE_BYTES;
                }
                if (run % RUNS_PER_PAGE == RUNS_PER_PAGE - 1) w.release_page();
            }
            math_barrier();
#pragma unroll
            for (int t = 0; t < MOST; ++t)
                if (row_warp + t * Shares::ROW_WARPS < tiles) {
                    keep_tile(sums[t]);
                    use(first + row_warp + t * Shares::ROW_WARPS, share);
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
                if (at % INPUT_TILE_BYTES < divide_up(count, 8) * 256)
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
    // whole warps; `value(local, token, row)` gives four rows from `row` on of the local-th token of the share.
    template <class Value>
    __device__ __forceinline__ void publish_tile(int tile, TokenShare share, const float* norm, Value value) {
        const int group = w.in_warp % 4, row = tile * TILE + group * GROUP;
        unsigned char* to = inputs(HIDDEN_INPUTS, HIDDEN_INPUT_BYTES);
        const float4 scale = row < HIDDEN ? __ldg(reinterpret_cast<const float4*>(norm + row)) : make_float4(0, 0, 0, 0);
        float* totals = squares() + tile * CHUNK;
#pragma unroll 2
        for (int local = w.in_warp / 4; local < share.tiles * 8; local += 8) {
            const int token = share.token(local);
            const float4 four = value(local, token, row);  // rows past the last are zero
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
            publish_tile(first + each, share_of(0, 1), scale, [&](int, int token, int row) {
                float4 four = make_float4(0, 0, 0, 0);
                if (token < count && row < HIDDEN) four = embedding_group(w, w.request.prompt[start + token], row / GROUP);
                kept[(token * RESIDUAL_ROWS + row) / GROUP] = four;
                return four;
            });
    }

    template <class M>
    __device__ __forceinline__ void end_module(const unsigned char* from, int module) {
        const Mode mode = LANES == 1 ? Mode::INDEPENDENT : MODE[module][w.layer];
        if (LANES > 1 && mode == Mode::PAST)
            await_lanes(w.layer - DELAY, module == ATTENTION ? ATTENTION_ADDED : LAYER_DONE);
        const float factor = LANES == 1 ? 1.0f : sqrtf(static_cast<float>(LANES));
        multiply<M>(from, [&](int tile, TokenShare share) {
            const int all = M::first_tile(w.place) + tile, group = w.in_warp % 4;
            if (LANES > 1 && SENDS[module][w.layer]) {
                float* sent = mail(w.layer, module, w.lane) + all * TILE + group * GROUP;
#pragma unroll 2
                for (int local = w.in_warp / 4; local < share.tiles * 8; local += 8)
                    *reinterpret_cast<float4*>(sent + share.token(local) * RESIDUAL_ROWS) = tile_group(local, group);
            }
            if (mode == Mode::PRESENT) return;  // added when all lanes have sent theirs
            publish_tile(all, share, next_norm(module), [&](int local, int token, int row) {
                const float4 own = tile_group(local, group);
                if (LANES == 1 || mode != Mode::PAST) return add_to_residual(token, row, times(own, factor));
                return add_to_residual(token, row, plus(own, other_lanes(w.layer - DELAY, module, token, row, w.lane)));
            });
        });
        if (LANES == 1 || mode != Mode::PRESENT) return;
        const int sent = module == ATTENTION ? ATTENTION_SENT : FEED_FORWARD_SENT;
        raise(sent);
        await_lanes(w.layer, sent);
        for (int each = w.warp; each < M::tiles(w.place); each += MATH_WARPS)
            publish_tile(M::first_tile(w.place) + each, share_of(0, 1), next_norm(module), [&](int, int token, int row) {
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
