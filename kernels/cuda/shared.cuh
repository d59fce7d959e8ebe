// What a block keeps in shared memory besides the ring of pages, and so what the ring has room for.
//
// One token's arrays and a chunk's share their bytes: a chunk ends with a barrier, and no token comes before the last of them.
// What orders the uses of an array, and of those that share bytes with it, the file says that uses it.
#pragma once

#include "best.cuh"
#include "sampling_memory.cuh"

namespace laneformer {

constexpr int OWN_GROUPS = Output::MOST_TILES * (TILE / GROUP);  // of the residual stream, at most
constexpr int HEAD_ROW_WORDS = divide_up(Head::MOST_TILES * TILE, 32);

// Where a worker keeps the scores from which tokens are sampled: here, or else in device memory.
constexpr bool SCORES_FIT = Head::MOST_TILES * TILE <= 2048;

// For one token.
struct alignas(16) TokenMemory {
    union {
        unsigned short parts[PARTS * PART_STRIDE];  // inputs of the product at hand
        unsigned long long bins[BINS];              // of a histogram, while a token is chosen
    };
    float squares[2][MATH_WARPS];
    float4 residual[OWN_GROUPS];                         // the worker's own rows, in float32
    float4 late[LANES > 1 ? LANES - 1 : 1][OWN_GROUPS];  // what other lanes sent for them
    unsigned short queries[2][QUERIES_PER_KEY][HEAD_TILES * TILE];  // upper and lower part
    unsigned short key[HEAD_TILES * TILE], value[HEAD_TILES * TILE];
    float part_most[MATH_WARPS][QUERIES_PER_KEY], part_total[MATH_WARPS][QUERIES_PER_KEY];
    union {
        float sums[2][CLASSES][SUM_ROWS];  // of a product's rows, by class; twice, block by block
        float4 part_mixed[MATH_WARPS][QUERIES_PER_KEY][HEAD_GROUPS];  // between two products
    };
    float scores[SCORES_FIT ? Head::MOST_TILES * TILE : 1];  // of the worker's rows of the head
    float split_share[FEW_MERGED_BY_ALL ? QUERY_HEADS : 1][FEW_RUNS];  // how much a split of a query head counts
    float lane_factor[LANES];
    Best best[MATH_WARPS];
    SamplingMemory sampling;
};

constexpr int TOKEN_TILES = CHUNK / 8;
constexpr int INPUT_TILE_BYTES = TOKEN_TILES * 256;  // 16 columns of inputs, all tokens of a chunk
constexpr int RUN_STEPS = 2, RUN_BYTES = RUN_STEPS * INPUT_TILE_BYTES;
constexpr int COPIES = larger(3, 49152 / RUN_BYTES);  // runs of inputs, on their way or at hand: more would be taken from the ring
static_assert(STEP_MULTIPLE % RUN_STEPS == 0, "a page has whole runs");
constexpr int LEAST_TOKEN_WARPS = divide_up(CHUNK, 64);  // that share the tokens: a warp has 64 of them at most
constexpr int TILE_STRIDE = TILE + 4;  // a token's sums lie 16 bytes further round the banks than the token's before it

// For a chunk of a prompt, which is over before the first token alone begins.
struct alignas(16) ChunkMemory {
    float token_factor[CHUNK];
    float row_most[MATH_WARPS][8], row_total[MATH_WARPS][8];
    union {
        union {
            uint4 queries[QUERIES_IN_REGISTERS ? 1 : HEAD_TILES][WARP];  // each thread's own
            float4 mixed[8][HEAD_GROUPS];                                // when they have been read
        } attention[MATH_WARPS];  // the warp's own, until all merge
        float tile[MATH_WARPS][CHUNK / LEAST_TOKEN_WARPS][TILE_STRIDE];  // sums of one tile per warp
        unsigned char inputs[COPIES][RUN_BYTES];
        float share_squares[MATH_THREADS / CHUNK][CHUNK];  // between an exchange and the product that follows it
    };
};

// Pages in the ring at once.  Fewer than a step has, at least three per layer: see loader.cuh.
constexpr int SLOTS = smaller(32, 3 * LAYERS);

struct Shared {
    unsigned long long barriers[2][SLOTS];          // full, empty: see ring.cuh
    unsigned long long over;                        // a barrier: tells the loader and the watcher that nothing is wanted any more
    unsigned long long prompt_ready;                // likewise: tells the loader that keys and values of the chunks are there
    unsigned long long copied[COPIES], freed[COPIES], inputs_ready;  // likewise: see chunk_inputs.cuh
    unsigned page_bytes[SLOTS], page_start[SLOTS];  // the loader's own
    union {
        TokenMemory token;
        ChunkMemory chunk;
    };
    unsigned occurred[HEAD_ROW_WORDS];  // of the worker's own rows of the head
    unsigned cancelled;                 // told by the watcher, in worker 0; both sides use atomics
    unsigned given_up;                  // what one thread saw for all
};

constexpr int RING_OFFSET = round_up(static_cast<int>(sizeof(Shared)), 128);
constexpr unsigned RING_BYTES = (SHARED_BYTES - RING_OFFSET) / 128 * 128;
static_assert(SHARED_BYTES - RING_OFFSET >= 2 * LARGEST_PAGE, "no room in shared memory for two pages");

}  // namespace laneformer
