// What a block keeps in shared memory besides the ring of pages, and so how many pages the ring has room for.
#pragma once

#include "shape.cuh"

namespace laneformer {

constexpr int OWN_GROUPS = Output::MOST_TILES * (TILE / GROUP);  // of the residual stream, at most
constexpr int HEAD_ROW_WORDS = divide_up(Head::MOST_TILES * TILE, 32);

struct Shared {
    unsigned long long full[16], empty[16];
    unsigned page_bytes[16];                               // of the pages under way; the loader's own
    unsigned short parts[PARTS * PART_STRIDE];             // inputs of the product at hand
    float sums[2][CLASSES][BLOCK_TILES * TILE];            // its rows, by class; twice, block by block
    float squares[2][MATH_WARPS];
    float4 residual[OWN_GROUPS];                           // the worker's own rows, in float32
    float4 late[LANES > 1 ? LANES - 1 : 1][OWN_GROUPS];    // what other lanes sent for them
    unsigned short queries[2][QUERIES_PER_KEY][HEAD_TILES * TILE];  // upper and lower part
    unsigned short key[HEAD_TILES * TILE], value[HEAD_TILES * TILE];
    float part_most[MATH_WARPS][QUERIES_PER_KEY], part_total[MATH_WARPS][QUERIES_PER_KEY];
    float4 part_mixed[MATH_WARPS][QUERIES_PER_KEY][HEAD_GROUPS];
    float lane_factor[LANES];
    float best[MATH_WARPS], best_raw[MATH_WARPS], most[MATH_WARPS], total[MATH_WARPS];
    int best_id[MATH_WARPS];
    unsigned flags[MATH_WARPS];
    unsigned occurred[HEAD_ROW_WORDS];                     // of the worker's own rows of the head
    unsigned ended;                                        // tells the loader and the watcher
    unsigned cancelled;                                    // told by the watcher, in worker 0
};

constexpr int RING_OFFSET = round_up(static_cast<int>(sizeof(Shared)), 128);
constexpr int STAGES = smaller(smaller(16, 3 * LAYERS), (SHARED_BYTES - RING_OFFSET) / STAGE_BYTES);
static_assert(STAGES >= 2, "no room in shared memory for two pages");

}  // namespace laneformer
