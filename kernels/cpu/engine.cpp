// The CPU back end: persistent threads that play the plan's workers, and its C interface.
//
// A thread plays several workers phase by phase: all its workers' share of a phase, then the next phase.  A
// wait is always for an earlier phase, so the earliest phase that any thread is in can go on, however few
// threads there are.  Between requests threads sleep on a condition variable.
//
// Compiled for one model by infer/backends/cpu_compile.py, called through infer/backends/cpu_library.py.

#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "bandwidth.h"
#include "worker.h"

namespace laneformer {
namespace {

constexpr int SAMPLER = 0;  // the worker that chooses tokens

class Engine {
public:
    explicit Engine(const Tables& tables) : model_(tables), ending_(tables.threads, tables.pin != 0), step_read_(tables.threads) {
        for (int thread = 0; thread < tables.threads; ++thread) threads_.emplace_back([this, thread] { live(thread); });
    }

    ~Engine() {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            closing_ = true;
            ending_.fail(Outcome::CANCELLED);
        }
        wake_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    // Begin a request and return its number; waits for the one before to end.
    uint64_t start(const Request& request) {
        std::unique_lock<std::mutex> guard(mutex_);
        progress_.wait(guard, [this] { return active_ == 0; });
        request_ = request;
        ending_.reset(request.stall_seconds, request.deadline_seconds);
        *request.result = {static_cast<int32_t>(Outcome::RUNNING), 0, -1, -1, -1};
        for (Epoch& epoch : model_.packets) epoch.value.store(0, std::memory_order_relaxed);
        for (Epoch& epoch : step_read_) epoch.value.store(0, std::memory_order_relaxed);
        sampler_.start(request.sampling, request.uniforms);
        for (int at = 0; at < request.prompt_count; ++at) sampler_.occurred(request.prompt[at]);
        model_.reserve(request.prompt_count + (request.limit > 0 ? request.limit - 1 : 0));
        generated_ = 0;
        model_.step.number = 0;
        prompt_step(0);
        active_ = model_.tables.threads;
        ++generation_;
        wake_.notify_all();
        return generation_;
    }

    // Until more than `have` tokens are there, the request is over, or `seconds` have passed; whether it is over.
    bool wait_tokens(uint64_t number, const Result& result, int32_t have, double seconds) {
        std::unique_lock<std::mutex> guard(mutex_);
        const auto over = [&] { return generation_ != number || active_ == 0; };
        progress_.wait_for(guard, std::chrono::duration<double>(seconds),
                           [&] { return result.tokens > have || over(); });
        return over();
    }

    // End a request, if it still runs, and wait until no thread touches its memory.
    void cancel(uint64_t number) {
        std::unique_lock<std::mutex> guard(mutex_);
        if (generation_ != number) return;
        if (active_ > 0) ending_.fail(Outcome::CANCELLED);
        progress_.wait(guard, [&] { return generation_ != number || active_ == 0; });
    }

private:
    void live(int thread) {
        if (model_.tables.pin) pin(thread);
        Scratch scratch;
        uint64_t seen = 0;
        for (;;) {
            {
                std::unique_lock<std::mutex> guard(mutex_);
                wake_.wait(guard, [&] { return closing_ || generation_ != seen; });
                if (generation_ == seen) return;  // closing
                seen = generation_;
            }
            scratch.prepare(request_.prompt_count + request_.limit);
            run(thread, scratch);
            std::lock_guard<std::mutex> guard(mutex_);
            if (--active_ == 0) finish();
        }
    }

    void finish() {  // under the mutex
        Result& result = *request_.result;
        result.outcome = static_cast<int32_t>(ending_.outcome());
        const Waiting* wait = ending_.earliest_wait();
        if (ending_.outcome() == Outcome::STALLED && wait) {
            result.worker = wait->worker.load(std::memory_order_relaxed);
            result.phase = wait->phase.load(std::memory_order_relaxed);
            result.writer = wait->writer.load(std::memory_order_relaxed);
        }
        progress_.notify_all();
    }

    void run(int thread, Scratch& scratch) {
        WorkerPlayer player(model_, scratch, request_, ending_, thread);
        const Tables& tables = model_.tables;
        const int first = tables.workers * thread / tables.threads;
        const int last = tables.workers * (thread + 1) / tables.threads;
        const int sample_phase = tables.phases - 1;
        Step step;
        for (uint64_t number = 0;; ++number) {
            if (number > 0 && !wait_for(model_.packet(SAMPLER, TOKEN), player.epoch(sample_phase, number - 1), ending_,
                                        {thread, first, 0, SAMPLER}))
                return;
            step = model_.step;
            // Pairs with the acquire in next_step(): the sampler may write the next step over this one.
            publish(step_read_[thread], number + 1);
            if (step.ends) return;
            for (int phase = 0; phase < tables.phases; ++phase) {
                if (ending_.failed()) return;
                if (tables.phase[phase].op == Op::HEAD && !step.wants_logits) continue;
                for (int worker = first; worker < last; ++worker)
                    if (!player.play(worker, phase, step)) return;
            }
            if (first == SAMPLER) {
                if (!next_step(step)) return;
                publish(model_.packet(SAMPLER, TOKEN), player.epoch(sample_phase, number));
            }
        }
    }

