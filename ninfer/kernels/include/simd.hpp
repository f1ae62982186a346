// Vectors for compiled kernels, in one width per body.
//
// The types are the compiler's own vector types, so + - * / & | ^ << >> and comparisons work on every machine. What needs
// an instruction of its own is a function here, with a body for AVX-512, one for AVX2 and a plain one. The loader defines
// NINFER_AVX512, NINFER_AVX2 or neither; NINFER_PLAIN keeps the width but takes the plain functions, so that the wide
// body can be tested on a machine that lacks the instructions.
//
// Order: a reduction over K adds element k to lane k % LANES, in rising k, and `sum` adds the lanes in one fixed tree.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(NINFER_AVX512)
#define NINFER_LANES 16
#else
#define NINFER_LANES 8
#endif
#if !defined(NINFER_PLAIN) && (defined(NINFER_AVX512) || defined(NINFER_AVX2))
#define NINFER_X86 1
#include <immintrin.h>
#endif
#if defined(NINFER_AVX512) && !defined(NINFER_PLAIN)
#define NINFER_X86_512 1
#endif

namespace ninfer {

constexpr int LANES = NINFER_LANES;

typedef float f32 __attribute__((vector_size(4 * NINFER_LANES)));
typedef int32_t i32 __attribute__((vector_size(4 * NINFER_LANES)));
typedef uint32_t u32 __attribute__((vector_size(4 * NINFER_LANES)));
typedef int16_t i16 __attribute__((vector_size(4 * NINFER_LANES)));
typedef uint16_t u16 __attribute__((vector_size(4 * NINFER_LANES)));
typedef int8_t i8 __attribute__((vector_size(4 * NINFER_LANES)));
typedef uint8_t u8 __attribute__((vector_size(4 * NINFER_LANES)));

// ---- memory: any alignment ------------------------------------------------------------------------------

template <class V>
static inline V load(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class V>
static inline void store(void* to, V v) {
    std::memcpy(to, &v, sizeof v);
}

static inline f32 loadf(const float* from) { return load<f32>(from); }

// The first `count` elements, 0 beyond. count in [0, LANES].
static inline f32 load_head(const float* from, int count) {
    f32 v = {};
    std::memcpy(&v, from, sizeof(float) * count);
    return v;
}

static inline void store_head(float* to, f32 v, int count) { std::memcpy(to, &v, sizeof(float) * count); }

// ---- arithmetic -----------------------------------------------------------------------------------------

static inline f32 splat(float x) { return x - f32{}; }
static inline i32 splati(int32_t x) { return x - i32{}; }

// a * b + c, rounded once where the machine can, else twice. One body always does the same.
static inline f32 fma(f32 a, f32 b, f32 c) {
#if defined(NINFER_X86_512)
    return (f32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(NINFER_X86)
    return (f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline f32 vmax(f32 a, f32 b) { return a > b ? a : b; }
static inline f32 vmin(f32 a, f32 b) { return a < b ? a : b; }
static inline f32 vabs(f32 a) { return (f32)((u32)a & 0x7fffffffu); }

static inline f32 to_f32(i32 v) { return __builtin_convertvector(v, f32); }
static inline i32 truncate(f32 v) { return __builtin_convertvector(v, i32); }

// To the nearest integer, ties to even; |v| < 2^22.
static inline i32 round_even(f32 v) {
#if defined(NINFER_X86_512)
    return (i32)_mm512_cvtps_epi32((__m512)v);
#elif defined(NINFER_X86)
    return (i32)_mm256_cvtps_epi32((__m256)v);
#else
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    return (i32)(v + magic) - 0x4b400000;
#endif
}

// Sum of all lanes: halves are added until one is left.
static inline float sum(f32 v) {
    float lanes[LANES];
    std::memcpy(lanes, &v, sizeof v);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

static inline float greatest(f32 v) {
    float lanes[LANES];
    std::memcpy(lanes, &v, sizeof v);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}

static inline int32_t sum(i32 v) {
    int32_t total = 0;
    for (int i = 0; i < LANES; ++i) total += v[i];
    return total;
}

// ---- conversions ----------------------------------------------------------------------------------------

// LANES bf16 words to fp32, exact.
static inline f32 from_bf16(const uint16_t* from) {
#if defined(NINFER_X86_512)
    return (f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
#elif defined(NINFER_X86)
    return (f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16);
#else
    u32 words;
    for (int i = 0; i < LANES; ++i) words[i] = (uint32_t)from[i] << 16;
    return (f32)words;
#endif
}

static inline float from_bf16(uint16_t word) {
    const uint32_t bits = (uint32_t)word << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// One fp16 word to fp32, exact: subnormals, infinities and NaN included.
static inline float from_half(uint16_t word) {
#if defined(NINFER_X86)
    return _cvtsh_ss(word);
#else
    const uint32_t sign = (uint32_t)(word & 0x8000) << 16, exponent = word >> 10 & 31, mantissa = word & 1023;
    uint32_t bits;
    float value;
    if (exponent == 0) {
        value = (float)mantissa * 5.9604644775390625e-8f;  // 2^-24
        std::memcpy(&bits, &value, 4);
        bits |= sign;
    } else {
        bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    }
    std::memcpy(&value, &bits, 4);
    return value;
#endif
}

// LANES fp16 words to fp32, exact.
static inline f32 from_half(const uint16_t* from) {
#if defined(NINFER_X86_512)
    return (f32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(NINFER_X86)
    return (f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    f32 v;
    for (int i = 0; i < LANES; ++i) v[i] = from_half(from[i]);
    return v;
#endif
}

// LANES signed bytes to fp32, exact.
static inline f32 from_int8(const int8_t* from) {
#if defined(NINFER_X86_512)
    return (f32)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(NINFER_X86)
    return (f32)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    f32 v;
    for (int i = 0; i < LANES; ++i) v[i] = (float)from[i];
    return v;
#endif
}

// ---- elementary functions -------------------------------------------------------------------------------

// e^x within 1.5 units in the last place. Overflows to infinity, underflows gradually to 0; NaN stays NaN.
// Source: x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor polynomial of degree 7 (error below 5e-9 relative).
static inline f32 vexp(f32 x) {
    const f32 bounded = vmin(vmax(x, splat(-105.0f)), splat(89.0f));
    const i32 n = round_even(bounded * 1.44269504088896341f);
    const f32 nf = to_f32(n);
    f32 r = fma(nf, splat(-0.693359375f), bounded);
    r = fma(nf, splat(2.12194440e-4f), r);
    f32 p = splat(1.98412698e-4f);
    p = fma(p, r, splat(1.38888889e-3f));
    p = fma(p, r, splat(8.33333333e-3f));
    p = fma(p, r, splat(4.16666667e-2f));
    p = fma(p, r, splat(1.66666667e-1f));
    p = fma(p, r, splat(0.5f));
    p = fma(p * r, r, r) + 1.0f;
    // 2^n in two factors, so that neither leaves the range of normal numbers.
    const i32 half = n >> 1;
    const f32 first = (f32)((half + 127) << 23), second = (f32)((n - half + 127) << 23);
    const f32 value = p * first * second;
    return x == x ? value : x;
}

// x / (1 + e^-x); -0 or 0 far below.
static inline f32 vsilu(f32 x) { return x / (vexp(-x) + 1.0f); }

static inline f32 vsigmoid(f32 x) { return 1.0f / (vexp(-x) + 1.0f); }

}  // namespace ninfer
