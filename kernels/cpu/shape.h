// Shapes of the model for which this library is compiled, from -D flags; all are known to the compiler,
// so loops unroll and buffers are plain arrays.  infer/backends/cpu_compile.py sets them.
#pragma once

#include <cstddef>

namespace laneformer {

// A vector is 16 floats on every instruction set, columns are stored in groups of 32: see vector.h and
// infer/tape/page_layout.py.
constexpr int VECTOR = 16;
constexpr int COLUMN_GROUP = 32;
constexpr int BLOCK_ROWS = 8;

constexpr int padded(int count, int multiple = COLUMN_GROUP) {
    return (count + multiple - 1) / multiple * multiple;
}

constexpr int LANES = LANEFORMER_LANES;
constexpr int HIDDEN = LANEFORMER_HIDDEN;
constexpr int QUERY_HEADS = LANEFORMER_QUERY_HEADS;  // of one lane, like all that follows
constexpr int KEY_HEADS = LANEFORMER_KEY_HEADS;
constexpr int HEAD_SIZE = LANEFORMER_HEAD_SIZE;
constexpr int UNITS = LANEFORMER_UNITS;
constexpr int VOCABULARY = LANEFORMER_VOCABULARY;  // of the whole model
constexpr int HEAD_COLUMNS = LANEFORMER_HEAD_COLUMNS;  // inputs of the head: hidden, or hidden of all lanes

// Tokens of a prompt that run at once.
constexpr int CHUNK = LANEFORMER_CHUNK;

constexpr int QUERIES_PER_KEY = QUERY_HEADS / KEY_HEADS;
constexpr int QUERY_ROWS = QUERY_HEADS * HEAD_SIZE;
constexpr int KEY_ROWS = KEY_HEADS * HEAD_SIZE;
constexpr int PROJECTED_ROWS = QUERY_ROWS + 2 * KEY_ROWS;
constexpr int PADDED_HIDDEN = padded(HIDDEN);
constexpr int PADDED_QUERY_ROWS = padded(QUERY_ROWS);
constexpr int PADDED_UNITS = padded(UNITS);
constexpr int PADDED_HEAD_COLUMNS = padded(HEAD_COLUMNS);
constexpr int PADDED_HEAD_SIZE = padded(HEAD_SIZE, VECTOR);

constexpr int largest(int a, int b) { return a > b ? a : b; }
constexpr int MOST_COLUMNS =
    largest(largest(PADDED_HIDDEN, PADDED_QUERY_ROWS), largest(PADDED_UNITS, PADDED_HEAD_COLUMNS));

}  // namespace laneformer
