// Rotation, the ring of keys and values, and attention of a few query vectors at once.
//
// Keys lie transposed in blocks of 16 positions, so that 16 scores are one vector and a score is a sum
// over the head in order of elements.  Values lie position by position; their weighted sum runs in order
// of positions.  Neither depends on how a prompt was cut into chunks, nor on where the ring starts.
#pragma once

#include <limits>

#include "shape.h"
#include "vector.h"

namespace laneformer {

constexpr int QUERIES_AT_ONCE = 4;

// Keys and values of one key head in one layer.  Position p has slot p % slots; slots is a multiple of 16.
struct HeadCache {
    float* keys;    // [slots / 16][HEAD_SIZE][16]
    float* values;  // [slots][PADDED_HEAD_SIZE]
    int slots;

    static size_t floats(int slots) { return static_cast<size_t>(slots) * (HEAD_SIZE + PADDED_HEAD_SIZE); }

    void append(int position, const float* key, const float* value) {
        const int slot = position % slots;
        float* column = keys + static_cast<size_t>(slot / VECTOR) * HEAD_SIZE * VECTOR + slot % VECTOR;
        for (int element = 0; element < HEAD_SIZE; ++element) column[element * VECTOR] = key[element];
        float* row = values + static_cast<size_t>(slot) * PADDED_HEAD_SIZE;
        for (int element = 0; element < HEAD_SIZE; ++element) row[element] = value[element];
    }
    const float* key_block(int block) const {  // of positions 16 * block and the 15 after it
        return keys + static_cast<size_t>(block % (slots / VECTOR)) * HEAD_SIZE * VECTOR;
    }
    const float* value_row(int position) const {
        return values + static_cast<size_t>(position % slots) * PADDED_HEAD_SIZE;
    }
};

// RMS norm over one head, where the model norms queries and keys.
inline void norm_head(float* head, const float* scale, float epsilon) {
    float squares = 0;
    for (int element = 0; element < HEAD_SIZE; ++element) squares += head[element] * head[element];
    const float factor = 1.0f / std::sqrt(squares / HEAD_SIZE + epsilon);
    for (int element = 0; element < HEAD_SIZE; ++element) head[element] = head[element] * factor * scale[element];
}

// Elements 2i and 2i+1 turn together.  cosines, sines: of this position, [HEAD_SIZE / 2].
inline void rotate_head(float* head, const float* cosines, const float* sines) {
    for (int pair = 0; pair < HEAD_SIZE / 2; ++pair) {
        const float even = head[2 * pair], odd = head[2 * pair + 1];
        head[2 * pair] = even * cosines[pair] - odd * sines[pair];
        head[2 * pair + 1] = even * sines[pair] + odd * cosines[pair];
    }
}

// One query vector: turned and scaled, with the positions that it sees and where its answer goes.
struct Query {
    float vector[HEAD_SIZE];
    int first, last;
    float* output;  // [HEAD_SIZE]
};

template <int QUERIES, int BLOCKS>
inline void score_blocks(const HeadCache& cache, const Query* queries, int block, float* scores, int stride) {
    const float* keys[BLOCKS];
    Vector sums[QUERIES][BLOCKS];
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; ++b) {
        keys[b] = cache.key_block(block + b);
#pragma GCC unroll 8
        for (int query = 0; query < QUERIES; ++query) sums[query][b] = zero();
    }
#pragma GCC unroll 1
    for (int element = 0; element < HEAD_SIZE; ++element) {
#pragma GCC unroll 8
        for (int query = 0; query < QUERIES; ++query) {
            const Vector value = broadcast(queries[query].vector[element]);
#pragma GCC unroll 8
            for (int b = 0; b < BLOCKS; ++b)
                sums[query][b] = multiply_add(value, load(keys[b] + element * VECTOR), sums[query][b]);
        }
    }
#pragma GCC unroll 8
    for (int query = 0; query < QUERIES; ++query)
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) store(scores + query * stride + b * VECTOR, sums[query][b]);
}

