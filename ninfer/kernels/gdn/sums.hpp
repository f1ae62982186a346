// Sums of the lanes of several vectors at once.
#pragma once

#include "simd.hpp"

namespace ninfer {

#if defined(NINFER_X86)
// Lane i of the result is the sum of the lanes of v[i], by the tree of `sum`.
static inline __m256 sums8(const __m256* v) {
    __m256 halves[4], quarters[2];
    for (int i = 0; i < 4; ++i)
        halves[i] = _mm256_add_ps(
            _mm256_permute2f128_ps(v[i], v[i + 4], 0x20), _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
    for (int i = 0; i < 2; ++i)
        quarters[i] = _mm256_add_ps(
            _mm256_shuffle_ps(halves[2 * i], halves[2 * i + 1], 0x44),
            _mm256_shuffle_ps(halves[2 * i], halves[2 * i + 1], 0xee));
    return _mm256_add_ps(
        _mm256_shuffle_ps(quarters[0], quarters[1], 0x88), _mm256_shuffle_ps(quarters[0], quarters[1], 0xdd));
}
#endif

// Lane i of the result is sum(v[i]), to the bit.
static inline f32 sums(const f32 (&v)[LANES]) {
#if defined(NINFER_X86_512)
    __m256 halves[LANES];
    for (int i = 0; i < LANES; ++i)
        halves[i] = _mm256_add_ps(
            _mm512_castps512_ps256((__m512)v[i]), _mm512_extractf32x8_ps((__m512)v[i], 1));
    return (f32)_mm512_insertf32x8(_mm512_castps256_ps512(sums8(halves)), sums8(halves + 8), 1);
#elif defined(NINFER_X86)
    __m256 vectors[LANES];
    for (int i = 0; i < LANES; ++i) vectors[i] = (__m256)v[i];
    return (f32)sums8(vectors);
#else
    f32 totals;
    for (int i = 0; i < LANES; ++i) totals[i] = sum(v[i]);
    return totals;
#endif
}

}  // namespace ninfer
