// Rows of a page times activations: one kernel for one token and for a chunk.
//
// For each row and token there is one vector of partial sums, over columns in order (vector.h): how many
// rows or tokens are taken at once, and by how many workers, does not change a bit.
#pragma once

#include "shape.h"
#include "vector.h"

namespace laneformer {

// Sums that fit the registers: 8 x 3 of 32 registers with AVX-512; elsewhere a vector is two or more.
#if LANEFORMER_ISA == LANEFORMER_ISA_AVX512
constexpr int ROWS_AT_ONCE = 8;
constexpr int TOKENS_AT_ONCE = 3;
#else
constexpr int ROWS_AT_ONCE = 4;
constexpr int TOKENS_AT_ONCE = 1;
#endif

// One token uses each weight once, and a processor by itself does not ask for them early enough to keep memory
// busy.  So its rows ask for what lies this far behind them on the tape, which is what comes next, over the ends
// of rows and matrices too: to be read, into the second cache.
constexpr int AHEAD_BYTES = 16384;

template <int ROWS, typename Weight>
inline void ask_ahead(const Weight* rows) {
    constexpr int LINE = 64, BYTES = ROWS * COLUMN_GROUP * static_cast<int>(sizeof(Weight));
    const auto* ahead = reinterpret_cast<const char*>(rows) + AHEAD_BYTES;
#pragma GCC unroll 16
    for (int line = 0; line < BYTES; line += LINE) __builtin_prefetch(ahead + line, 0, 2);
}

template <int ROWS>
inline void store_sums(float* to, const Vector* sums) {
#if LANEFORMER_ISA == LANEFORMER_ISA_AVX512
    if constexpr (ROWS == 8) {
        store_sums_of_8(to, sums);
        return;
    }
#endif
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) to[row] = sum(sums[row]);
}

// outputs[token * output_stride + row] for ROWS rows of a block of `height` rows and TOKENS tokens.
template <int COLUMNS, int ROWS, int TOKENS, bool AHEAD, typename Weight>
inline void multiply_tile(const Weight* rows, int height, const float* inputs, float* outputs, int output_stride) {
    Vector sums[ROWS][TOKENS];
    // Sums live in registers only where every loop over them is unrolled, which -O3 alone does too late.
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 8
        for (int token = 0; token < TOKENS; ++token) sums[row][token] = zero();
#pragma GCC unroll 1
    for (int column = 0; column < COLUMNS; column += COLUMN_GROUP, rows += height * COLUMN_GROUP) {
        if constexpr (AHEAD) ask_ahead<ROWS>(rows);
#pragma GCC unroll 2
        for (int half = 0; half < COLUMN_GROUP; half += VECTOR) {
            Vector input[TOKENS];
#pragma GCC unroll 8
            for (int token = 0; token < TOKENS; ++token)
                input[token] = load(inputs + token * COLUMNS + column + half);
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; ++row) {
                const Vector weight = load(rows + row * COLUMN_GROUP + half);
#pragma GCC unroll 8
                for (int token = 0; token < TOKENS; ++token)
                    sums[row][token] = multiply_add(weight, input[token], sums[row][token]);
            }
        }
    }
#pragma GCC unroll 8
    for (int token = 0; token < TOKENS; ++token) {
        Vector of_token[ROWS];
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) of_token[row] = sums[row][token];
        store_sums<ROWS>(outputs + token * output_stride, of_token);
    }
}

template <int COLUMNS, int ROWS, typename Weight>
inline void multiply_rows(const Weight* rows, int height, const float* inputs, int tokens, float* outputs,
                          int output_stride) {
    if (tokens == 1) {
        multiply_tile<COLUMNS, ROWS, 1, true>(rows, height, inputs, outputs, output_stride);
        return;
    }
    int token = 0;
    for (; token + TOKENS_AT_ONCE <= tokens; token += TOKENS_AT_ONCE)
        multiply_tile<COLUMNS, ROWS, TOKENS_AT_ONCE, false>(rows, height, inputs + token * COLUMNS,
                                                     outputs + token * output_stride, output_stride);
    for (; token < tokens; ++token)
        multiply_tile<COLUMNS, ROWS, 1, false>(rows, height, inputs + token * COLUMNS, outputs + token * output_stride,
                                        output_stride);
}

// One block; the last one of a page may have fewer rows than BLOCK_ROWS.
template <int COLUMNS, typename Weight>
inline void multiply_block(const Weight* block, int height, const float* inputs, int tokens, float* outputs,
                           int output_stride) {
    int row = 0;
    for (; row + ROWS_AT_ONCE <= height; row += ROWS_AT_ONCE)
        multiply_rows<COLUMNS, ROWS_AT_ONCE>(block + row * COLUMN_GROUP, height, inputs, tokens, outputs + row,
                                             output_stride);
    for (; row < height; ++row)
        multiply_rows<COLUMNS, 1>(block + row * COLUMN_GROUP, height, inputs, tokens, outputs + row,
                                  output_stride);
}

// `rows` rows of a page.  inputs: [tokens][COLUMNS], zero beyond the true columns.  `wide` holds one block.
template <int COLUMNS, typename Weight>
void multiply_page(const Weight* page, int rows, const float* inputs, int tokens, float* outputs,
                   int output_stride, float* wide) {
    for (int row = 0; row < rows; row += BLOCK_ROWS) {
        const int height = rows - row < BLOCK_ROWS ? rows - row : BLOCK_ROWS;
        const Weight* block = page + static_cast<size_t>(row) * COLUMNS;
        if (sizeof(Weight) < sizeof(float) && tokens > TOKENS_AT_ONCE) {
            // Widened once for all tokens: 18 KB for 576 columns, which the first cache holds.
            for (int at = 0; at < height * COLUMNS; at += VECTOR) store(wide + at, load(block + at));
            multiply_block<COLUMNS>(wide, height, inputs, tokens, outputs + row, output_stride);
        } else {
            multiply_block<COLUMNS>(block, height, inputs, tokens, outputs + row, output_stride);
        }
    }
}

// Root-mean-square norm of one vector of COUNT values (zero up to PADDED), times scale (zero there too).
template <int COUNT, int PADDED>
inline void rms_norm(const float* input, const float* scale, float epsilon, float* output) {
    Vector squares = zero();
    for (int at = 0; at < PADDED; at += VECTOR)
        squares = multiply_add(load(input + at), load(input + at), squares);
    const Vector factor = broadcast(1.0f / std::sqrt(sum(squares) / COUNT + epsilon));
    for (int at = 0; at < PADDED; at += VECTOR)
        store(output + at, multiply(multiply(load(input + at), factor), load(scale + at)));
}

// silu(gate) * up = gate / (1 + exp(-gate)) * up, in place of gate.  `count` is a multiple of VECTOR.
inline void swiglu(float* gate, const float* up, int count) {
    const Vector one = broadcast(1.0f);
    for (int at = 0; at < count; at += VECTOR) {
        const Vector value = load(gate + at);
        const Vector silu = divide(value, add(one, exponential(subtract(zero(), value))));
        store(gate + at, multiply(silu, load(up + at)));
    }
}

}  // namespace laneformer
