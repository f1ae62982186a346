// What the recurrence needs of vectors: sums of several at once, and stores that leave the caches alone.
#pragma once

#include "simd.hpp"

namespace ninfer {

// How many of `rest` elements the next vector takes.
static inline int part(int64_t rest) { return rest < LANES ? static_cast<int>(rest) : LANES; }

// Asks for memory that is used soon; any address will do.
static inline void fetch(const float* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(from + i);
}

static inline bool is_aligned(const float* at) { return reinterpret_cast<uintptr_t>(at) % sizeof(f32) == 0; }

// To aligned memory that is not read soon. Other threads see it after `finish_stores_past_caches` and a barrier.
static inline void store_past_caches(float* to, f32 v) {
#if defined(NINFER_X86_512)
    _mm512_stream_ps(to, (__m512)v);
#elif defined(NINFER_X86)
    _mm256_stream_ps(to, (__m256)v);
#else
    store(to, v);
#endif
}

static inline void finish_stores_past_caches() {
#if defined(NINFER_X86)
    _mm_sfence();
#endif
}

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
