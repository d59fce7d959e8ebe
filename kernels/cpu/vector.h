// Sixteen floats, on every instruction set with the same arithmetic.
//
// A sum over columns keeps sixteen partial sums, one per column modulo 16, each with fused multiply-adds in
// order of columns, and adds them by halves at the end.  AVX-512 holds them in one register, AVX2 in two,
// and portable code in an array, so results are the same bits everywhere.  The library is compiled for
// the instruction set that is found when the model is loaded (LANEFORMER_ISA); the portable code
// becomes NEON on ARM, where fused multiply-add is part of the base.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define LANEFORMER_ISA_PORTABLE 0
#define LANEFORMER_ISA_AVX2 2
#define LANEFORMER_ISA_AVX512 512
#if LANEFORMER_ISA != LANEFORMER_ISA_PORTABLE
#include <immintrin.h>
#endif

namespace laneformer {

// Stored weights by type; a bfloat16 is the upper half of a float32.
struct Bfloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

inline float widened(float value) { return value; }
inline float widened(Bfloat16 value) {
    uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}
inline float widened(Float16 value) {
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
    const uint32_t magnitude = value.bits & 0x7fff;
    float result;
    if (magnitude < 0x0400) {  // zero and subnormal: a multiple of 2^-24
        result = static_cast<float>(magnitude) * 0x1p-24f;
    } else {
        uint32_t bits = (magnitude << 13) + (112u << 23);
        std::memcpy(&result, &bits, sizeof result);
    }
    return sign ? -result : result;
}

#if LANEFORMER_ISA == LANEFORMER_ISA_AVX512

struct Vector {
    __m512 lanes;
};
inline Vector zero() { return {_mm512_setzero_ps()}; }
inline Vector broadcast(float value) { return {_mm512_set1_ps(value)}; }
inline Vector load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Vector load(const Bfloat16* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Vector load(const Float16* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline void store(float* to, Vector a) { _mm512_storeu_ps(to, a.lanes); }
inline Vector add(Vector a, Vector b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
inline Vector subtract(Vector a, Vector b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
inline Vector multiply(Vector a, Vector b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
inline Vector divide(Vector a, Vector b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
// a > b ? a : b, so that a NaN in b stays.
inline Vector larger(Vector a, Vector b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
inline Vector smaller(Vector a, Vector b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
inline Vector nearest(Vector a) {
    return {_mm512_roundscale_ps(a.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vector power_of_two(Vector whole) {  // 2 ** whole, for whole numbers from -126 to 127
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(whole.lanes), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}
inline float sum(Vector a) {
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.lanes), 1));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.lanes), upper);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
// sums[0] to sums[7] of eight vectors, each added by halves as in sum(), in a third of its instructions.
inline void store_sums_of_8(float* to, const Vector* a) {
    const auto fold = [](__m512 x, __m512 y, auto low, auto high) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, low), _mm512_shuffle_f32x4(x, y, high));
    };
    constexpr std::integral_constant<int, 0x44> first_half{};
    constexpr std::integral_constant<int, 0xee> second_half{};
    constexpr std::integral_constant<int, 0x88> even_quarters{};
    constexpr std::integral_constant<int, 0xdd> odd_quarters{};
    // Eight partial sums of two vectors each, in order 0 4 | 1 5 | 2 6 | 3 7.
    const __m512 e04 = fold(a[0].lanes, a[4].lanes, first_half, second_half);
    const __m512 e15 = fold(a[1].lanes, a[5].lanes, first_half, second_half);
    const __m512 e26 = fold(a[2].lanes, a[6].lanes, first_half, second_half);
    const __m512 e37 = fold(a[3].lanes, a[7].lanes, first_half, second_half);
    // Four partial sums of four vectors each: quarters are 0 4 2 6 and 1 5 3 7.
    const __m512 f0426 = fold(e04, e26, even_quarters, odd_quarters);
    const __m512 f1537 = fold(e15, e37, even_quarters, odd_quarters);
    // Two of each, side by side: quarters 0 0 1 1 | 4 4 5 5 | 2 2 3 3 | 6 6 7 7.
    const __m512d x = _mm512_castps_pd(f0426), y = _mm512_castps_pd(f1537);
    const __m512 pairs = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                                       _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    const __m512 done = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
    const __m512i order = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, done)));
}

#elif LANEFORMER_ISA == LANEFORMER_ISA_AVX2

struct Vector {
    __m256 low, high;
};
inline Vector zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vector broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Vector load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline __m256 widened_half(const Bfloat16* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline __m256 widened_half(const Float16* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Vector load(const Bfloat16* from) { return {widened_half(from), widened_half(from + 8)}; }
inline Vector load(const Float16* from) { return {widened_half(from), widened_half(from + 8)}; }
inline void store(float* to, Vector a) {
    _mm256_storeu_ps(to, a.low);
    _mm256_storeu_ps(to + 8, a.high);
}
inline Vector add(Vector a, Vector b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Vector subtract(Vector a, Vector b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Vector multiply(Vector a, Vector b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Vector divide(Vector a, Vector b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Vector multiply_add(Vector a, Vector b, Vector c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Vector larger(Vector a, Vector b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Vector smaller(Vector a, Vector b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Vector nearest(Vector a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, mode), _mm256_round_ps(a.high, mode)};
}
inline __m256 power_of_two_half(__m256 whole) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
inline Vector power_of_two(Vector whole) { return {power_of_two_half(whole.low), power_of_two_half(whole.high)}; }
inline float sum(Vector a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#else

struct Vector {
    float lanes[16];
};
template <typename Operation>
inline Vector each(Operation operation) {
    Vector result;
    for (int lane = 0; lane < 16; ++lane) result.lanes[lane] = operation(lane);
    return result;
}
inline Vector broadcast(float value) {
    return each([=](int) { return value; });
}
inline Vector zero() { return broadcast(0.0f); }
template <typename Stored>
inline Vector load(const Stored* from) {
    return each([=](int lane) { return widened(from[lane]); });
}
inline void store(float* to, const Vector& a) { std::memcpy(to, a.lanes, sizeof a.lanes); }
inline Vector add(const Vector& a, const Vector& b) {
    return each([&](int lane) { return a.lanes[lane] + b.lanes[lane]; });
}
inline Vector subtract(const Vector& a, const Vector& b) {
    return each([&](int lane) { return a.lanes[lane] - b.lanes[lane]; });
}
inline Vector multiply(const Vector& a, const Vector& b) {
    return each([&](int lane) { return a.lanes[lane] * b.lanes[lane]; });
}
inline Vector divide(const Vector& a, const Vector& b) {
    return each([&](int lane) { return a.lanes[lane] / b.lanes[lane]; });
}
inline Vector multiply_add(const Vector& a, const Vector& b, const Vector& c) {
    return each([&](int lane) { return std::fma(a.lanes[lane], b.lanes[lane], c.lanes[lane]); });
}
inline Vector larger(const Vector& a, const Vector& b) {
    return each([&](int lane) { return a.lanes[lane] > b.lanes[lane] ? a.lanes[lane] : b.lanes[lane]; });
}
inline Vector smaller(const Vector& a, const Vector& b) {
    return each([&](int lane) { return a.lanes[lane] < b.lanes[lane] ? a.lanes[lane] : b.lanes[lane]; });
}
inline Vector nearest(const Vector& a) {
    return each([&](int lane) { return std::nearbyint(a.lanes[lane]); });
}
inline Vector power_of_two(const Vector& whole) {
    return each([&](int lane) {
        // A NaN has no exponent to convert; multiplied with another NaN it does not matter which.
        const float value = whole.lanes[lane] == whole.lanes[lane] ? whole.lanes[lane] : 0.0f;
        const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(value) + 127) << 23;
        float result;
        std::memcpy(&result, &bits, sizeof result);
        return result;
    });
}
inline float sum(const Vector& a) {
    float part[8];
    for (int lane = 0; lane < 8; ++lane) part[lane] = a.lanes[lane] + a.lanes[lane + 8];
    for (int lane = 0; lane < 4; ++lane) part[lane] += part[lane + 4];
    return (part[0] + part[2]) + (part[1] + part[3]);
}

#endif

inline float largest_of(Vector a) {
    float values[16];
    store(values, a);
    float found = values[0];
    for (int lane = 1; lane < 16; ++lane) found = values[lane] > found ? values[lane] : found;
    return found;
}

// exp(x) to about 1e-7 relative; below -87 it is exp(-87), above 88 exp(88); NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite 1980), then the Taylor series of exp(r).
inline Vector exponential(Vector x) {
    x = smaller(broadcast(88.0f), larger(broadcast(-87.0f), x));
    const Vector n = nearest(multiply(x, broadcast(1.44269504088896341f)));
    Vector r = multiply_add(n, broadcast(-0.693359375f), x);
    r = multiply_add(n, broadcast(2.12194440e-4f), r);
    Vector series = broadcast(1.0f / 5040);
    series = multiply_add(series, r, broadcast(1.0f / 720));
    series = multiply_add(series, r, broadcast(1.0f / 120));
    series = multiply_add(series, r, broadcast(1.0f / 24));
    series = multiply_add(series, r, broadcast(1.0f / 6));
    series = multiply_add(series, r, broadcast(0.5f));
    series = multiply_add(series, r, broadcast(1.0f));
    series = multiply_add(series, r, broadcast(1.0f));
    return multiply(series, power_of_two(n));
}

}  // namespace laneformer
