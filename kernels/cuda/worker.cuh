// What one worker, a block of threads on one SM, shares and knows; and the step from packets to inputs of a product.
//
// Shared memory: `parts`, the inputs of the product at hand, and `squares` for its norm, both written by all threads before the
// barrier that ends gather(); `sums` of its rows, written by all warps before the barrier that ends multiply().  That barrier also
// stands between the last read of the inputs and the next gather().  Sums lie in two places in turn: those of a block of rows
// are read while the next block's are made, and gather() comes before the next matrix's.
//
// Packets order themselves, see packets.cuh: an epoch for each layer of each step, and one for its token.
#pragma once

#include "cache_blocks.cuh"
#include "numbers.cuh"
#include "ring.cuh"

namespace laneformer {

// Regions of the packet memory, in packets.  Lanes follow one another within a region.
constexpr long long AT_ATTENTION = 0;  // residual stream after the attention module
constexpr long long AT_FEED_FORWARD = AT_ATTENTION + 1ll * LANES * HIDDEN_GROUPS;
constexpr long long PROJECTED_AT = AT_FEED_FORWARD + 1ll * LANES * HIDDEN_GROUPS;
constexpr long long MIXED_AT = PROJECTED_AT + 1ll * LANES * PROJECTED_TILES * (TILE / GROUP);
constexpr long long MERGED_AT = MIXED_AT + 1ll * LANES * TASKS * TASK_PACKETS;
constexpr long long UNITS_AT = MERGED_AT + (MERGED_BY_SHARES ? 1ll * LANES * MIXED_GROUPS : 0);
constexpr long long MAIL_AT = UNITS_AT + 1ll * LANES * UNIT_GROUPS;
constexpr long long SQUARES_AT = MAIL_AT + (LANES > 1 ? 2ll * LAYERS * LANES * HIDDEN_GROUPS : 0);
constexpr long long FINAL_AT = SQUARES_AT + 1ll * LANES * HIDDEN_TILES;
constexpr long long TOKEN_AT = FINAL_AT + HEAD_COLUMNS / GROUP;
constexpr int TOKEN_PACKETS = 2 * ALL_WORKERS;  // of one step; there is room for two steps in turn, see head.cuh
constexpr long long CHOSEN_AT = TOKEN_AT + 2 * TOKEN_PACKETS;
constexpr long long TOLD_AT = CHOSEN_AT + 1;
constexpr int ROUNDS = 6;  // of telling each other, at most, while a token is sampled
constexpr long long ALL_PACKETS = TOLD_AT + ROUNDS * ALL_WORKERS;

constexpr int GATHERED_AT_ONCE = 8;  // packets that a thread asks for before it looks at the first
constexpr int EPOCHS_PER_STEP = LAYERS + 2;

// What the host hands over, by value.
struct Request {
    const unsigned char* tape;
    const long long* run_offset;    // [2][ALL_WORKERS], bytes: where a worker's run begins, and its rows of the head
    const unsigned short* embedding;  // [VOCABULARY][HIDDEN]; null where it is tied
    const float* norms;             // [2 * LAYERS + 1][LANES][HIDDEN]: attention, feed-forward, ..., final
    const float* head_norms;        // [LAYERS][2][HEAD_ROWS]: queries, keys; null where there is none
    const float* rotation;          // [CONTEXT][HEAD_ROWS]: cosine and sine of each pair
    unsigned char* cache;
    const long long* cache_offset;  // [LAYERS], bytes
    Packet* packets;
    float* logits;                  // [VOCABULARY], of the last position
    float* scores;                  // [VOCABULARY], logits with the penalty, where tokens are sampled; each worker's own
    const double* uniforms;         // [limit], in [0, 1), where tokens are sampled
    struct Histograms* histograms;  // of three tokens, zero at first: see sampling.cuh
    unsigned char* chunk_memory;    // see chunk_state.cuh
    unsigned long long* flags;      // [ALL_WORKERS]
    Control* control;
    const int* prompt;
    const int* stop_ids;
    unsigned long long* tokens;     // host memory: token + 1 and log-probability in one word, in order
    const unsigned* cancel;         // host memory
    float* all_logits;              // [prompt][VOCABULARY], or null: a request for logits only
    unsigned long long stall_nanoseconds;
    unsigned first_epoch;
    int prompt_count, limit, stop_count;
    float norm_epsilon, repetition_penalty, temperature, top_p, min_p;  // temperature 0: the best, nothing of what follows
    int top_k;
};

__device__ inline long long cache_address(const Request& request, int layer, int lane, int task, int block) {
    return request.cache_offset[layer] +
           ((static_cast<long long>(lane) * TASKS + task) * cache_slots(layer) + cache_slot(layer, block)) * CACHE_BLOCK_BYTES;
}

// First pages of a matrix, or of a block of its rows, in the registers of a warp.
template <class M>
struct Held {
    __host__ __device__ static constexpr int most_pages() {  // a whole number of steps for each warp
        int best = 0;
        for (int pages = 1; pages <= M::PAGES_PER_BLOCK; ++pages)
            if (pages * M::STEPS_PER_PAGE % CLASSES == 0 && pages * M::STEPS_PER_PAGE / CLASSES * M::MOST_BLOCK_TILES <= HELD_TILES)
                best = pages;
        return best;
    }
    static constexpr int PAGES = most_pages(), STEPS = PAGES * M::STEPS_PER_PAGE / CLASSES;
    // Steps of a warp that so many pages hold.
    __host__ __device__ static constexpr int whole_steps(int pages) { return pages * M::STEPS_PER_PAGE / CLASSES; }

