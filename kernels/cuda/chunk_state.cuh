// What a chunk of a prompt keeps in device memory, and how workers tell one another that it is there.
//
// Inputs of products are 16-bit numbers, in tiles; they are too many for packets and for shared memory.  Workers write plain
// values and then raise a flag: flags[worker] holds the request and the number of the exchange, and only grows.  The store is
// a release and the load an acquire at GPU scope, and barriers inside a block carry both to all its threads.
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
__host__ __device__ constexpr int chunked_tokens(int prompt, bool all_logits) { return all_logits || prompt < 2 ? 0 : prompt - 1; }

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

struct ChunkState {
    Worker& w;
    int number, start, count;  // of the chunk, its first position, its tokens

    // For the same reason as the worker's: what follows from the three is worked out again, not kept.
    __device__ void look_round() {
        w.look_round();
        asm volatile("" : "+r"(number), "+r"(start), "+r"(count));
    }
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
        if (w.thread == 0 && w.index != SILENT_WORKER) store_flag(w.request.flags + w.index, flag_value(w.layer, exchange));
    }
    __device__ __forceinline__ void await(int first, int workers, int stride, unsigned long long value) const {
        if (w.thread < workers) {
            Patience patience = w.patience(AT_CHUNK);
            while (load_flag(w.request.flags + first + w.thread * stride) < value && patience.lasts()) {}
        }
        math_barrier();
    }
    // Among the workers of the lane.  `meanwhile()` needs nothing of what is exchanged.
    template <class Meanwhile>
    __device__ __forceinline__ void exchange(int what, Meanwhile meanwhile) const {
        raise(what);
        meanwhile();
        await(w.lane * WORKERS, WORKERS, 1, flag_value(w.layer, what));
    }
    __device__ __forceinline__ void exchange(int what) const {
        exchange(what, [] {});
    }
    // Mail for this worker's rows comes from the worker at its place in every lane.
    __device__ __forceinline__ void await_lanes(int layer, int what) const { await(w.place, LANES, WORKERS, flag_value(layer, what)); }
};

}  // namespace laneformer
