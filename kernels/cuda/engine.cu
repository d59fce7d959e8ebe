// The kernel: one launch is one request.  Every block is a worker: eight warps do the work, a ninth loads, and in the first
// block a tenth asks the host whether the request is still wanted.
#include "head.cuh"
#include "loader.cuh"

namespace laneformer {

// Four columns of a tied embedding, which lies in the tiles of the head.
__device__ uint2 tied_embedding(const Worker& w, int token, int group) {
    const int lane = SLICED_HEAD ? token / HEAD_SLICE : 0, row = SLICED_HEAD ? token % HEAD_SLICE : token;
    const int workers = SLICED_HEAD ? WORKERS : ALL_WORKERS, tile = row / TILE;
    int worker = tile * workers / divide_up(HEAD_SLICE, TILE);  // about; tiles are shared out by rounding down
    while (Head::first_tile(worker) > tile) --worker;
    while (Head::first_tile(worker + 1) <= tile) ++worker;
    const int tiles = Head::tiles(worker), own = tile - Head::first_tile(worker);
    int block = 0;
    while (Head::block_start(tiles, block + 1) <= own) ++block;
    const int start = Head::block_start(tiles, block), height = Head::block_start(tiles, block + 1) - start;
    const long long head = w.request.run_offset[ALL_WORKERS + lane * WORKERS + worker];
    const int step = group * GROUP / TILE, column = group % (TILE / GROUP), r = row % TILE;
    const long long at = head + static_cast<long long>(start) * Head::STEPS * TILE_BYTES +
                         (static_cast<long long>(step) * height + own - start) * TILE_BYTES + (r % 8 * 4 + column) * 16 + r / 8 * 4;
    const auto* bits = reinterpret_cast<const unsigned*>(w.request.tape + at);
    return make_uint2(__ldg(bits), __ldg(bits + 2));
}

// The embedding of `token`, the same for all lanes: inputs of the first layer, and the worker's own rows.
__device__ void embed(Worker& w, int token) {
    w.look_round();
    Layer layer{w};
    const float4* scale = reinterpret_cast<const float4*>(layer.norm(0));
    float squares = 0;
    for (int group = w.thread; group < HIDDEN_GROUPS; group += MATH_THREADS) {
        uint2 bits;
        if (w.request.embedding != nullptr) {
            bits = __ldg(reinterpret_cast<const uint2*>(w.request.embedding) + static_cast<long long>(token) * HIDDEN_GROUPS + group);
        } else {
            bits = tied_embedding(w, token, group);
        }
        const float2 low = widened_pair(bits.x), high = widened_pair(bits.y);
        const float4 values = make_float4(low.x, low.y, high.x, high.y);
        squares += sum_of_squares(values);
        w.store_inputs(group, times(values, __ldg(scale + group)));
        const int own = group - layer.first_group();
        if (own >= 0 && own < layer.own_groups()) w.shared.residual[own] = values;
    }
    w.pad_inputs<HIDDEN>();
    w.sum_squares(squares);
    math_barrier();
}

__device__ void note_token(Worker& w, int token) {  // for the repetition penalty, if it is a row of this worker
    const int row = token - HeadPhase{w}.first_row();
    const int rows = Head::tiles(HeadPhase{w}.slice()) * TILE;
    if (row >= 0 && row < rows) atomicOr(&w.shared.occurred[row / 32], 1u << row % 32);
}

__device__ bool stops(const Request& request, int token) {
    for (int i = 0; i < request.stop_count; ++i)
        if (request.stop_ids[i] == token) return true;
    return false;
}

// Host memory is a microsecond away.  In the loader's warp this thread kept the loader waiting with it: the lane of worker 0
// was 100 microseconds behind the others at the end of a token.
__device__ void watch_for_cancel(const Request& request, Shared& shared) {
    volatile unsigned* ended = &shared.ended;
    while (!*ended) {
        if (*const_cast<const volatile unsigned*>(request.cancel)) *const_cast<volatile unsigned*>(&shared.cancelled) = 1;
        __nanosleep(5000);
    }
}

__device__ void play(Worker& w) {
    const Request& request = w.request;
    for (int word = w.thread; word < HEAD_ROW_WORDS; word += MATH_THREADS) w.shared.occurred[word] = 0;
    for (int at = w.thread; at < 2 * QUERIES_PER_KEY * HEAD_TILES * TILE; at += MATH_THREADS)
        (&w.shared.queries[0][0][0])[at] = 0;  // padding of the head stays zero
    for (int at = w.thread; at < HEAD_TILES * TILE; at += MATH_THREADS) w.shared.key[at] = w.shared.value[at] = 0;
    math_barrier();
    for (int at = w.thread; at < request.prompt_count; at += MATH_THREADS) note_token(w, request.prompt[at]);
    const int steps = request.prompt_count + request.limit - (request.limit > 0);
    int token = 0, made = 0;
    Outcome outcome = FINISHED;
    for (int step = 0; step < steps; ++step) {
        w.step_epoch = request.first_epoch + static_cast<unsigned>(step) * EPOCHS_PER_STEP;
        w.deadline = nanoseconds() + request.stall_nanoseconds;
        w.layer = 0;
        if (step < request.prompt_count) token = request.prompt[step];
        embed(w, token);
        for (w.layer = 0; w.layer < LAYERS; ++w.layer) Layer{w}.run(step);
        w.layer = LAYERS - 1;
        const bool answers = step >= request.prompt_count - 1;
        if (answers || request.all_logits) {
            float* row = request.all_logits ? request.all_logits + static_cast<long long>(step) * VOCABULARY : nullptr;
            const Choice choice = HeadPhase{w}.run(row);
            if (!choice.finite) outcome = NOT_FINITE;
            if (choice.cancelled) outcome = CANCELLED;
            if (answers && request.limit > 0 && outcome == FINISHED) {
                token = choice.token;
                if (w.index == 0 && w.thread == 0)
                    *const_cast<volatile unsigned long long*>(request.tokens + made) =
                        static_cast<unsigned long long>(__float_as_uint(choice.log_probability)) << 32 | (token + 1u);
                ++made;
                if (w.thread == 0) note_token(w, token);
                if (stops(request, token)) break;
            }
        }
        if (outcome != FINISHED || load_relaxed(&request.control->abort)) break;
    }
    if (w.index == 0 && w.thread == 0) atomicCAS(&request.control->status, 0ull, static_cast<unsigned long long>(outcome));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) laneformer_request(const __grid_constant__ Request request) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Ring ring{memory + RING_OFFSET, shared.full, shared.empty};
    const int thread = threadIdx.x, index = blockIdx.x;
    if (thread == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(ring.full + stage, 1);
            barrier_init(ring.empty + stage, MATH_WARPS);
        }
        shared.ended = shared.cancelled = 0;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (thread >= MATH_THREADS) {
        const int steps = request.prompt_count + request.limit - (request.limit > 0);
        if (thread == LOADER_WARP * WARP) Loader(request, shared, ring, index).run(steps);
        if (thread == WATCH_WARP * WARP && index == 0) watch_for_cancel(request, shared);
        return;
    }
    Worker worker{request, shared, ring};
    worker.look_round();
    play(worker);
    math_barrier();
    if (thread == 0) *const_cast<volatile unsigned*>(&shared.ended) = 1;
}

}  // namespace laneformer
