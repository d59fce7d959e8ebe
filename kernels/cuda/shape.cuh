// Shapes and the geometry of the tape, all known to the compiler.  infer/backends/cuda_source.py writes model.cuh
// (the model, workers and limits of this device) and infer/tape/tile_layout.py packs by the same rules.
//
// A tile is 16 rows by 16 columns of a matrix, 512 bytes in the order in which the tensor cores want them.  A worker
// has whole tiles of rows of each matrix.  A page is all of its rows, or a block of at most 12 tiles of them, times a
// run of columns: so a phase reads its inputs once, front to back, and keeps its sums in registers.
#pragma once

#include "model.cuh"

namespace laneformer {

__host__ __device__ constexpr int round_up(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }
__host__ __device__ constexpr int divide_up(int count, int parts) { return (count + parts - 1) / parts; }
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int power_of_two(int most) { return most < 2 ? 1 : 2 * power_of_two(most / 2); }
__host__ __device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

constexpr int WARP = 32;
constexpr int MATH_WARPS = 8;
constexpr int MATH_THREADS = MATH_WARPS * WARP;
constexpr int LOADER_WARP = MATH_WARPS, WATCH_WARP = LOADER_WARP + 1;  // one thread of each works
constexpr int THREADS = (WATCH_WARP + 1) * WARP;

constexpr int TILE = 16;
constexpr int TILE_BYTES = TILE * TILE * 2;
constexpr int GROUP = 4;        // values of a packet
constexpr int STEP_MULTIPLE = 4;    // a matrix has columns for a multiple of so many tiles, and so has a page
constexpr int CLASSES = MATH_WARPS;  // a row's products are summed in eight classes, by (column / 16) % 8, each by one warp
constexpr int BLOCK_TILES = 12;
constexpr int HELD_TILES = 8;  // of weights that a warp has in registers while it waits for inputs, at most: 32 registers
constexpr int PAGE_BYTES = 24576;

constexpr int HEAD_ROWS = round_up(HEAD_SIZE, GROUP);  // rows of one head in the tape; the rest are zero
constexpr int HEAD_GROUPS = HEAD_ROWS / GROUP;
constexpr int HEAD_TILES = divide_up(HEAD_SIZE, TILE);
constexpr int QUERIES_PER_KEY = QUERY_HEADS / KEY_HEADS;
constexpr bool QUERIES_IN_REGISTERS = HEAD_TILES <= 6;  // while attention meets them with keys; of larger heads in shared memory
constexpr int MIXED = QUERY_HEADS * HEAD_ROWS;  // inputs of the output projection
constexpr int MIXED_GROUPS = MIXED / GROUP;
constexpr int HIDDEN_GROUPS = HIDDEN / GROUP;
constexpr int HIDDEN_TILES = divide_up(HIDDEN, TILE);
constexpr int UNIT_TILES = divide_up(UNITS, TILE / 2);  // eight rows of w1 and the same eight of w3
constexpr int UNIT_GROUPS = UNIT_TILES * 2;
constexpr int PROJECTED_TILES = divide_up((QUERY_HEADS + 2 * KEY_HEADS) * HEAD_ROWS, TILE);
constexpr int ALL_WORKERS = LANES * WORKERS;

__host__ __device__ constexpr int columns_padded(int columns) { return round_up(columns, STEP_MULTIPLE * TILE); }

__host__ __device__ constexpr int page_steps(int steps, int tiles) {
    int best = STEP_MULTIPLE;
    for (int candidate = STEP_MULTIPLE; candidate <= steps; candidate += STEP_MULTIPLE)
        if (steps % candidate == 0 && candidate * tiles * TILE_BYTES <= PAGE_BYTES) best = candidate;
    return best;
}

// One matrix as the workers of a lane, or of all lanes, share it.
template <int COLUMNS_, int TILES_, int WORKERS_>
struct Matrix {
    static constexpr int COLUMNS = COLUMNS_;
    static constexpr int STEPS = columns_padded(COLUMNS) / TILE;  // of 16 columns
    static constexpr int MOST_TILES = divide_up(TILES_, WORKERS_);
    static constexpr int BLOCKS = divide_up(MOST_TILES, BLOCK_TILES);
    static constexpr int MOST_BLOCK_TILES = divide_up(MOST_TILES, BLOCKS), LEAST_BLOCK_TILES = TILES_ / WORKERS_ / BLOCKS;
    static constexpr int STEPS_PER_PAGE = page_steps(STEPS, MOST_BLOCK_TILES);
    static constexpr int PAGES_PER_BLOCK = STEPS / STEPS_PER_PAGE;
    static constexpr int LARGEST_PAGE = MOST_BLOCK_TILES * STEPS_PER_PAGE * TILE_BYTES;

