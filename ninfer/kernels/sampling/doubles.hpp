// Vectors of fp64 for sampling: HALF lanes each, so that one vector of fp32 makes two.
#pragma once

#include "simd.hpp"

namespace ninfer {

constexpr int HALF = LANES / 2;

typedef double f64 __attribute__((vector_size(4 * NINFER_LANES)));
typedef uint64_t u64 __attribute__((vector_size(4 * NINFER_LANES)));

static inline f64 splat64(double x) { return x - f64{}; }

// a * b + c, rounded once where the machine can, else twice.
static inline f64 fma(f64 a, f64 b, f64 c) {
#if defined(NINFER_X86_512)
    return (f64)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(NINFER_X86)
    return (f64)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

// Half `part` (0 or 1) of a vector, exact.
static inline f64 widen(f32 v, int part) {
#if defined(NINFER_X86_512)
    const __m512 all = (__m512)v;
    return (f64)_mm512_cvtps_pd(part == 0 ? _mm512_castps512_ps256(all) : _mm512_extractf32x8_ps(all, 1));
#elif defined(NINFER_X86)
    const __m256 all = (__m256)v;
    return (f64)_mm256_cvtps_pd(part == 0 ? _mm256_castps256_ps128(all) : _mm256_extractf128_ps(all, 1));
#else
    f64 wide;
    for (int i = 0; i < HALF; ++i) wide[i] = v[part * HALF + i];
    return wide;
#endif
}

// e^x for x <= 0, within 2 units in the last place; e^-708 below -708. x is no NaN.
// Source: x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor polynomial of degree 13 (error below 5e-18 relative).
static inline f64 exponential(f64 x) {
    constexpr double LEAST = -708.0, MAGIC = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves n in the low bits
    const f64 bounded = x > LEAST ? x : splat64(LEAST);
    const f64 shifted = fma(bounded, splat64(1.4426950408889634), splat64(MAGIC));
    const f64 n = shifted - MAGIC;
    f64 r = fma(n, splat64(-6.93147180369123816490e-01), bounded);
    r = fma(n, splat64(-1.90821492927058770002e-10), r);
    // Powers are grouped, so that little waits for what comes before it.
    const f64 r2 = r * r, r4 = r2 * r2;
    const f64 c2 = fma(r, splat64(1.0 / 6.0), splat64(0.5));
    const f64 c4 = fma(r, splat64(1.0 / 120.0), splat64(1.0 / 24.0));
    const f64 c6 = fma(r, splat64(1.0 / 5040.0), splat64(1.0 / 720.0));
    const f64 c8 = fma(r, splat64(1.0 / 362880.0), splat64(1.0 / 40320.0));
    const f64 c10 = fma(r, splat64(1.0 / 39916800.0), splat64(1.0 / 3628800.0));
    const f64 c12 = fma(r, splat64(1.0 / 6227020800.0), splat64(1.0 / 479001600.0));
    const f64 low = fma(c4, r2, c2), middle = fma(c8, r2, c6), high = fma(c12, r2, c10);
    const f64 tail = fma(fma(high, r4, middle), r4, low);  // (e^r - 1 - r) / r^2
    const f64 power = (f64)(((u64)shifted + 1023) << 52);  // 2^n
    return (fma(tail, r2, r) + 1.0) * power;
}

}  // namespace ninfer
