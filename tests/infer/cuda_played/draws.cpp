// kernels/cuda/sampling.cuh, played: tokens drawn from scores that are given, between the real exchange of what is best and the
// real choice.
#include "device.h"
#include "engine.cu"

using namespace laneformer;

namespace {

struct Draws {
    const float* scores;  // [count][VOCABULARY]
    const double* uniforms;
    int count;
    int* tokens;                // [ALL_WORKERS][count], at first -1
    double* log_probabilities;  // likewise
    int wrong;                  // threads of another mind than their worker, or with another token's logit
};
Request request;
Draws draws;

// The scores of this worker's rows where the head leaves them, and the best of them told to all, as HeadPhase::run() does it.
Choice best_of(Worker& w, const float* scores) {
    HeadPhase head{w};
    const int tiles = Head::tiles(head.slice());
    Best own;
    for (int block = 0; block < Head::BLOCKS; ++block) {
        const int row = Head::block_start(tiles, block) * TILE + w.thread, id = head.first_row() + row;
        if (row >= Head::block_start(tiles, block + 1) * TILE || id >= VOCABULARY) continue;
        request.logits[id] = *head.score_of(row) = scores[id];
        if (scores[id] > own.best) own.best = own.raw = scores[id], own.id = id;
        own.add(scores[id], 1);
    }
    return head.agree(own);
}

void draw_all() {
    Shared& shared = *reinterpret_cast<Shared*>(device::shared_memory());
    Worker w{request, shared, Ring{}};
    w.look_round();
    if (w.thread == 0) shared.cancelled = 0;
    math_barrier();
    w.deadline = nanoseconds() + request.stall_nanoseconds;
    for (int made = 0; made < draws.count; ++made) {
        w.step_epoch = 1 + made * EPOCHS_PER_STEP;
        const float* scores = draws.scores + static_cast<long long>(made) * VOCABULARY;
        Choice choice = best_of(w, scores);
        Sampling{w}.choose(choice, draws.uniforms[made], made);
        const int at = w.index * draws.count + made;
        const bool other = draws.tokens[at] >= 0 && draws.tokens[at] != choice.token;
        if (other || !choice.usable() || choice.raw != scores[choice.token]) ++draws.wrong;
        draws.tokens[at] = choice.token;
        draws.log_probabilities[at] = static_cast<double>(choice.raw) - choice.log_total;
    }
}

}  // namespace

// How many threads were wrong; less than 0 where a wait was given up.
extern "C" int draw(const float* scores, const double* uniforms, int count, float temperature, int top_k, float top_p, float min_p,
                    unsigned seed, int* tokens, double* log_probabilities) {
    std::vector<Packet> packets(ALL_PACKETS);
    std::vector<Histograms> histograms(HISTOGRAMS);
    std::vector<float> logits(VOCABULARY), kept(VOCABULARY);
    Control control{};
    request = Request{};
    request.packets = packets.data(), request.histograms = histograms.data();
    request.logits = logits.data(), request.scores = kept.data();
    request.control = &control, request.stall_nanoseconds = 60'000'000'000;
    request.repetition_penalty = 1;
    request.temperature = temperature, request.top_p = top_p, request.min_p = min_p, request.top_k = top_k;
    draws = {scores, uniforms, count, tokens, log_probabilities, 0};
    device::kernel = draw_all;
    const int ended = device::play(ALL_WORKERS, MATH_THREADS, sizeof(Shared), seed);
    return ended != 0 || control.abort ? -1 : draws.wrong;
}