    __device__ static bool has_tile(int tile, int tiles) { return tile < LEAST_BLOCK_TILES || tile < tiles; }
    __device__ static int first_tile(int worker) { return TILES_ * worker / WORKERS_; }
    __device__ static int tiles(int worker) { return first_tile(worker + 1) - first_tile(worker); }
    __device__ static int block_start(int tiles, int block) { return tiles * block / BLOCKS; }
};

using Project = Matrix<HIDDEN, PROJECTED_TILES, WORKERS>;
using Output = Matrix<MIXED, HIDDEN_TILES, WORKERS>;
using GateUp = Matrix<HIDDEN, UNIT_TILES, WORKERS>;
using Down = Matrix<UNITS, HIDDEN_TILES, WORKERS>;
constexpr bool SLICED_HEAD = HEAD_TYPE == HeadType::VOCAB_PARALLEL;
constexpr int HEAD_COLUMNS = HEAD_TYPE == HeadType::LANE ? LANES * HIDDEN : HIDDEN;
constexpr int HEAD_SLICE = SLICED_HEAD ? VOCABULARY / LANES : VOCABULARY;
using Head = Matrix<HEAD_COLUMNS, divide_up(HEAD_SLICE, TILE), SLICED_HEAD ? WORKERS : ALL_WORKERS>;

// Keys and values: blocks of 16 positions of one key head, keys then values, each in tiles.
constexpr int CACHE_BLOCK_BYTES = 2 * HEAD_TILES * TILE_BYTES;
constexpr int CACHE_BLOCKS_PER_PAGE = PAGE_BYTES / CACHE_BLOCK_BYTES;
// Positions are shared out in blocks to SPLITS tasks per key head, whatever the number of workers, so that sums do
// not depend on it.
constexpr int TASKS = KEY_HEADS * SPLITS;
constexpr int TASK_PACKETS = QUERIES_PER_KEY * (HEAD_GROUPS + 1);  // per query head its sums, and maximum and total
// Results of attention are merged by every worker for itself, or by shares where a thread would have many packets to read.
constexpr bool MERGED_BY_SHARES = 2 * MIXED_GROUPS * SPLITS > 16 * MATH_THREADS;
// Tasks have blocks in turn, RUN_BLOCKS at a time: one by one, or, where merging costs more than reading, two blocks for each warp,
// so that a short context has few tasks with anything to merge.
constexpr int RUN_BLOCKS = MERGED_BY_SHARES ? 2 * MATH_WARPS : 1;
// If they are FEW_RUNS at most, each worker merges all of them, where a thread has few groups of columns: see merge_few().
constexpr int MIXED_EACH = power_of_two(2 * divide_up(MIXED_GROUPS, MATH_THREADS) - 1);
constexpr int FEW_RUNS = 4, MIXED_AT_ONCE = 4;
constexpr bool FEW_MERGED_BY_ALL = MERGED_BY_SHARES && MIXED_EACH <= MIXED_AT_ONCE;
// Blocks that a task can have among so many positions in a row, wherever they begin.
__host__ __device__ constexpr int slots_for(int positions) {
    const int blocks = divide_up(positions - 1, TILE) + 1, round = SPLITS * RUN_BLOCKS;
    return blocks / round * RUN_BLOCKS + smaller(blocks % round, RUN_BLOCKS);
}
// What it has room for in a layer that sees everything, and in a sliding one: a window and a chunk of a prompt.
constexpr int FULL_SLOTS = divide_up(CONTEXT, TILE * SPLITS * RUN_BLOCKS) * RUN_BLOCKS;
constexpr int SLIDING_SLOTS = SLIDING_WINDOW ? smaller(FULL_SLOTS, slots_for(SLIDING_WINDOW + CHUNK)) : FULL_SLOTS;
constexpr long long CACHE_SLOT_BYTES = 1ll * LANES * TASKS * CACHE_BLOCK_BYTES;  // one block of every task
__device__ inline int first_task(int worker) { return TASKS * worker / WORKERS; }

constexpr int LARGEST_PAGE =
    larger(larger(larger(Project::LARGEST_PAGE, Output::LARGEST_PAGE), larger(GateUp::LARGEST_PAGE, Down::LARGEST_PAGE)),
           larger(Head::LARGEST_PAGE, CACHE_BLOCKS_PER_PAGE * CACHE_BLOCK_BYTES));

// Rows whose sums are kept at once.
constexpr int SUM_ROWS = TILE * larger(larger(larger(Project::MOST_BLOCK_TILES, Output::MOST_BLOCK_TILES),
                                              larger(GateUp::MOST_BLOCK_TILES, Down::MOST_BLOCK_TILES)),
                                       Head::MOST_BLOCK_TILES);

constexpr int MOST_COLUMNS = larger(larger(columns_padded(HIDDEN), columns_padded(MIXED)),
                                    larger(columns_padded(UNITS), columns_padded(HEAD_COLUMNS)));
constexpr int PARTS = 2;  // an input is the sum of two 16-bit numbers, which are two columns of a product
constexpr int PART_STRIDE = MOST_COLUMNS + 16;  // 32 bytes more: the parts lie in different banks

static_assert(HIDDEN % GROUP == 0 && HEAD_SIZE % 2 == 0 && HEAD_SIZE <= 128 && QUERIES_PER_KEY <= 8, "unsupported shape");
static_assert((CHUNK & (CHUNK - 1)) == 0 && CHUNK >= 8 && CHUNK <= MATH_THREADS, "tokens of a chunk are shared out by halves");
static_assert((SPLITS & (SPLITS - 1)) == 0 && SPLITS <= WARP, "splits are shared out, and merged, by halves");
static_assert(WORKERS <= HIDDEN_TILES && WORKERS <= UNIT_TILES, "a worker without rows of the residual stream");

}  // namespace laneformer