    uint4 weights[larger(STEPS, 1)][M::MOST_BLOCK_TILES];
    int pages = 0;

    __device__ void forget() {
        pages = 0;
#pragma unroll
        for (int i = 0; i < STEPS; ++i)
#pragma unroll
            for (int t = 0; t < M::MOST_BLOCK_TILES; ++t) weights[i][t] = make_uint4(0, 0, 0, 0);  // or they live on, as not all are loaded
    }
    __device__ Held() { forget(); }
};

struct Worker {
    const Request& request;
    Shared& shared;
    Ring ring;
    Cursor cursor;
    int index = 0, lane = 0, place = 0;  // among all workers; its lane; among the workers of the lane
    int thread = 0, warp = 0, in_warp = 0;
    int layer = 0;
    unsigned step_epoch = 0;
    unsigned long long deadline = 0;  // of the step

    // Asks the hardware again who this is.  Otherwise the compiler works out hundreds of addresses before the first token
    // and keeps them all, in memory for want of registers.
    __device__ void look_round() {
        asm volatile("mov.u32 %0, %ctaid.x;" : "=r"(index));
        asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
        // Or the compiler provides for what cannot be, before each packet is asked for.
        __builtin_assume(index >= 0 && index < ALL_WORKERS);
        __builtin_assume(thread >= 0 && thread < MATH_THREADS);
        lane = index / WORKERS, place = index % WORKERS;
        warp = thread / WARP, in_warp = thread % WARP;
    }

    __device__ Patience patience(int where) const {
        return Patience(request.control, deadline, waiting_place(index, layer, where));
    }
    __device__ unsigned epoch() const { return step_epoch + layer + 1; }
    __device__ Packet* packets(long long region) const { return request.packets + region; }

    __device__ const unsigned char* wait_page(unsigned bytes) {
        const unsigned full = ring.full(cursor.slot);
        if (!barrier_done(full, cursor.lap)) {
            Patience patient = patience(AT_PAGE);
            while (!barrier_done(full, cursor.lap) && patient.lasts()) {}
        }
        return ring.pages + cursor.place(bytes);
    }
    __device__ void release_page() {
        __syncwarp();
        if (PLAIN_COPIES || in_warp == 0) barrier_arrive(ring.empty(cursor.slot));
        cursor.advance();
    }

    // Four inputs, from column 4 * group on.
    __device__ void store_inputs(int group, float4 v) {
        unsigned short* at = shared.token.parts + group * GROUP;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const uint2 bits = make_uint2(narrowed(v.x, v.y), narrowed(v.z, v.w));
            *reinterpret_cast<uint2*>(at + part * PART_STRIDE) = bits;
            const float2 low = widened_pair(bits.x), high = widened_pair(bits.y);
            v = make_float4(v.x - low.x, v.y - low.y, v.z - high.x, v.w - high.y);
        }
    }
    template <int COLUMNS>
    __device__ void pad_inputs() {  // columns that the tape has and the vector has not
        constexpr int from = divide_up(COLUMNS, GROUP), to = columns_padded(COLUMNS) / GROUP;
        if constexpr (to > from)
            for (int group = from + thread; group < to; group += MATH_THREADS) store_inputs(group, make_float4(0, 0, 0, 0));
    }

