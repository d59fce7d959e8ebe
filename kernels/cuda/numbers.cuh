// 16-bit numbers and the tensor core instruction, for weights in bfloat16 or float16.
//
// Inputs of a product are float32.  They are split into two 16-bit numbers, the upper part and what is left, and the two are two
// columns of one m16n8k16 product, of which a single token would otherwise fill one in eight: so weights meet inputs of at
// least 16 bits of mantissa, which is what packets carry, at no cost.  In float16 what is left of an input below 2^-9 has fewer: it
// is wrong by 2^-25 at most.
#pragma once

#include "shape.cuh"

namespace laneformer {

#if LANEFORMER_FLOAT16
#define LANEFORMER_HALF "f16"
#else
#define LANEFORMER_HALF "bf16"
#endif

// Two numbers in one register, `low` in the lower half.
__device__ inline unsigned narrowed(float low, float high) {
    unsigned both;
    asm("cvt.rn." LANEFORMER_HALF "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ inline float widened(unsigned short bits) {
#if LANEFORMER_FLOAT16
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
#endif
}
__device__ inline float2 widened_pair(unsigned both) {
    return make_float2(widened(static_cast<unsigned short>(both)), widened(static_cast<unsigned short>(both >> 16)));
}

// sums[16 rows][8 columns] += a[16][16] b[16][8]; which thread holds what: see multiply() and attention.cuh.
__device__ inline void tensor_product(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                      unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." LANEFORMER_HALF "." LANEFORMER_HALF
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 2 to the power of x, to about 22 bits; 0 below 2^-126.
__device__ inline float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

__device__ inline float4 times(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
__device__ inline float4 times(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
__device__ inline float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ inline float sum_of_squares(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int apart = 16; apart; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
    return value;
}

}  // namespace laneformer
