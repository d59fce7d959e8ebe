// The loader: one thread that plays the worker's tape into the ring, step after step.
//
// It waits for nothing but room in the ring, and for its own copies, of which only IN_FLIGHT_BYTES are under way at once:
// more would only make packets wait behind them (see docs/engine.md).  While there is no room, because the warps wait for
// packets, memory goes on: what comes next on the tape is fetched into the L2 cache, as fast as this worker's share of memory
// gives it and PREFETCH_BYTES ahead at most.
//
// Keys and values of earlier positions come in the same stream.  They were written by math warps of this block; before
// there could be a slot for them, those warps have, in this order, written them, fenced (fence.proxy.async: generic writes before
// asynchronous reads), passed a barrier and let go of a later page.  SLOTS is kept below the pages of a step for that.
#pragma once

#include "chunk_state.cuh"

namespace laneformer {

class Loader {
public:
    __device__ Loader(const Request& request, Shared& shared, Ring ring, int index)
        : request_(request), shared_(shared), ring_(ring), index_(index), lane_(index / WORKERS), place_(index % WORKERS),
          begin_(request.tape + request.run_offset[index]) {}

    __device__ void run(int steps) {
        const int chunked = chunked_tokens(request_.prompt_count, request_.all_logits != nullptr);
        for (int token = 0; token < chunked && going_; token += CHUNK) {  // their attention reads keys and values itself
            begin_step();
            for (layer_ = 0; layer_ < LAYERS && going_; ++layer_) {
                matrix<Project>(place_);
                matrix<Output>(place_);
                matrix<GateUp>(place_);
                matrix<Down>(place_);
            }
        }
        for (int step = chunked; step < steps && going_; ++step) {
            begin_step();
            for (layer_ = 0; layer_ < LAYERS && going_; ++layer_) {
                matrix<Project>(place_);
                cache(step);
                matrix<Output>(place_);
                matrix<GateUp>(place_);
                matrix<Down>(place_);
            }
            if (step < request_.prompt_count - 1 && !request_.all_logits) continue;
            matrix<Head>(SLICED_HEAD ? place_ : index_);
            end_ = tape_;
        }
        // Nothing may still be on its way into shared memory when the block ends.
        deadline_ = nanoseconds() + request_.stall_nanoseconds;
        for (; waited_ != issued_; oldest_.advance(), ++waited_)  // also where the request has been given up
            while (!barrier_done(ring_.full + oldest_.slot, oldest_.lap) && nanoseconds() < deadline_) {}
    }

private:
    __device__ void begin_step() {
        tape_ = begin_;
        deadline_ = nanoseconds() + request_.stall_nanoseconds;
    }
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
                ahead_ -= min(ahead_, bytes);
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
        Patience patient(request_.control, deadline_, waiting_place(index_, layer_, AT_CHUNK));
        while (!*const_cast<volatile unsigned*>(&shared_.prompt_ready) && patient.lasts()) {}
        asm volatile("fence.proxy.async.global;" ::: "memory");
        ready_ = true;
    }
    __device__ void load(const unsigned char* from, unsigned bytes) {
        // A slot's barrier must be looked at before the slot is used again: two phases later it reads the same.
        while (waited_ != issued_ && (flying_ + bytes > IN_FLIGHT_BYTES || issued_ - waited_ == SLOTS)) wait_oldest();
        const unsigned before = next_.end, place = next_.place(bytes);
        const unsigned start = used_to_ + (place == before ? 0 : RING_BYTES - before);  // counted on and on, skipped bytes too
        while (released_ != issued_ && (start + bytes - used_from() > RING_BYTES || issued_ - released_ == SLOTS))
            if (!wait_released()) return;
        load_page(ring_, next_.slot, place, from, bytes);
        shared_.page_bytes[next_.slot] = bytes;
        shared_.page_start[next_.slot] = start;
        used_to_ = start + bytes;
        flying_ += bytes;
        next_.advance();
        ++issued_;
    }
    __device__ unsigned used_from() const { return shared_.page_start[released_cursor_.slot]; }
    __device__ void wait_oldest() {
        Patience patient(request_.control, deadline_, waiting_place(index_, layer_, AT_PAGE));
        while (!barrier_done(ring_.full + oldest_.slot, oldest_.lap) && patient.lasts()) {}
        flying_ -= shared_.page_bytes[oldest_.slot];
        oldest_.advance();
        ++waited_;
    }
    // Until the warps have let go of the page that they have had longest.  False where the request is over.
    __device__ bool wait_released() {
        Patience patient(request_.control, deadline_, waiting_place(index_, layer_, AT_SLOT));
        while (!barrier_done_now(ring_.empty + released_cursor_.slot, released_cursor_.lap)) {
            if (*const_cast<volatile unsigned*>(&shared_.ended) || !patient.lasts()) {
                going_ = false;
                return false;
            }
            prefetch();
        }
        released_cursor_.advance();
        ++released_;
        return true;
    }
    // The next piece of the tape, which begins again after its end.  Before the end is known there is nothing to do.
    __device__ void prefetch() {
        if (end_ == nullptr || clock64() - prefetched_ < PIECE_CYCLES) return;
        if (ahead_ + PIECE_BYTES > min(static_cast<long long>(PREFETCH_BYTES), static_cast<long long>(end_ - begin_))) return;
        const unsigned char* at = tape_ + ahead_;
        if (at >= end_) at = begin_ + (at - end_);
        const unsigned bytes = min(static_cast<long long>(PIECE_BYTES), static_cast<long long>(end_ - at));
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes) : "memory");
        ahead_ += bytes;
        prefetched_ = clock64();
    }
    static constexpr unsigned PIECE_BYTES = 4096;

    const Request& request_;
    Shared& shared_;
    const Ring ring_;
    const int index_, lane_, place_;
    const unsigned char* const begin_;       // of the worker's tape
    const unsigned char* tape_ = nullptr;    // what is loaded next
    const unsigned char* end_ = nullptr;
    Cursor next_, oldest_, released_cursor_;
    unsigned issued_ = 0, waited_ = 0, released_ = 0, flying_ = 0, used_to_ = 0;
    unsigned ahead_ = 0;  // bytes from `tape_` on that have been fetched into the L2 cache
    long long prefetched_ = 0;
    unsigned long long deadline_ = 0;  // of the step
    int layer_ = 0;
    bool going_ = true, ready_ = false;
};

}  // namespace laneformer
