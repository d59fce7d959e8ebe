// The loader: one thread that plays the worker's tape into the ring, step after step.
//
// It waits for room in the ring, for its own copies, and once for a prompt's chunks.  Of copies only IN_FLIGHT_BYTES are under way at
// once: more would only make packets wait behind them (see docs/engine.md).  While there is no room, because the warps wait for
// packets, memory goes on: what comes next on the tape is fetched into the L2 cache, as fast as this worker's share of memory
// gives it and PREFETCH_BYTES ahead at most.
//
// What a page costs here is time in one thread in which nothing is loaded, and it must be less than memory takes for the page.
// So there is one loop for all matrices, what is known of the oldest pages is read before it is needed, and addresses in shared
// memory are plain numbers.
//
// Weights are read once per token and would push everything else out of the L2 cache: packets, norms, keys and values, and the
// kernel's own instructions.  So they are marked as what the cache may drop first.
//
// Keys and values of earlier positions come in the same stream.  Those of a token were written by math warps of this block; before
// there could be a slot for them, those warps have, in this order, written them, fenced (fence.proxy.async: generic writes before
// asynchronous reads) and let go of a later page: one of at least 3 * LAYERS that follow within a step, and SLOTS is no more than that.  Those of a
// prompt's chunks were written by any worker of the lane: `prompt_ready` says that all are there, once, before the first token.
#pragma once

#include "chunk_state.cuh"

namespace laneformer {

class Loader {
public:
    __device__ Loader(const Request& request, Shared& shared, Ring ring, int index)
        : request_(request), shared_(shared), ring_(ring), pages_(known_address(ring.pages)),
          page_bytes_(known_address(shared.page_bytes)), page_start_(known_address(shared.page_start)),
          over_(known_address(&shared.over)), index_(index), lane_(index / WORKERS), place_(index % WORKERS),
          begin_(request.tape + request.run_offset[index]) {}

    __device__ void run(int steps) {
        const int chunked = chunked_tokens(request_.prompt_count, request_.all_logits != nullptr);
        for (int step = 0; step < steps && going_;) {
            const bool alone = step >= chunked;
            tape_ = begin_;
            deadline_ = nanoseconds() + request_.stall_nanoseconds;
#pragma unroll 1
            for (layer_ = 0; layer_ < LAYERS && going_; ++layer_) {
#pragma unroll 1
                for (int part = 0; part < PARTS_OF_LAYER && going_; ++part) {
                    if (part != KEPT) matrix(part);
                    else if (alone) keys_and_values(step);  // of a chunk, attention reads them itself
                }
            }
            if (alone && going_ && (step >= request_.prompt_count - 1 || request_.all_logits)) {
                matrix(HEAD);
                end_ = tape_;
            }
            step = alone ? step + 1 : min(step + CHUNK, chunked);
        }
        // Nothing may still be on its way into shared memory when the block ends, also where the request has been given up.
        deadline_ = nanoseconds() + request_.stall_nanoseconds;
        for (; waited_ != issued_; oldest_.advance(), ++waited_)
            while (!barrier_done(full(oldest_), oldest_.lap) && nanoseconds() < deadline_) {}
    }

private:
    enum Part : int { PROJECT, KEPT, OUTPUT, GATE_UP, DOWN, PARTS_OF_LAYER, HEAD = PARTS_OF_LAYER };

    // This worker's pages of a matrix: `blocks` times `pages`, and bytes that each row of tiles has in a page.
    struct Pages {
        int tiles, blocks, pages, bytes;
    };
    template <class M>
    __device__ static Pages pages_of(int worker) {
        return {M::tiles(worker), M::BLOCKS, M::PAGES_PER_BLOCK, M::STEPS_PER_PAGE * TILE_BYTES};
    }
    __device__ Pages pages_of(int part) const {
        switch (part) {
            case PROJECT: return pages_of<Project>(place_);
            case OUTPUT: return pages_of<Output>(place_);
            case GATE_UP: return pages_of<GateUp>(place_);
            case DOWN: return pages_of<Down>(place_);
            default: return pages_of<Head>(SLICED_HEAD ? place_ : index_);
        }
    }
    __device__ void matrix(int part) {
        const Pages all = pages_of(part);
#pragma unroll 1
        for (int block = 0; block < all.blocks; ++block) {
            const unsigned bytes = (all.tiles * (block + 1) / all.blocks - all.tiles * block / all.blocks) * all.bytes;
            if (bytes == 0) continue;
#pragma unroll 1
            for (int page = 0; page < all.pages; ++page) {
                if (!load(tape_, bytes, passing_)) return;
                tape_ += bytes;
                ahead_ -= min(ahead_, bytes);
            }
        }
    }
    __device__ void keys_and_values(int position) {
        if (!ready_) wait_prompt();
#pragma unroll 1
        for (int task = first_task(place_); task < first_task(place_ + 1); ++task) {
            const Span span = visible_blocks(layer_, task % SPLITS, position);
#pragma unroll 1
            for (int block = span.from, count; block <= span.to; block += count) {
                count = blocks_in_page(layer_, block, span.to);
                const auto* from = request_.cache + cache_address(request_, layer_, lane_, task, block);
                if (!load(from, count * CACHE_BLOCK_BYTES, staying_)) return;
            }
        }
    }
    // Keys and values of a prompt that ran in chunks come from other workers, whose flags the math warps have seen.
    __device__ void wait_prompt() {
        Patience patient(request_.control, deadline_, waiting_place(index_, layer_, AT_CHUNK));
        while (!barrier_done(shared_address(&shared_.prompt_ready), 0) && patient.lasts()) {}
        asm volatile("fence.proxy.async.global;" ::: "memory");
        ready_ = true;
    }

