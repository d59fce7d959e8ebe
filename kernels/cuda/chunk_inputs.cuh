// Inputs of a chunk's products on their way into shared memory: one thread copies them, run after run, and eight warps use them.
//
// A run is RUN_STEPS times 16 columns of all tokens.  Its COPIES places are filled in turn.  copied[place] completes when the
// bytes are there, freed[place] when all warps are through with them; inputs_ready once for each block of rows of each product,
// when other workers have stored what is copied, and when these warps are through with what lay in this memory before.  That
// the stores are seen by bulk copies is the math warps' fence before they arrive there.  This thread and the warps count runs alike,
// over all products and chunks of the request.
#pragma once

#include "chunk_state.cuh"

namespace laneformer {

class ChunkInputs {
public:
    __device__ ChunkInputs(const Request& request, Shared& shared, int index) : request_(request), shared_(shared), index_(index) {}

    __device__ void run() {
        const int chunked = chunked_tokens(request_.prompt_count, request_.all_logits != nullptr);
        for (int start = 0; start < chunked && going_; start += CHUNK) {
            bytes_ = divide_up(min(CHUNK, chunked - start), 8) * 256;
            deadline_ = nanoseconds() + request_.stall_nanoseconds;
#pragma unroll 1
            for (layer_ = 0; layer_ < LAYERS && going_; ++layer_) {
                matrix<Project>(HIDDEN_INPUTS, HIDDEN_INPUT_BYTES);
                matrix<Output>(MIXED_INPUTS, MIXED_INPUT_BYTES);
                matrix<GateUp>(HIDDEN_INPUTS, HIDDEN_INPUT_BYTES);
                matrix<Down>(UNIT_INPUTS, UNIT_INPUT_BYTES);
            }
        }
        // Nothing may still be on its way into shared memory when the block ends, also where the request has been given up.
        const unsigned long long until = nanoseconds() + request_.stall_nanoseconds;
        for (int place = 0; place < COPIES; ++place)
            if (runs_ > place)
                while (!barrier_done(shared_address(&shared_.copied[place]), (runs_ - 1 - place) / COPIES & 1) && nanoseconds() < until) {}
    }

private:
    template <class M>
    __device__ void matrix(long long region, long long region_bytes) {
        const int tiles = M::tiles(index_ % WORKERS);
        const unsigned char* from = request_.chunk_memory + region + region_bytes * (index_ / WORKERS);
#pragma unroll 1
        for (int block = 0; block < M::BLOCKS && going_; ++block)
            if (M::block_start(tiles, block) != M::block_start(tiles, block + 1)) copy(from, M::STEPS / RUN_STEPS);
    }
    __device__ void copy(const unsigned char* from, int runs) {
        wait(&shared_.inputs_ready, products_++ & 1);
#pragma unroll 1
        for (; runs > 0 && going_; --runs, ++runs_, from += RUN_BYTES) {
            const int place = runs_ % COPIES;
            if (runs_ >= COPIES) wait(&shared_.freed[place], (runs_ / COPIES - 1) & 1);
            if (!going_) return;
#pragma unroll 1
            for (int step = 0; step < RUN_STEPS; ++step)  // what lies behind the chunk's last token is not copied
                load_page(shared_address(shared_.chunk.inputs[place]) + step * INPUT_TILE_BYTES, from + step * INPUT_TILE_BYTES, bytes_,
                          shared_address(&shared_.copied[place]), policy_);
        }
    }
    __device__ void wait(const unsigned long long* barrier, unsigned parity) {
        Patience patient(request_.control, deadline_, waiting_place(index_, layer_, AT_CHUNK));
        while (!barrier_done(shared_address(barrier), parity))
            if (!patient.lasts()) {
                going_ = false;
                return;
            }
    }

    const Request& request_;
    Shared& shared_;
    const int index_;
    const unsigned long long policy_ = staying_policy();
    unsigned long long deadline_ = 0;  // of the chunk
    unsigned bytes_ = 0;               // of 16 columns of the chunk's tokens
    unsigned runs_ = 0, products_ = 0;
    int layer_ = 0;
    bool going_ = true;
};

}  // namespace laneformer