// Scores of positions from 16 * first_block become weights; those out of sight become 0.  Returns 1 / sum.
inline float weights_of(const Query& query, int first_block, int count, float* scores) {
    const int start = first_block * VECTOR;
    const int before = query.first - start, after = query.last + 1 - start;
    constexpr float never = -std::numeric_limits<float>::infinity();
    for (int at = 0; at < before; ++at) scores[at] = never;
    for (int at = after; at < count; ++at) scores[at] = never;
    Vector most = load(scores);
    for (int at = VECTOR; at < count; at += VECTOR) most = larger(most, load(scores + at));
    const Vector top = broadcast(largest_of(most));
    for (int at = 0; at < count; at += VECTOR) store(scores + at, exponential(subtract(load(scores + at), top)));
    for (int at = 0; at < before; ++at) scores[at] = 0;
    for (int at = after; at < count; ++at) scores[at] = 0;
    Vector total = zero();
    for (int at = 0; at < count; at += VECTOR) total = add(total, load(scores + at));
    // Sixteen sums by position modulo 16 and then their halves: the same whatever lies out of sight.
    return 1.0f / sum(total);
}

template <int QUERIES, int VECTORS>
inline void mix_values(const HeadCache& cache, const float* weights, int stride, int start, int first, int last,
                       int element, Vector (*sums)[VECTORS]) {
#pragma GCC unroll 8
    for (int query = 0; query < QUERIES; ++query)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) sums[query][v] = zero();
#pragma GCC unroll 1
    for (int position = first; position <= last; ++position) {
        const float* row = cache.value_row(position) + element;
#pragma GCC unroll 8
        for (int query = 0; query < QUERIES; ++query) {
            const Vector weight = broadcast(weights[query * stride + position - start]);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v)
                sums[query][v] = multiply_add(weight, load(row + v * VECTOR), sums[query][v]);
        }
    }
}

template <int QUERIES, int VECTORS>
inline void mix_piece(const HeadCache& cache, const Query* queries, const float* weights, const float* factors,
                      int stride, int start, int first, int last, int element) {
    Vector sums[QUERIES][VECTORS];
    mix_values<QUERIES, VECTORS>(cache, weights, stride, start, first, last, element, sums);
#pragma GCC unroll 8
    for (int query = 0; query < QUERIES; ++query) {
        float piece[VECTORS * VECTOR];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v)
            store(piece + v * VECTOR, multiply(sums[query][v], broadcast(factors[query])));
        const int count = HEAD_SIZE - element < VECTORS * VECTOR ? HEAD_SIZE - element : VECTORS * VECTOR;
        for (int at = 0; at < count; ++at) queries[query].output[element + at] = piece[at];
    }
}

template <int QUERIES>
void attend(const HeadCache& cache, const Query* queries, float* scores, int stride) {
    int first = queries[0].first, last = queries[0].last;
    for (int query = 1; query < QUERIES; ++query) {
        first = queries[query].first < first ? queries[query].first : first;
        last = queries[query].last > last ? queries[query].last : last;
    }
    const int first_block = first / VECTOR, blocks = last / VECTOR + 1 - first_block;
    int block = 0;
    for (; block + 4 <= blocks; block += 4)
        score_blocks<QUERIES, 4>(cache, queries, first_block + block, scores + block * VECTOR, stride);
    for (; block < blocks; ++block)
        score_blocks<QUERIES, 1>(cache, queries, first_block + block, scores + block * VECTOR, stride);
    float factors[QUERIES];
    for (int query = 0; query < QUERIES; ++query)
        factors[query] = weights_of(queries[query], first_block, blocks * VECTOR, scores + query * stride);
    const int start = first_block * VECTOR;
    int element = 0;
    for (; element + 4 * VECTOR <= PADDED_HEAD_SIZE; element += 4 * VECTOR)
        mix_piece<QUERIES, 4>(cache, queries, scores, factors, stride, start, first, last, element);
    for (; element < PADDED_HEAD_SIZE; element += VECTOR)
        mix_piece<QUERIES, 1>(cache, queries, scores, factors, stride, start, first, last, element);
}

// Any number of queries of one key head.
inline void attend_all(const HeadCache& cache, const Query* queries, int count, float* scores, int stride) {
    for (; count >= QUERIES_AT_ONCE; count -= QUERIES_AT_ONCE, queries += QUERIES_AT_ONCE)
        attend<QUERIES_AT_ONCE>(cache, queries, scores, stride);
    switch (count) {
        case 3: attend<3>(cache, queries, scores, stride); break;
        case 2: attend<2>(cache, queries, scores, stride); break;
        case 1: attend<1>(cache, queries, scores, stride); break;
        default: break;
    }
}

}  // namespace laneformer
