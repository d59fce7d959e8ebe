// How fast this machine reads memory: the wall that decoding runs against.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "shape.h"
#include "vector.h"

namespace laneformer {

// Bytes per second at which `threads` threads read `bytes` together, each its own part: the best of `rounds`.
// Threads start each round together; they only add, so that nothing but memory limits them.
inline double read_bandwidth(const uint8_t* data, uint64_t bytes, int threads, int rounds) {
    std::atomic<int> arrived{0};
    std::atomic<uint32_t> keep{0};
    std::vector<std::vector<std::chrono::steady_clock::time_point>> begins(threads), ends(threads);
    std::vector<std::thread> readers;
    const uint64_t part = bytes / threads / 256 * 256;
    for (int index = 0; index < threads; ++index) {
        readers.emplace_back([&, index] {
            for (int round = 0; round < rounds; ++round) {
                // Acquire and release: a plain barrier, nothing else is exchanged.
                arrived.fetch_add(1, std::memory_order_acq_rel);
                while (arrived.load(std::memory_order_acquire) < threads * (round + 1)) std::this_thread::yield();
                begins[index].push_back(std::chrono::steady_clock::now());
                const auto* at = reinterpret_cast<const float*>(data + index * part);
                const auto* end = reinterpret_cast<const float*>(data + (index + 1) * part);
                Vector sums[4] = {zero(), zero(), zero(), zero()};
                for (; at < end; at += 4 * VECTOR)
                    for (int each = 0; each < 4; ++each) sums[each] = larger(sums[each], load(at + each * VECTOR));
                ends[index].push_back(std::chrono::steady_clock::now());
                const float found = largest_of(larger(larger(sums[0], sums[1]), larger(sums[2], sums[3])));
                keep.fetch_add(found > 0, std::memory_order_relaxed);  // or the compiler drops the loop
            }
        });
    }
    for (std::thread& reader : readers) reader.join();
    double best = 0;
    for (int round = 0; round < rounds; ++round) {
        auto begin = begins[0][round], end = ends[0][round];
        for (int index = 1; index < threads; ++index) {
            begin = std::min(begin, begins[index][round]);
            end = std::max(end, ends[index][round]);
        }
        best = std::max(best, part * threads / std::chrono::duration<double>(end - begin).count());
    }
    return best;
}

}  // namespace laneformer