    // The next page.  False where the request is over.
    __device__ bool load(const unsigned char* from, unsigned bytes, unsigned long long policy) {
        // A slot's barrier must be looked at before the slot is used again: two phases later it reads the same.
        while (waited_ != issued_ && (flying_ + bytes > IN_FLIGHT_BYTES || issued_ - waited_ == SLOTS)) wait_oldest();
        const unsigned before = next_.end, place = next_.place(bytes);
        const unsigned start = used_to_ + (place == before ? 0 : RING_BYTES - before);  // counted on and on, skipped bytes too
        while (released_ != issued_ && (start + bytes - used_from_ > RING_BYTES || issued_ - released_ == SLOTS))
            if (!wait_released()) return false;
        load_page(pages_ + place, from, bytes, full(next_), policy);
        store(page_bytes(next_), bytes);
        store(page_start(next_), start);
        if (waited_ == issued_) oldest_bytes_ = bytes;
        if (released_ == issued_) used_from_ = start;
        used_to_ = start + bytes;
        flying_ += bytes;
        next_.advance();
        ++issued_;
        return true;
    }
    __device__ void wait_oldest() {
        Patience patient(request_.control, deadline_, waiting_place(index_, layer_, AT_PAGE));
        while (!barrier_done(full(oldest_), oldest_.lap) && patient.lasts()) {}
        flying_ -= oldest_bytes_;
        oldest_.advance();
        ++waited_;
        oldest_bytes_ = read(page_bytes(oldest_));  // of no page where none is under way: load() mends it
    }
    // Until the warps have let go of the page that they have had longest.  False where the request is over.
    __device__ bool wait_released() {
        if (!barrier_done_now(empty(leaving_), leaving_.lap)) {
            Patience patient(request_.control, deadline_, waiting_place(index_, layer_, AT_SLOT));
            do {
                if (barrier_done_now(over_, 0) || !patient.lasts()) return going_ = false;
                prefetch();
            } while (!barrier_done_now(empty(leaving_), leaving_.lap));
        }
        leaving_.advance();
        ++released_;
        used_from_ = read(page_start(leaving_));  // likewise
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

    __device__ unsigned full(const Cursor& at) const { return ring_.full(at.slot); }
    __device__ unsigned empty(const Cursor& at) const { return ring_.empty(at.slot); }
    __device__ unsigned page_bytes(const Cursor& at) const { return page_bytes_ + at.slot * 4; }
    __device__ unsigned page_start(const Cursor& at) const { return page_start_ + at.slot * 4; }
    __device__ static unsigned read(unsigned address) {
        unsigned value;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
        return value;
    }
    __device__ static void store(unsigned address, unsigned value) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
    }

    const Request& request_;
    Shared& shared_;
    const Ring ring_;
    const unsigned pages_, page_bytes_, page_start_, over_;  // addresses in shared memory
    const int index_, lane_, place_;
    const unsigned char* const begin_;     // of the worker's tape
    const unsigned long long passing_ = passing_policy(), staying_ = staying_policy();
    const unsigned char* tape_ = nullptr;  // what is loaded next
    const unsigned char* end_ = nullptr;
    Cursor next_, oldest_, leaving_;
    unsigned issued_ = 0, waited_ = 0, released_ = 0, flying_ = 0;
    unsigned used_from_ = 0, used_to_ = 0;  // of the ring, counted on and on: where the oldest page begins, where the newest ends
    unsigned oldest_bytes_ = 0;             // of the oldest page under way
    unsigned ahead_ = 0;                    // bytes from `tape_` on that have been fetched into the L2 cache
    long long prefetched_ = 0;
    unsigned long long deadline_ = 0;  // of the step
    int layer_ = 0;
    bool going_ = true, ready_ = false;
};

}  // namespace laneformer
