// Embeddings: rows of a matrix of their own, or, where it is tied, of the head, whose rows lie in tiles in many runs.
//
// Shared memory: the first layer's inputs, their squares and the worker's own rows, before the barrier that ends embed().  Every
// worker reads the whole embedding, so there is nothing to exchange.
#pragma once

#include "layer.cuh"

namespace laneformer {

// Four columns of a tied embedding, which lies in the tiles of the head.
__device__ inline uint2 tied_embedding(const Worker& w, int token, int group) {
    const int lane = SLICED_HEAD ? token / HEAD_SLICE : 0, row = SLICED_HEAD ? token % HEAD_SLICE : token;
    const int workers = SLICED_HEAD ? WORKERS : ALL_WORKERS, tile = row / TILE;
    int worker = tile * workers / divide_up(HEAD_SLICE, TILE);  // about; tiles are shared out by rounding down
    while (Head::first_tile(worker) > tile) --worker;
    while (Head::first_tile(worker + 1) <= tile) ++worker;
    const int tiles = Head::tiles(worker), own = tile - Head::first_tile(worker);
    int block = 0;
    while (Head::block_start(tiles, block + 1) <= own) ++block;
    const int start = Head::block_start(tiles, block), height = Head::block_start(tiles, block + 1) - start;
    const long long head = w.request.run_offset[ALL_WORKERS + lane * WORKERS + worker];
    const int step = group * GROUP / TILE, column = group % (TILE / GROUP), r = row % TILE;
    const long long at = head + static_cast<long long>(start) * Head::STEPS * TILE_BYTES +
                         (static_cast<long long>(step) * height + own - start) * TILE_BYTES + (r % 8 * 4 + column) * 16 + r / 8 * 4;
    const auto* bits = reinterpret_cast<const unsigned*>(w.request.tape + at);
    return make_uint2(__ldg(bits), __ldg(bits + 2));
}

__device__ inline float4 embedding_group(const Worker& w, int token, int group) {
    const uint2 bits = w.request.embedding == nullptr
                           ? tied_embedding(w, token, group)
                           : __ldg(reinterpret_cast<const uint2*>(w.request.embedding) +
                                   static_cast<long long>(token) * HIDDEN_GROUPS + group);
    const float2 low = widened_pair(bits.x), high = widened_pair(bits.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

// The embedding of `token`, the same for all lanes: inputs of the first layer, and the worker's own rows.
__device__ inline void embed(Worker& w, int token) {
    w.look_round();
    Layer layer{w};
    const float4* scale = reinterpret_cast<const float4*>(layer.norm(0));
    float squares = 0;
    for (int group = w.thread; group < HIDDEN_GROUPS; group += MATH_THREADS) {
        const float4 values = embedding_group(w, token, group);
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