    // What runs after `step`, into model_.step.  False where the request has ended.
    bool next_step(const Step& step) {
        const int done = step.start + step.count;
        int32_t token = -1;
        bool ends = false;
        if (request_.all_logits) {
            ends = done == request_.prompt_count;
        } else if (step.wants_logits) {
            token = choose();
            if (token < 0) return false;
            ends = generated_ == request_.limit || stops(token);
        }
        if (!ends && ending_.late(Clock::now())) {
            ending_.fail(Outcome::DEADLINE);
            return false;
        }
        for (Epoch& read : step_read_)
            if (!wait_for(read, step.number + 1, ending_, {0, SAMPLER, model_.tables.phases - 1, SAMPLER})) return false;
        model_.step.number = step.number + 1;
        if (ends) {
            model_.step.ends = true;
            ending_.fail(Outcome::FINISHED);
        } else if (token < 0) {
            prompt_step(done);
        } else {
            model_.step.start = done;
            model_.step.count = 1;
            model_.step.ids[0] = token;
        }
        return true;
    }

    // The next token, told to the host; -1 where the logits are not finite.
    int32_t choose() {
        double log_probability;
        const int32_t token = sampler_.choose(model_.logits.data(), &log_probability);
        if (!std::isfinite(log_probability)) {
            ending_.fail(Outcome::NOT_FINITE);
            return -1;
        }
        {
            std::lock_guard<std::mutex> guard(mutex_);
            request_.tokens[generated_] = token;
            request_.log_probabilities[generated_] = log_probability;
            request_.result->tokens = ++generated_;
        }
        progress_.notify_all();
        return token;
    }

    bool stops(int32_t token) const {
        return std::find(request_.stop_ids, request_.stop_ids + request_.stop_count, token) !=
               request_.stop_ids + request_.stop_count;
    }

    void prompt_step(int start) {
        Step& step = model_.step;
        step.start = start;
        step.count = std::min(CHUNK, request_.prompt_count - start);
        step.wants_logits = request_.all_logits || start + step.count == request_.prompt_count;
        step.ends = false;
        std::copy(request_.prompt + start, request_.prompt + start + step.count, step.ids);
    }

    // To the thread's own core among those that this process may use.
    static void pin(int thread) {
#if defined(__linux__)
        cpu_set_t allowed, one;
        if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
        int wanted = thread % CPU_COUNT(&allowed);
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (!CPU_ISSET(cpu, &allowed) || wanted-- > 0) continue;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
#else
        (void)thread;
#endif
    }

    Model model_;
    Request request_{};
    Ending ending_;
    Sampler sampler_;
    std::vector<Epoch> step_read_;  // by thread: it has its own copy of the step
    std::mutex mutex_;              // guards what follows, and the start and end of a request
    std::condition_variable wake_, progress_;
    uint64_t generation_ = 0;
    int active_ = 0;
    int32_t generated_ = 0;
    bool closing_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace
}  // namespace laneformer

extern "C" {

void* laneformer_open(const laneformer::Tables* tables) {
    try {
        return new laneformer::Engine(*tables);
    } catch (...) {  // out of memory or threads: an exception must not cross into C
        return nullptr;
    }
}
void laneformer_close(void* engine) { delete static_cast<laneformer::Engine*>(engine); }
uint64_t laneformer_start(void* engine, const laneformer::Request* request) {
    try {
        return static_cast<laneformer::Engine*>(engine)->start(*request);
    } catch (...) {  // no memory for keys and values
        return 0;
    }
}
int32_t laneformer_wait(void* engine, uint64_t number, const laneformer::Result* result, int32_t have, double seconds) {
    return static_cast<laneformer::Engine*>(engine)->wait_tokens(number, *result, have, seconds);
}
void laneformer_cancel(void* engine, uint64_t number) { static_cast<laneformer::Engine*>(engine)->cancel(number); }
double laneformer_read_bandwidth(const uint8_t* data, uint64_t bytes, int32_t threads, int32_t rounds) {
    return laneformer::read_bandwidth(data, bytes, threads, rounds);
}
}
