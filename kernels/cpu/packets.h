// Packets, waiting for them, and how waiting ends when nothing comes.
//
// A packet is a run of values in a buffer and the epoch at which they were written.  The writer stores
// the values and then the epoch with release order; a reader loads the epoch with acquire order until it is
// the one it expects, and then reads the values.  That release and that acquire are the only pair that
// orders values.  Nothing is reset within a request: epochs only grow.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace laneformer {

using Clock = std::chrono::steady_clock;

enum class Outcome : int32_t { FINISHED = 0, CANCELLED = 1, DEADLINE = 2, STALLED = 3, NOT_FINITE = 4, RUNNING = 5 };

struct alignas(64) Epoch {  // a cache line each: a reader's polling disturbs one writer only
    std::atomic<uint64_t> value{0};
};

// How a request ends early: the first to call fail() says why, and every wait looks here too.
struct Ending {
    std::atomic<int32_t> outcome{static_cast<int32_t>(Outcome::RUNNING)};
    // Who waited, in which phase, for whom; written before `described`, read after it.
    int32_t worker = -1, phase = -1, writer = -1;
    std::atomic<bool> described{false};
    Clock::time_point deadline = Clock::time_point::max();
    std::chrono::duration<double> stall{60};

    bool failed() const {
        // Relaxed: it carries no data, only tells a worker to go home.
        return outcome.load(std::memory_order_relaxed) != static_cast<int32_t>(Outcome::RUNNING);
    }
    bool fail(Outcome why, int32_t at_worker = -1, int32_t at_phase = -1, int32_t missing = -1) {
        auto expected = static_cast<int32_t>(Outcome::RUNNING);
        // Relaxed: what is written next is published by `described`.
        if (!outcome.compare_exchange_strong(expected, static_cast<int32_t>(why), std::memory_order_relaxed))
            return false;
        worker = at_worker;
        phase = at_phase;
        writer = missing;
        // Pairs with the acquire load of `described` in engine.cpp.
        described.store(true, std::memory_order_release);
        return true;
    }
};

inline void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Wait until `epoch` has reached `expected`; false where the request has ended instead.
// First the core is kept, then offered to others, then given away: with more threads than free cores
// the writer may need this very core.
inline bool wait_for(const Epoch& epoch, uint64_t expected, Ending& ending, int32_t worker, int32_t phase,
                     int32_t writer) {
    constexpr int PAUSES = 1000, YIELDS = 100;
    for (int spin = 0; spin < PAUSES; ++spin) {
        // Pairs with the release store in publish(): the values of the packet are visible after it.
        if (epoch.value.load(std::memory_order_acquire) >= expected) return true;
        pause_briefly();
    }
    const auto began = Clock::now();
    for (int turn = 0;; ++turn) {
        if (epoch.value.load(std::memory_order_acquire) >= expected) return true;  // pairs like the one above
        if (ending.failed()) return false;
        if (turn < YIELDS)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        if (turn % 16 == 15) {
            const auto now = Clock::now();
            if (now > ending.deadline) ending.fail(Outcome::DEADLINE);
            if (now - began > ending.stall) ending.fail(Outcome::STALLED, worker, phase, writer);
        }
    }
}

inline void publish(Epoch& epoch, uint64_t value) {
    // Pairs with the acquire loads in wait_for(): everything written before is part of the packet.
    epoch.value.store(value, std::memory_order_release);
}

}  // namespace laneformer
