// kernels/cuda/cache_blocks.cuh on a processor: keys of a whole request are kept where it says, and every key that a query
// looks at must be found there.
#include <algorithm>
#include <cstdio>
#include <vector>

#define __device__
#define __host__
#define __constant__
using std::min;

#include "cache_blocks.cuh"

using namespace laneformer;

// For each split and each of its slots 16 positions, -1 where none was kept yet; of one key head in one layer.
struct Cache {
    const int layer, slots = cache_slots(layer);
    std::vector<int> positions = std::vector<int>(SPLITS * slots * TILE, -1);

    int& at(BlockPlace place, int position) { return positions[(place.split * slots + cache_slot(layer, place.index)) * TILE + position % TILE]; }
    void keep(int position) { at(place_of_block(position / TILE), position) = position; }
    bool has(int position) { return at(place_of_block(position / TILE), position) == position; }
};

static bool fails(const char* what, int layer, int position, int found) {
    std::printf("%s: layer %d, position %d, %d\n", what, layer, position, found);
    return false;
}

// A chunk of a prompt: all of it is kept, then each token looks.
static bool chunk(Cache& cache, int start, int end) {
    for (int position = start; position < end; ++position) cache.keep(position);
    for (int position = start; position < end; ++position)
        for (int seen = oldest_visible(cache.layer, position); seen <= position; ++seen)
            if (!cache.has(seen)) return fails("not found by a chunk", cache.layer, position, seen);
    return true;
}

// A token alone: what the loader reads, page by page, before the token's own key is kept.
static bool token(Cache& cache, int position) {
    const int low = oldest_visible(cache.layer, position) / TILE, high = position / TILE;
    const Runs runs = visible_runs(cache.layer, position);
    std::vector<int> read(high + 1, 0);
    for (int split = 0; split < SPLITS; ++split) {
        const Span span = visible_blocks(cache.layer, split, position);
        if (runs.has(split) != (span.from <= span.to)) return fails("runs and blocks disagree", cache.layer, position, split);
        for (int start = span.from, count; start <= span.to; start += count) {
            count = blocks_in_page(cache.layer, start, span.to);
            if (count < 1 || cache_slot(cache.layer, start) + count > cache.slots) return fails("a page round the end", cache.layer, position, start);
            for (int index = start; index < start + count; ++index) {
                const int block = block_at({split, index});
                const BlockPlace back = place_of_block(block);
                if (back.split != split || back.index != index) return fails("a block's place", cache.layer, position, block);
                if (block < low || block > high) return fails("a block out of sight", cache.layer, position, block);
                ++read[block];
            }
        }
    }
    for (int block = low; block <= high; ++block)
        if (read[block] != 1) return fails("a block read more or less than once", cache.layer, position, block);
    for (int seen = oldest_visible(cache.layer, position); seen < position; ++seen)
        if (!cache.has(seen)) return fails("not found by a token", cache.layer, position, seen);
    cache.keep(position);
    return true;
}

// Requests with prompts of these lengths, in chunks but for the last token, up to a full context.  0 if all is well.
int main() {
    for (int layer = 0; layer < LAYERS; ++layer)
        for (int prompt : {1, 2, CHUNK, CHUNK + 1, CHUNK + 2, CONTEXT / 2, CONTEXT}) {
            if (prompt > CONTEXT) continue;
            Cache cache{layer};
            for (int start = 0; start < prompt - 1; start += CHUNK)
                if (!chunk(cache, start, min(start + CHUNK, prompt - 1))) return 1;
            for (int position = prompt - 1; position < CONTEXT; ++position)
                if (!token(cache, position)) return 1;
        }
    std::printf("runs of %d, %d splits, slots %d and %d\n", RUN_BLOCKS, SPLITS, FULL_SLOTS, SLIDING_SLOTS);
    return 0;
}
