// The kernel: one launch is one request.  Every block is a worker: eight warps do the work, a ninth loads weights, a tenth the inputs
// of a prompt's chunks; in the first block it then asks the host whether the request is still wanted.
#include "chunk.cuh"
#include "chunk_inputs.cuh"
#include "head.cuh"
#include "loader.cuh"
#include "sampling.cuh"

namespace laneformer {

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

// Whether someone has given the request up: one thread looks, so that all of a block leave together.
__device__ bool given_up(Worker& w) {
    if (w.thread == 0) w.shared.given_up = load_relaxed(&w.request.control->abort);
    math_barrier();
    const bool answer = w.shared.given_up != 0;
    math_barrier();
    return answer;
}

// Host memory is a microsecond away.  In the loader's warp this thread kept the loader waiting with it: the lane of worker 0
// was 100 microseconds behind the others at the end of a token.
__device__ void watch_for_cancel(const Request& request, Shared& shared) {
    while (!barrier_done_now(shared_address(&shared.over), 0)) {
        if (*const_cast<const volatile unsigned*>(request.cancel)) atomicExch(&shared.cancelled, 1u);
        __nanosleep(5000);
    }
}

__device__ __forceinline__ void play(Worker& w) {
    const Request& request = w.request;
    for (int word = w.thread; word < HEAD_ROW_WORDS; word += MATH_THREADS) w.shared.occurred[word] = 0;
    math_barrier();
    for (int at = w.thread; at < request.prompt_count; at += MATH_THREADS) note_token(w, request.prompt[at]);
    const int chunked = chunked_tokens(request.prompt_count, request.all_logits != nullptr);
    Turn<COPIES> place;
    for (int number = 0; number * CHUNK < chunked; ++number) {
        w.deadline = nanoseconds() + request.stall_nanoseconds;
        Chunk{{{w, number, number * CHUNK, min(CHUNK, chunked - number * CHUNK)}}, place}.run();
    }
    if (chunked > 0 && given_up(w)) return;
    for (int at = w.thread; at < 2 * QUERIES_PER_KEY * HEAD_TILES * TILE; at += MATH_THREADS)
        (&w.shared.token.queries[0][0][0])[at] = 0;  // padding of the head stays zero
    for (int at = w.thread; at < HEAD_TILES * TILE; at += MATH_THREADS) w.shared.token.key[at] = w.shared.token.value[at] = 0;
    math_barrier();
    if (w.thread == 0) barrier_arrive(shared_address(&w.shared.prompt_ready));
    const int steps = request.prompt_count + request.limit - (request.limit > 0);
    int token = 0, made = 0;
    Outcome outcome = FINISHED;
    for (int step = chunked; step < steps; ++step) {
        w.step_epoch = request.first_epoch + static_cast<unsigned>(step) * EPOCHS_PER_STEP;
        w.deadline = nanoseconds() + request.stall_nanoseconds;
        w.layer = 0;
        if (step < request.prompt_count) token = request.prompt[step];
        embed(w, token);
        for (w.layer = 0; w.layer < LAYERS; ++w.layer) Layer{w}.run(step);
        w.layer = LAYERS - 1;
        // Tokens of a prompt alone are those of a request for all logits, and the last: see chunked_tokens().
        const bool answers = step >= request.prompt_count - 1 && request.limit > 0, sampled = answers && request.temperature > 0;
        float* row = request.all_logits ? request.all_logits + static_cast<long long>(step) * VOCABULARY : nullptr;
        Choice choice = HeadPhase{w}.run(row, sampled);
        if (sampled && choice.usable()) Sampling{w}.choose(choice, request.uniforms[made], made);
        if (choice.cancelled) outcome = CANCELLED;
        if (!choice.finite) outcome = NOT_FINITE;
        // What was received may be of any time where the request has been given up: no token of it is told.
        if (choice.given_up || outcome != FINISHED) break;
        if (!answers) continue;
        token = choice.token;
        if (w.index == 0 && w.thread == 0)
            *const_cast<volatile unsigned long long*>(request.tokens + made) =
                static_cast<unsigned long long>(__float_as_uint(choice.raw - choice.log_total)) << 32 | (token + 1u);
        ++made;
        if (w.thread == 0) note_token(w, token);
        if (stops(request, token)) break;
    }
    if (w.index == 0 && w.thread == 0) atomicCAS(&request.control->status, 0ull, static_cast<unsigned long long>(outcome));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) laneformer_request(const __grid_constant__ Request request) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Ring ring{memory + RING_OFFSET, known_address(shared.barriers)};
    const int thread = threadIdx.x, index = blockIdx.x;
    if (thread == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) {
            barrier_init(ring.full(slot), 1);
            barrier_init(ring.empty(slot), PLAIN_COPIES ? MATH_THREADS : MATH_WARPS);
        }
        for (int place = 0; place < COPIES; ++place) {
            barrier_init(shared_address(&shared.copied[place]), RUN_STEPS);
            barrier_init(shared_address(&shared.freed[place]), PLAIN_COPIES ? MATH_THREADS : MATH_WARPS);
        }
        barrier_init(shared_address(&shared.inputs_ready), PLAIN_COPIES ? MATH_THREADS : 1);
        barrier_init(shared_address(&shared.over), 1);
        barrier_init(shared_address(&shared.prompt_ready), 1);
        shared.cancelled = 0;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (thread >= MATH_THREADS) {
        const int steps = request.prompt_count + request.limit - (request.limit > 0);
        if (thread == LOADER_WARP * WARP) Loader(request, shared, ring, index).run(steps);
        if (thread == WATCH_WARP * WARP) {
            ChunkInputs(request, shared, index).run();
            if (index == 0) watch_for_cancel(request, shared);
        }
        return;
    }
    Worker worker{request, shared, ring};
    worker.look_round();
    play(worker);
    math_barrier();
    if (thread == 0) barrier_arrive(shared_address(&shared.over));
}

}  // namespace laneformer

// What the host must make room for, so that no size is worked out twice: see cuda_backend.py.
extern "C" __device__ long long laneformer_sizes[] = {
    laneformer::ALL_PACKETS * static_cast<long long>(sizeof(laneformer::Packet)), laneformer::CHUNK_BYTES, laneformer::HISTOGRAM_BYTES,
    laneformer::CACHE_SLOT_BYTES* laneformer::FULL_SLOTS, laneformer::CACHE_SLOT_BYTES* laneformer::SLIDING_SLOTS, laneformer::THREADS,
    static_cast<long long>(sizeof(laneformer::Request))};
