// Where keys and values lie: which split has which blocks of 16 positions, and which of them a query looks at.
//
// Blocks of the whole context are dealt to the SPLITS tasks of a key head in runs of RUN_BLOCKS, in turn.  A task has room for
// cache_slots() of its own, and its block after those takes the place of the oldest.  The loader, attention of a token and of a
// chunk all go by this.  tests/infer/test_cuda_cache_blocks.py runs it on a processor.
#pragma once

#include "shape.cuh"

namespace laneformer {

// Blocks of 16 positions that one task of a layer has room for.
__device__ inline int cache_slots(int layer) { return WINDOW[layer] ? SLIDING_SLOTS : FULL_SLOTS; }
// Which of them a block of its own has.  Two remainders by constants: one by a number that the compiler does not know would cost the
// loader, for every page, a large part of the time that the page takes.
__device__ inline int cache_slot(int layer, int block) { return WINDOW[layer] ? block % SLIDING_SLOTS : block % FULL_SLOTS; }

// Which split has a block of the whole context, and where among its own.
struct BlockPlace {
    int split, index;
};
__device__ inline BlockPlace place_of_block(int block) {
    const int run = block / RUN_BLOCKS;
    return {run % SPLITS, run / SPLITS * RUN_BLOCKS + block % RUN_BLOCKS};
}
__device__ inline int block_at(BlockPlace at) {
    return (at.index / RUN_BLOCKS * SPLITS + at.split) * RUN_BLOCKS + at.index % RUN_BLOCKS;
}
__device__ inline int oldest_visible(int layer, int position) {
    return WINDOW[layer] && position >= WINDOW[layer] ? position - WINDOW[layer] + 1 : 0;
}

// Runs of blocks that a query at `position` looks at, as far as splits go: the first, and how many splits have some.
struct Runs {
    int first, count;

    // Whether the split has blocks among them.  If not, its task has nothing to tell, and nobody waits for it.
    __device__ bool has(int split) const { return static_cast<int>(static_cast<unsigned>(split - first) % SPLITS) < count; }
};
__device__ inline Runs visible_runs(int layer, int position) {
    const int first = oldest_visible(layer, position) / TILE / RUN_BLOCKS;
    return {first, min(position / TILE / RUN_BLOCKS - first + 1, SPLITS)};
}

// Blocks of its own, the from-th to the to-th, that a split has among those; none where to < from.
struct Span {
    int from, to;
};
__device__ inline Span visible_blocks(int layer, int split, int position) {
    const int low = oldest_visible(layer, position) / TILE, high = position / TILE;
    const int low_run = low / RUN_BLOCKS, high_run = high / RUN_BLOCKS;
    const int from = low_run <= split ? 0 : divide_up(low_run - split, SPLITS);
    const int to = high_run < split ? -1 : (high_run - split) / SPLITS;
    const bool begins = from * SPLITS + split == low_run, ends = to * SPLITS + split == high_run;
    return {from * RUN_BLOCKS + (begins ? low % RUN_BLOCKS : 0), to * RUN_BLOCKS + (ends ? high % RUN_BLOCKS : RUN_BLOCKS - 1)};
}
// How many of them, from `block` on, one page holds: a page does not go round the end of the ring.
__device__ inline int blocks_in_page(int layer, int block, int to) {
    return min(min(CACHE_BLOCKS_PER_PAGE, to - block + 1), cache_slots(layer) - cache_slot(layer, block));
}

}  // namespace laneformer
