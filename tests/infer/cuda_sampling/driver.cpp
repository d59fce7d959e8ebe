// kernels/cuda/sampling.cuh on a processor, for a test where there is no GPU: the file itself is compiled, with the headers
// beside this one in place of those of the device.
#include "sampling.cuh"

using namespace laneformer;

// Draws one token from each row of `scores`, float32 [draws][VOCABULARY].  0, or 1 where workers disagree.
extern "C" int draw(const float* scores, const double* uniforms, int draws, float temperature, int top_k, float top_p, float min_p,
                    int* tokens) {
    std::vector<Packet> packets(ALL_PACKETS);
    std::vector<Histograms> histograms(HISTOGRAMS);
    std::vector<Shared> shared(ALL_WORKERS);
    std::vector<Block> blocks(ALL_WORKERS);
    for (Block& block : blocks)
        for (auto& warp : block.warps) warp = std::make_unique<std::barrier<>>(WARP);
    std::barrier<> everybody(ALL_WORKERS * MATH_THREADS);
    std::vector<float> row(VOCABULARY);
    const Request request{row.data(), row.data(), histograms.data(), temperature, top_p, min_p, top_k};
    std::atomic<int> wrong{0};
    const auto play = [&](int index, int thread) {
        own_block = &blocks[index], own_thread = thread;
        Worker worker{request, shared[index], packets.data(), index, thread, thread / WARP, thread % WARP, 0};
        for (int made = 0; made < draws; ++made) {
            everybody.arrive_and_wait();  // in place of the layers of a token
            if (index == 0 && thread == 0) std::copy_n(scores + static_cast<long long>(made) * VOCABULARY, VOCABULARY, row.data());
            everybody.arrive_and_wait();
            worker.epoch = made + 1;
            Choice choice{-1, *std::max_element(row.begin(), row.end()), 0, 0, false, true};
            Sampling{worker}.choose(choice, uniforms[made], made);
            if (index == 0 && thread == 0) tokens[made] = choice.token;
            everybody.arrive_and_wait();
            if (choice.token != tokens[made] || choice.raw != row[choice.token]) ++wrong;
        }
    };
    std::vector<std::thread> threads;
    for (int index = 0; index < ALL_WORKERS; ++index)
        for (int thread = 0; thread < MATH_THREADS; ++thread) threads.emplace_back(play, index, thread);
    for (std::thread& thread : threads) thread.join();
    return wrong != 0;
}