    // Packets of a vector become inputs.  With `scale`, inputs are scaled by it, element by element, and squares of the
    // values are summed for an RMS norm, whose factor is common to all and is applied to the product: see norm_factor().
    // `meanwhile()` is done while the first of them are under way.
    template <int COLUMNS, class Meanwhile>
    __device__ __forceinline__ void gather(const Packet* from, unsigned epoch, const float* scale, int where, Meanwhile meanwhile) {
        constexpr int GROUPS = divide_up(COLUMNS, GROUP), EACH = divide_up(GROUPS, MATH_THREADS);
        constexpr int AT_ONCE = smaller(EACH, GATHERED_AT_ONCE);
        look_round();
        float squares = 0;
#pragma unroll 1
        for (int start = 0; start < EACH; start += AT_ONCE) {
            float4 scales[AT_ONCE];
            Packet found[AT_ONCE];
            const auto group = [&](int i) { return thread + (start + i) * MATH_THREADS; };
            const auto wanted = [&](int i) { return group(i) < GROUPS; };
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                scales[i] = scale != nullptr && wanted(i) ? __ldg(reinterpret_cast<const float4*>(scale) + group(i))
                                                                   : make_float4(1, 1, 1, 1);
            const auto at = [&](int i) { return from + group(i); };
            const unsigned missing = ask(found, wanted, at);
            if (start == 0) meanwhile();
            take(found, missing, at, epoch, patience(where));
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (wanted(i)) {
                    const float4 values = opened(found[i]);
                    squares += sum_of_squares(values);
                    store_inputs(group(i), times(values, scales[i]));
                }
        }
        pad_inputs<COLUMNS>();
        if (scale != nullptr) sum_squares(squares);
        math_barrier();
    }
    __device__ void sum_squares(float squares) {
        squares = warp_sum(squares);
        if (in_warp == 0) shared.token.squares[layer & 1][warp] = squares;
    }
    // 1 / root mean square of the vector gathered last with a scale.
    __device__ float norm_factor() const {
        float squares = 0;
#pragma unroll
        for (int each = 0; each < MATH_WARPS; ++each) squares += shared.token.squares[layer & 1][each];
        return rsqrtf(squares / HIDDEN + request.norm_epsilon);
    }

    // All columns of a block of tiles of rows, page after page, times the inputs.  Warp w takes class w of the columns.  A row's
    // sum ends up in shared.token.sums[parity], by class.
    //
    // In a tile, thread 4 r + c has of rows r and r + 8 the columns 4 c to 4 c + 3; the same four columns of part n of the
    // inputs go to thread 4 n + c.
    //
    // `held` are first pages of the block that the warp has in registers already, see hold().
    template <class M>
    __device__ __forceinline__ void multiply(int tiles, int parity, Held<M>& held) {
        constexpr int MOST = M::MOST_BLOCK_TILES, STEPS = M::STEPS_PER_PAGE;
        look_round();
        const int row = in_warp / 4, column = in_warp % 4;
        float sums[MOST][4];
#pragma unroll
        for (int t = 0; t < MOST; ++t) sums[t][0] = sums[t][1] = sums[t][2] = sums[t][3] = 0;
        const unsigned short* inputs = shared.token.parts + row * PART_STRIDE + warp * TILE + column * GROUP;
        const auto next_inputs = [&] {
            uint2 b = make_uint2(0, 0);
            if (row < PARTS) b = *reinterpret_cast<const uint2*>(inputs);
            inputs += CLASSES * TILE;
            return b;
        };
#pragma unroll
        for (int page = 0; page < Held<M>::PAGES; ++page) {
            if (page >= held.pages) take_page(held, page, tiles);
#pragma unroll
            for (int i = Held<M>::whole_steps(page); i < Held<M>::whole_steps(page + 1); ++i) {
                const uint2 b = next_inputs();
#pragma unroll
                for (int t = 0; t < MOST; ++t)
                    if (M::has_tile(t, tiles)) {
                        const uint4 a = held.weights[i][t];
                        tensor_product(sums[t], a.x, a.y, a.z, a.w, b.x, b.y);
                    }
            }
        }
        int step = warp;  // the warp's next, counted from the beginning of the page
#pragma unroll 1
        for (int page = Held<M>::PAGES; page < M::PAGES_PER_BLOCK; ++page) {
            const unsigned char* weights = wait_page(tiles * STEPS * TILE_BYTES) + step * tiles * TILE_BYTES + in_warp * 16;
            const int count = STEPS % CLASSES == 0 ? STEPS / CLASSES : (STEPS - step + CLASSES - 1) / CLASSES;
#pragma unroll(STEPS % CLASSES == 0 ? 4 : 1)
            for (int i = 0; i < count; ++i) {
                const uint2 b = next_inputs();
#pragma unroll
                for (int t = 0; t < MOST; ++t)
                    if (M::has_tile(t, tiles)) {
                        const uint4 a = *reinterpret_cast<const uint4*>(weights + t * TILE_BYTES);
                        tensor_product(sums[t], a.x, a.y, a.z, a.w, b.x, b.y);
                    }
                weights += CLASSES * tiles * TILE_BYTES;
            }
            step += count * CLASSES - STEPS;
            release_page();
        }
#pragma unroll
        for (int t = 0; t < MOST; ++t) {
            if (column == 0 && t < tiles) {  // it has columns 0 and 1 of the product, one for each part
                float* to = shared.token.sums[parity][warp] + t * TILE + row;
                to[0] = sums[t][0] + sums[t][1];
                to[8] = sums[t][2] + sums[t][3];
            }
        }
        math_barrier();
    }

