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
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace laneformer {

using Clock = std::chrono::steady_clock;

enum class Outcome : int32_t { FINISHED = 0, CANCELLED = 1, DEADLINE = 2, STALLED = 3, NOT_FINITE = 4, RUNNING = 5 };

struct alignas(64) Epoch {  // a cache line each: a reader's polling disturbs one writer only
    std::atomic<uint64_t> value{0};
};

// What a thread has been waiting for, once that takes long; all relaxed, it only serves a message.
struct alignas(64) Waiting {
    static constexpr uint64_t NOTHING = UINT64_MAX;
    std::atomic<uint64_t> expected{NOTHING};
    std::atomic<int32_t> worker{-1}, phase{-1}, writer{-1};
};

// How a request ends: the first to call fail() says why, and every wait looks here too.
class Ending {
public:
    // A thread with a core of its own keeps it for about a millisecond: giving it away costs a time slice
    // of whoever else runs here.  Where threads share cores, the writer may need this very core.
    Ending(int threads, bool own_cores) : pauses_(own_cores ? 20000 : 200), waiting_(threads) {}

    int pauses() const { return pauses_; }

    // Between requests only; the engine's mutex orders it.
    void reset(double stall_seconds, double deadline_seconds) {
        outcome_.store(static_cast<int32_t>(Outcome::RUNNING), std::memory_order_relaxed);
        stall_ = std::chrono::duration<double>(stall_seconds);
        deadline_ = Clock::time_point::max();
        if (deadline_seconds > 0)
            deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(deadline_seconds));
        for (Waiting& waiting : waiting_) waiting.expected.store(Waiting::NOTHING, std::memory_order_relaxed);
    }

    // Relaxed: it carries no data, only tells a worker to go home.
    Outcome outcome() const { return static_cast<Outcome>(outcome_.load(std::memory_order_relaxed)); }
    bool failed() const { return outcome() != Outcome::RUNNING; }
    bool late(Clock::time_point now) const { return now > deadline_; }
    bool stalled(Clock::duration waited) const { return waited > stall_; }

    void fail(Outcome why) {
        auto expected = static_cast<int32_t>(Outcome::RUNNING);
        outcome_.compare_exchange_strong(expected, static_cast<int32_t>(why), std::memory_order_relaxed);
    }

    Waiting& waiting(int thread) { return waiting_[thread]; }

    // The wait for the earliest packet: the others are late only because of it.
    const Waiting* earliest_wait() const {
        const Waiting* found = nullptr;
        uint64_t first = Waiting::NOTHING;
        for (const Waiting& waiting : waiting_) {
            const uint64_t expected = waiting.expected.load(std::memory_order_relaxed);
            if (expected < first) {
                first = expected;
                found = &waiting;
            }
        }
        return found;
    }

private:
    std::atomic<int32_t> outcome_{static_cast<int32_t>(Outcome::RUNNING)};
    Clock::time_point deadline_ = Clock::time_point::max();
    std::chrono::duration<double> stall_{60};
    const int pauses_;
    std::vector<Waiting> waiting_;  // by thread
};

inline void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Who waits and for whom, for the message if it takes too long.
struct Wait {
    int32_t thread, worker, phase, writer;
};

// Wait until `epoch` has reached `expected`; false where the request has ended instead.
// First the core is kept, then offered to others, then given away.
inline bool wait_for(const Epoch& epoch, uint64_t expected, Ending& ending, const Wait& wait) {
    constexpr int YIELDS = 100;
    for (int spin = 0; spin < ending.pauses(); ++spin) {
        // Pairs with the release store in publish(): the values of the packet are visible after it.
        if (epoch.value.load(std::memory_order_acquire) >= expected) return true;
        pause_briefly();
    }
    Waiting& waiting = ending.waiting(wait.thread);
    waiting.worker.store(wait.worker, std::memory_order_relaxed);
    waiting.phase.store(wait.phase, std::memory_order_relaxed);
    waiting.writer.store(wait.writer, std::memory_order_relaxed);
    waiting.expected.store(expected, std::memory_order_relaxed);
    const auto began = Clock::now();
    for (int turn = 0;; ++turn) {
        if (epoch.value.load(std::memory_order_acquire) >= expected) {  // pairs like the one above
            waiting.expected.store(Waiting::NOTHING, std::memory_order_relaxed);
            return true;
        }
        if (ending.failed()) return false;
        if (turn < YIELDS)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        if (turn % 16 == 15) {
            const auto now = Clock::now();
            if (ending.late(now)) ending.fail(Outcome::DEADLINE);
            if (ending.stalled(now - began)) ending.fail(Outcome::STALLED);
        }
    }
}

inline void publish(Epoch& epoch, uint64_t value) {
    // Pairs with the acquire loads in wait_for(): everything written before is part of the packet.
    epoch.value.store(value, std::memory_order_release);
}

}  // namespace laneformer
