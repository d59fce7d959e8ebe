// A chunk of a prompt: CHUNK tokens at once, on the pages of the same tape.
//
// Every page then meets CHUNK columns of inputs instead of one, which a thread of its own copies from device memory, a few runs
// ahead: see chunk_inputs.cuh.  A warp takes whole tiles of rows, a share of the tokens and all columns in order, so a sum does not
// depend on the number of workers.  Warps wait for one another only when a product is over.
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

    // Whether the warp has a t-th tile of rows.
    __device__ static bool has_tile(int t, int row_warp, int tiles) {
        return (t + 1) * ROW_WARPS <= M::LEAST_BLOCK_TILES || t * ROW_WARPS + row_warp < tiles;
    }
};

// Every `stride`-th tile of tokens from `first` on, `tiles` in all.
struct TokenShare {
    int first, stride, tiles;

    __device__ int token(int local) const { return (first + local / 8 * stride) * 8 + local % 8; }
};

struct Chunk : ChunkAttention {
    Turn<COPIES>& place;  // of the next run of inputs: see chunk_inputs.cuh

    __device__ __forceinline__ void run() {
        look_round();
        w.layer = 0;
        embed();
        exchange(0);
        for (w.layer = 0; w.layer < LAYERS; ++w.layer) {
            look_round();
            norm_factors();
            if (w.shared.given_up) return;  // or every wait of what is left would be tried
            multiply<Project>([&](int tile, TokenShare share) {
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
            exchange(ATTENDED, [&] { add_mail<Output>(ATTENTION); });
            end_module<Output>(ATTENTION);
            exchange(ATTENTION_ADDED);
            norm_factors();
            unsigned char* units = inputs(UNIT_INPUTS, UNIT_INPUT_BYTES);
            multiply<GateUp>([&](int tile, TokenShare share) {
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
            exchange(UNITS_DONE, [&] { add_mail<Down>(FEED_FORWARD); });
            end_module<Down>(FEED_FORWARD);
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
    __device__ __forceinline__ void multiply(Use use) {
        using Shares = ChunkShares<M>;
        constexpr int MOST = Shares::MOST_TILES, TOKENS = Shares::MOST_TOKEN_TILES;
#pragma unroll 1
        for (int block = 0; block < M::BLOCKS; ++block) {
            look_round();
            const auto tiles_of_block = [&] { return M::block_start(M::tiles(w.place), block + 1) - M::block_start(M::tiles(w.place), block); };
            const int tiles = tiles_of_block();
            if (tiles == 0) continue;
            const int row_warp = w.warp / Shares::TOKEN_WARPS, token_warp = w.warp % Shares::TOKEN_WARPS;
            float sums[MOST][TOKENS][4];
#pragma unroll
            for (int t = 0; t < MOST; ++t)
#pragma unroll
                for (int n = 0; n < TOKENS; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) sums[t][n][i] = 0;
            // The memory of the copies is that of the last tiles, of attention and of squares; and what is copied, other blocks
            // have stored.
            asm volatile("fence.proxy.async;" ::: "memory");
            math_barrier();
            if (PLAIN_COPIES || w.thread == 0) barrier_arrive(shared_address(&w.shared.inputs_ready));
            const unsigned char* weights = nullptr;
#pragma unroll 1
            for (int run = 0; run < M::STEPS / RUN_STEPS; ++run) {
                constexpr int RUNS_PER_PAGE = M::STEPS_PER_PAGE / RUN_STEPS;
                if (run % RUNS_PER_PAGE == 0)
                    weights = w.wait_page(tiles * M::STEPS_PER_PAGE * TILE_BYTES) + row_warp * TILE_BYTES + w.in_warp * 16;
                const unsigned char* inputs = wait_inputs() + token_warp * 256 + w.in_warp * 8;
#pragma unroll
                for (int step = 0; step < RUN_STEPS; ++step) {
                    uint2 b[TOKENS];
#pragma unroll
                    for (int n = 0; n < TOKENS; ++n)
                        b[n] = *reinterpret_cast<const uint2*>(inputs + step * INPUT_TILE_BYTES + n * Shares::TOKEN_WARPS * 256);
#pragma unroll
                    for (int t = 0; t < MOST; ++t)
                        if (Shares::has_tile(t, row_warp, tiles)) {
                            const uint4 a = *reinterpret_cast<const uint4*>(weights + t * Shares::ROW_WARPS * TILE_BYTES);
#pragma unroll
                            for (int n = 0; n < TOKENS; ++n) tensor_product(sums[t][n], a.x, a.y, a.z, a.w, b[n].x, b[n].y);
                        }
                    weights += tiles * TILE_BYTES;
                }
                release_inputs();
                if (run % RUNS_PER_PAGE == RUNS_PER_PAGE - 1) w.release_page();
            }
            math_barrier();
            look_round();  // so that nothing of what follows is worked out before the products, and kept through them
            const int first = M::block_start(M::tiles(w.place), block) + w.warp / Shares::TOKEN_WARPS;
            const TokenShare share = share_of(w.warp % Shares::TOKEN_WARPS, Shares::TOKEN_WARPS);
#pragma unroll
            for (int t = 0; t < MOST; ++t)
                if (Shares::has_tile(t, w.warp / Shares::TOKEN_WARPS, tiles_of_block())) {
                    keep_tile(sums[t]);
                    use(first + t * Shares::ROW_WARPS, share);
                }
        }
    }

    // A run's inputs.
    __device__ __forceinline__ const unsigned char* wait_inputs() {
        const unsigned copied = shared_address(&w.shared.copied[place.slot]);
        if (!barrier_done(copied, place.lap)) {
            Patience patient = w.patience(AT_CHUNK);
            while (!barrier_done(copied, place.lap) && patient.lasts()) {}
        }
        return w.shared.chunk.inputs[place.slot];
    }
    __device__ __forceinline__ void release_inputs() {
        __syncwarp();
        if (PLAIN_COPIES || w.in_warp == 0) barrier_arrive(shared_address(&w.shared.freed[place.slot]));
        place.advance();
    }

    // 1 / root mean square of every token, from the sums of squares of all tiles.  And whether someone has given the request up.
    __device__ __forceinline__ void norm_factors() {
        constexpr int SHARES = MATH_THREADS / CHUNK;
        const int token = w.thread % CHUNK, share = w.thread / CHUNK;
        const float* from = squares() + token;
        float sum = 0;
#pragma unroll 16
        for (int tile = share; tile < HIDDEN_TILES; tile += SHARES) sum += from[tile * CHUNK];
        w.shared.chunk.share_squares[share][token] = sum;
        if (w.thread == 0) w.shared.given_up = load_relaxed(&w.request.control->abort);
        math_barrier();
        if (share == 0) {
            for (int other = 1; other < SHARES; ++other) sum += w.shared.chunk.share_squares[other][token];
            w.shared.chunk.token_factor[token] = rsqrtf(sum / HIDDEN + w.request.norm_epsilon);
        }
        math_barrier();
    }

    // The worker's rows of the residual streams change: inputs of the next product, and squares for its norm.  Called by whole
    // warps, for a tile of rows.  `read(token, row)` asks memory for four rows from `row` on, `joined(local, four)` makes of them
    // what they are now, of the local-th token of the share; rows past the last are zero.
    template <class Read, class Joined>
    __device__ __forceinline__ void publish_tile(int tile, TokenShare share, const float* norm, Read read, Joined joined) {
        constexpr int AT_ONCE = 4;  // tiles of tokens
        const int group = w.in_warp % 4, row = tile * TILE + group * GROUP;
        unsigned char* to = inputs(HIDDEN_INPUTS, HIDDEN_INPUT_BYTES);
        const float4 scale = row < HIDDEN ? __ldg(reinterpret_cast<const float4*>(norm + row)) : make_float4(0, 0, 0, 0);
        float *totals = squares() + tile * CHUNK, *kept = residual() + row;
#pragma unroll 1
        for (int start = w.in_warp / 4; start < share.tiles * 8; start += AT_ONCE * 8) {
            float4 found[AT_ONCE];  // all asked for before the first is used
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (start + i * 8 < share.tiles * 8) found[i] = read(share.token(start + i * 8), row);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int local = start + i * 8, token = share.token(local);
                if (local >= share.tiles * 8) break;
                const float4 four = joined(local, found[i]);
                *reinterpret_cast<float4*>(kept + token * RESIDUAL_ROWS) = four;
                store_inputs(to, row, token, times(four, scale));
                float square = sum_of_squares(four);
                square += __shfl_xor_sync(~0u, square, 1);
                square += __shfl_xor_sync(~0u, square, 2);
                if (group == 0) totals[token] = square;
            }
        }
    }
    __device__ const float* next_norm(int module) const {
        const int which = module == ATTENTION ? 2 * w.layer + 1 : 2 * w.layer + 2;
        return w.request.norms + (static_cast<long long>(which) * LANES + w.lane) * HIDDEN;
    }

    __device__ __forceinline__ void embed() {
        const int first = Output::first_tile(w.place), tiles = Output::tiles(w.place);
        const float* scale = w.request.norms + static_cast<long long>(w.lane) * HIDDEN;
        for (int each = w.warp; each < tiles; each += MATH_WARPS)
            publish_tile(
                first + each, share_of(0, 1), scale,
                [&](int token, int row) {
                    return token < count && row < HIDDEN ? EmbeddingRow(w, w.request.prompt[start + token]).group(row / GROUP)
                                                         : make_float4(0, 0, 0, 0);
                },
                [](int, float4 four) { return four; });
    }

    template <class M>
    __device__ __forceinline__ void end_module(int module) {
        const Mode mode = LANES == 1 ? Mode::INDEPENDENT : MODE[module][w.layer];
        const float factor = LANES == 1 || mode == Mode::PAST ? 1.0f : sqrtf(static_cast<float>(LANES));
        multiply<M>([&](int tile, TokenShare share) {
            const int all = M::first_tile(w.place) + tile, group = w.in_warp % 4;
            if (LANES > 1 && SENDS[module][w.layer]) {
                float* sent = mail(w.layer, module, w.lane) + all * TILE + group * GROUP;
#pragma unroll 2
                for (int local = w.in_warp / 4; local < share.tiles * 8; local += 8)
                    *reinterpret_cast<float4*>(sent + share.token(local) * RESIDUAL_ROWS) = tile_group(local, group);
            }
            if (mode == Mode::PRESENT) return;  // added when all lanes have sent theirs
            publish_tile(
                all, share, next_norm(module), [kept = residual()](int token, int row) { return residual_group(kept, token, row); },
                [&](int local, float4 four) { return plus(four, times(tile_group(local, group), factor)); });
        });
        if (LANES == 1 || mode != Mode::PRESENT) return;
        const int sent = module == ATTENTION ? ATTENTION_SENT : FEED_FORWARD_SENT;
        raise(sent);
        await_lanes(w.layer, sent);
        for (int each = w.warp; each < M::tiles(w.place); each += MATH_WARPS)
            publish_tile(
                M::first_tile(w.place) + each, share_of(0, 1), next_norm(module),
                [&, kept = residual()](int token, int row) {
                    return plus(residual_group(kept, token, row), other_lanes(w.layer, module, token, row, -1));
                },
                [](int, float4 four) { return four; });
    }
    // What other lanes sent some layers ago for the worker's rows joins the residual stream before the module's own output does: while
    // the module's inputs are being exchanged, and when all registers are free for what is read.
    template <class M>
    __device__ __forceinline__ void add_mail(int module) {
        if (LANES == 1 || MODE[module][w.layer] != Mode::PAST) return;
        await_lanes(w.layer - DELAY, module == ATTENTION ? ATTENTION_ADDED : LAYER_DONE);
        const int first = M::first_tile(w.place) * TILE, groups = M::tiles(w.place) * (TILE / GROUP);
        constexpr int AT_ONCE = 4;
        float* kept = residual();
#pragma unroll 1
        for (int start = w.thread; start < groups * count; start += AT_ONCE * MATH_THREADS) {
            float4 sums[AT_ONCE];  // all is asked for before any is stored
            float* to[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int item = min(start + i * MATH_THREADS, groups * count - 1);
                const int token = item / groups, row = first + item % groups * GROUP;
                to[i] = kept + token * RESIDUAL_ROWS + row;
                sums[i] = plus(residual_group(kept, token, row), other_lanes(w.layer - DELAY, module, token, row, w.lane));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (start + i * MATH_THREADS < groups * count) *reinterpret_cast<float4*>(to[i]) = sums[i];
        }
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
    __device__ static float4 residual_group(const float* residual, int token, int row) {
        return *reinterpret_cast<const float4*>(residual + token * RESIDUAL_ROWS + row);
    }
};

}  // namespace laneformer
