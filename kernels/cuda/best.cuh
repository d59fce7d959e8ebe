// The best of some tokens, and the sum of the exponentials of their logits: what threads, and then workers, make one of.
#pragma once

#include "shape.cuh"

namespace laneformer {

constexpr float NEVER = -0x1p100f;  // a score below all others, and still a number, which a packet carries unchanged

constexpr unsigned CANCELLED_BY_HOST = 1, GIVEN_UP = 2;  // flags

struct Best {
    float best = NEVER, raw = NEVER;  // score, which is a logit with the penalty, and logit
    int id = VOCABULARY;              // of the token; the lower one where scores are equal
    float most = NEVER, total = 0;    // largest logit, and the sum of exponentials of what others are less
    unsigned flags = 0;

    __device__ void add(float other_most, float other_total) {
        const float top = fmaxf(most, other_most);
        total = total * __expf(most - top) + other_total * __expf(other_most - top);
        most = top;
    }
    __device__ void join(const Best& other) {
        if (other.best > best || (other.best == best && other.id < id)) best = other.best, raw = other.raw, id = other.id;
        add(other.most, other.total);
        flags |= other.flags;
    }
    __device__ Best of_neighbour(int apart) const {
        Best other;
        other.best = __shfl_xor_sync(~0u, best, apart), other.raw = __shfl_xor_sync(~0u, raw, apart);
        other.id = __shfl_xor_sync(~0u, id, apart);
        other.most = __shfl_xor_sync(~0u, most, apart), other.total = __shfl_xor_sync(~0u, total, apart);
        other.flags = __shfl_xor_sync(~0u, flags, apart);
        return other;
    }
};

}  // namespace laneformer