    // A matrix, block by block of the worker's tiles: use(first tile, tiles, parity) when the sums of a block of rows are there.
    template <class M, class Use>
    __device__ __forceinline__ void each_block(Held<M>& held, int tiles, Use use) {
#pragma unroll 1
        for (int block = 0; block < M::BLOCKS; ++block) {
            const int start = M::block_start(tiles, block), rows = M::block_start(tiles, block + 1) - start;
            if (rows == 0) continue;
            multiply<M>(rows, block & 1, held);
            held.forget();
            use(start, rows, block & 1);
        }
    }

    // While a warp waits for packets, it takes pages that are there already into registers: so their room in the ring is free for
    // others, and the product needs less time when the inputs have come.
    template <class M>
    __device__ __forceinline__ void hold(Held<M>& held, int tiles) {
        if (tiles == 0) return;  // the next page is another matrix's
#pragma unroll
        for (int page = 0; page < Held<M>::PAGES; ++page)
            if (held.pages == page && __all_sync(~0u, barrier_done_now(ring.full(cursor.slot), cursor.lap))) {
                take_page(held, page, tiles);
                held.pages = page + 1;
            }
    }
    template <class M>
    __device__ __forceinline__ void take_page(Held<M>& held, int page, int tiles) {
        constexpr int STEPS = M::STEPS_PER_PAGE;
        const unsigned char* weights = wait_page(tiles * STEPS * TILE_BYTES) + in_warp * 16;
#pragma unroll
        for (int i = 0; i < Held<M>::STEPS; ++i) {
            if (i * CLASSES + CLASSES <= page * STEPS || i * CLASSES >= (page + 1) * STEPS) continue;
            const int step = i * CLASSES + warp - page * STEPS;
            const bool whole = i * CLASSES >= page * STEPS && i * CLASSES + CLASSES <= (page + 1) * STEPS;
            if (whole || (step >= 0 && step < STEPS))
#pragma unroll
                for (int t = 0; t < M::MOST_BLOCK_TILES; ++t)
                    if (M::has_tile(t, tiles))
                        held.weights[i][t] = *reinterpret_cast<const uint4*>(weights + (step * tiles + t) * TILE_BYTES);
        }
        release_page();
    }
    __device__ float sum_of_row(int row, int parity) const {
        const auto part = [&](int klass) { return shared.token.sums[parity][klass][row]; };
        return ((part(0) + part(1)) + (part(2) + part(3))) + ((part(4) + part(5)) + (part(6) + part(7)));
    }
    __device__ float4 sum_of_rows(int group, int parity) const {  // 4 * group to 4 * group + 3
        const auto part = [&](int klass) { return reinterpret_cast<const float4*>(shared.token.sums[parity][klass])[group]; };
        return plus(plus(plus(part(0), part(1)), plus(part(2), part(3))), plus(plus(part(4), part(5)), plus(part(6), part(7))));
    }
};

}  // namespace laneformer
