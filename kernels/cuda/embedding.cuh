// Embeddings: rows of a matrix of their own, or, where it is tied, of the head, whose rows lie in tiles in many runs.
//
// Shared memory: the first layer's inputs, their squares and the worker's own rows, before the barrier that ends embed().  Every
// worker reads the whole embedding, so there is nothing to exchange.
#pragma once

#include "layer.cuh"

namespace laneformer {

// A token's row.  Where it lies is worked out once for all its columns: for a tied embedding that takes a while.
class EmbeddingRow {
public:
    __device__ EmbeddingRow(const Worker& w, int token) : tied_(w.request.embedding == nullptr) {
        if (!tied_) {
            from_ = reinterpret_cast<const unsigned char*>(w.request.embedding + static_cast<long long>(token) * HIDDEN);
            return;
        }
        const int lane = SLICED_HEAD ? token / HEAD_SLICE : 0, row = SLICED_HEAD ? token % HEAD_SLICE : token;
        const int workers = SLICED_HEAD ? WORKERS : ALL_WORKERS, tile = row / TILE;
        int worker = tile * workers / divide_up(HEAD_SLICE, TILE);  // about; tiles are shared out by rounding down
        while (Head::first_tile(worker) > tile) --worker;
        while (Head::first_tile(worker + 1) <= tile) ++worker;
        const int tiles = Head::tiles(worker), own = tile - Head::first_tile(worker);
        int block = 0;
        while (Head::block_start(tiles, block + 1) <= own) ++block;
        const int start = Head::block_start(tiles, block), height = Head::block_start(tiles, block + 1) - start, r = row % TILE;
        from_ = w.request.tape + w.request.run_offset[ALL_WORKERS + lane * WORKERS + worker] +
                static_cast<long long>(start) * Head::STEPS * TILE_BYTES + (own - start) * TILE_BYTES + r % 8 * 4 * 16 + r / 8 * 4;
        step_bytes_ = height * TILE_BYTES;
    }
    __device__ float4 group(int group) const {  // four columns
        uint2 bits;
        if (tied_) {
            const auto* at = reinterpret_cast<const unsigned*>(from_ + group / (TILE / GROUP) * step_bytes_ + group % (TILE / GROUP) * 16);
            bits = make_uint2(__ldg(at), __ldg(at + 2));
        } else {
            bits = __ldg(reinterpret_cast<const uint2*>(from_) + group);
        }
        const float2 low = widened_pair(bits.x), high = widened_pair(bits.y);
        return make_float4(low.x, low.y, high.x, high.y);
    }

private:
    const bool tied_;
    const unsigned char* from_;
    int step_bytes_ = 0;  // of a tied row, from one tile's columns to the next one's
};

// The embedding of `token`, the same for all lanes: inputs of the first layer, and the worker's own rows.
__device__ inline void embed(Worker& w, int token) {
    w.look_round();
    Layer layer{w};
    const float4* scale = reinterpret_cast<const float4*>(layer.norm(0));
    const EmbeddingRow row(w, token);
    float squares = 0;
    for (int group = w.thread; group < HIDDEN_GROUPS; group += MATH_THREADS) {
        const float4 values = row.group(group);
        squares += sum_of_squares(values);
        w.store_inputs(group, times(values, __ldg(scale + group)));
        const int own = group - layer.first_group();
        if (own >= 0 && own < layer.own_groups()) w.shared.token.residual[own] = values;
    }
    w.pad_inputs<HIDDEN>();
    w.sum_squares(squares);
    math_barrier();
}

}  // namespace laneformer
