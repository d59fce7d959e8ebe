// The loader: one thread that plays the worker's tape into the ring, step after step.
//
// It waits for nothing but free stages, and for its own copies, of which only IN_FLIGHT_BYTES are under way at once: more
// would only make packets wait behind them (see docs/engine.md).  Keys and values of earlier positions come in the same
// stream.  They were written by math warps of this block; before a stage could be free for them, those warps have, in this
// order, written them, fenced (fence.proxy.async: generic writes before asynchronous reads), passed a barrier and let
// go of a later page.  STAGES is kept below the pages of a step for that.
#pragma once

#include "chunk_state.cuh"

namespace laneformer {

class Loader {
public:
    __device__ Loader(const Request& request, Shared& shared, Ring ring, int index)
        : request_(request), shared_(shared), ring_(ring), index_(index), lane_(index / WORKERS), place_(index % WORKERS) {}

    __device__ void run(int steps) {
        const int chunked = chunked_tokens(request_.prompt_count, request_.all_logits != nullptr);
        for (int token = 0; token < chunked && going_; token += CHUNK) {  // their attention reads keys and values itself
            tape_ = request_.tape + request_.run_offset[index_];
            for (layer_ = 0; layer_ < LAYERS && going_; ++layer_) {
                matrix<Project>(place_);
                matrix<Output>(place_);
                matrix<GateUp>(place_);
                matrix<Down>(place_);
            }
        }
        for (int step = chunked; step < steps && going_; ++step) {
            tape_ = request_.tape + request_.run_offset[index_];
            for (layer_ = 0; layer_ < LAYERS && going_; ++layer_) {
                matrix<Project>(place_);
                cache(step);
                matrix<Output>(place_);
                matrix<GateUp>(place_);
                matrix<Down>(place_);
            }
            if (step >= request_.prompt_count - 1 || request_.all_logits) matrix<Head>(SLICED_HEAD ? place_ : index_);
        }
        // Nothing may still be on its way into shared memory when the block ends.
        while (waited_ != issued_) wait_oldest();
    }

private:
    template <class M>
    __device__ void matrix(int worker) {
        const int tiles = M::tiles(worker);
        for (int block = 0; block < M::BLOCKS; ++block) {
            const int rows = M::block_start(tiles, block + 1) - M::block_start(tiles, block);
            if (rows == 0) continue;
            const unsigned bytes = rows * M::STEPS_PER_PAGE * TILE_BYTES;
            for (int page = 0; page < M::PAGES_PER_BLOCK && going_; ++page) {
                load(tape_, bytes);
                tape_ += bytes;
            }
        }
    }
    __device__ void cache(int position) {
        if (!ready_) wait_prompt();
        const int slots = cache_slots(layer_);
        for (int task = first_task(place_); task < first_task(place_ + 1); ++task) {
            const Span span = visible_blocks(layer_, task % SPLITS, position, position);
            for (int block = span.from, count; block <= span.to && going_; block += count) {
                count = blocks_in_page(block, span.to, slots);
                load(request_.cache + cache_address(request_, layer_, lane_, task, block, slots), count * CACHE_BLOCK_BYTES);
            }
        }
    }
    // Keys and values of a prompt that ran in chunks come from other workers, whose flags the math warps have seen.
    __device__ void wait_prompt() {
        Patience patient(request_.control, nanoseconds() + request_.stall_nanoseconds, waiting_place(index_, layer_, AT_CHUNK));
        while (!*const_cast<volatile unsigned*>(&shared_.prompt_ready) && patient.lasts()) {}
        asm volatile("fence.proxy.async.global;" ::: "memory");
        ready_ = true;
    }
    __device__ void load(const unsigned char* from, unsigned bytes) {
        // A stage's barrier must be looked at before the stage is used again: two phases later it reads the same.
        while (waited_ != issued_ && (flying_ + bytes > IN_FLIGHT_BYTES || issued_ - waited_ == STAGES)) wait_oldest();
        if (laps_ > 0) {
            Patience patient(request_.control, nanoseconds() + request_.stall_nanoseconds, waiting_place(index_, layer_, AT_SLOT));
            while (!barrier_done(ring_.empty + next_.stage, next_.lap ^ 1)) {
                if (*const_cast<volatile unsigned*>(&shared_.ended) || !patient.lasts()) {
                    going_ = false;
                    return;
                }
            }
        }
        load_page(ring_, next_.stage, from, bytes);
        shared_.page_bytes[next_.stage] = bytes;
        flying_ += bytes;
        next_.advance();
        if (next_.stage == 0) laps_ = 1;
        ++issued_;
    }
    __device__ void wait_oldest() {
        Patience patient(request_.control, nanoseconds() + request_.stall_nanoseconds, waiting_place(index_, layer_, AT_PAGE));
        while (!barrier_done(ring_.full + oldest_.stage, oldest_.lap) && patient.lasts()) {}
        flying_ -= shared_.page_bytes[oldest_.stage];
        oldest_.advance();
        ++waited_;
    }

    const Request& request_;
    Shared& shared_;
    const Ring ring_;
    const int index_, lane_, place_;
    const unsigned char* tape_ = nullptr;
    Cursor next_, oldest_;
    unsigned issued_ = 0, waited_ = 0, flying_ = 0;
    int laps_ = 0, layer_ = 0;
    bool going_ = true, ready_ = false;
};

}  // namespace laneformer
