// The two products of attention, in registers: queries with keys, and weights with values.
//
// A score is a dot product whose element d is added to lane d % LANES, and the lanes are added in the tree of `sum`. A
// value is added after the values of lower keys. Nothing depends on which queries and keys share the registers.
#pragma once

#include "simd.hpp"

namespace ninfer {

constexpr int64_t COLUMN_BLOCK = 64;  // columns of values decoded at once
constexpr int64_t KEYS_AT_ONCE = 4;
constexpr int64_t SCORE_ROW = 64;  // from one query's scores to the next's

// The sums of four vectors, each as `sum` adds it.
static inline void store_sums(f32 a, f32 b, f32 c, f32 d, float* out) {
#if defined(NINFER_X86)
#if defined(NINFER_X86_512)
    const auto halves = [](f32 v) {
        return _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    };
    const __m256 e = halves(a), f = halves(b), g = halves(c), h = halves(d);
#else
    const __m256 e = (__m256)a, f = (__m256)b, g = (__m256)c, h = (__m256)d;
#endif
    const __m256 ef = _mm256_add_ps(_mm256_permute2f128_ps(e, f, 0x20), _mm256_permute2f128_ps(e, f, 0x31));
    const __m256 gh = _mm256_add_ps(_mm256_permute2f128_ps(g, h, 0x20), _mm256_permute2f128_ps(g, h, 0x31));
    // Pairs of e, g in the lower half, of f, h in the upper.
    const __m256 pairs = _mm256_add_ps(_mm256_shuffle_ps(ef, gh, 0x44), _mm256_shuffle_ps(ef, gh, 0xee));
    const __m128 eg = _mm256_castps256_ps128(pairs), fh = _mm256_extractf128_ps(pairs, 1);
    const __m128 sums = _mm_add_ps(_mm_shuffle_ps(eg, fh, 0x88), _mm_shuffle_ps(eg, fh, 0xdd));  // e g f h
    _mm_storeu_ps(out, _mm_shuffle_ps(sums, sums, 0xd8));
#else
    out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d);
#endif
}

// `count` lanes of v, minus infinity in those after.
static inline f32 mask_after(f32 v, int count) {
    i32 lane;
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    return lane < splati(count) ? v : splat(-__builtin_inff());
}

template <int Q>
static inline void score_tile(const float* q, const float* keys, int64_t dim, float* scores) {
    f32 acc[Q][KEYS_AT_ONCE] = {};
    for (int64_t d = 0; d < dim; d += LANES) {
        f32 x[Q];
        for (int i = 0; i < Q; ++i) x[i] = loadf(q + i * dim + d);
        for (int k = 0; k < KEYS_AT_ONCE; ++k) {
            const f32 key = loadf(keys + k * dim + d);
            for (int i = 0; i < Q; ++i) acc[i][k] = fma(x[i], key, acc[i][k]);
        }
    }
    for (int i = 0; i < Q; ++i) store_sums(acc[i][0], acc[i][1], acc[i][2], acc[i][3], scores + i * SCORE_ROW);
}

template <int Q>
static inline void score_rows(const float* q, const float* keys, int64_t count, int64_t dim, float* scores) {
    for (int64_t k = 0; k < count; k += KEYS_AT_ONCE) score_tile<Q>(q, keys + k * dim, dim, scores + k);
}

template <int Q>
static inline void add_tile(const float* weights, const float* fades, const float* values, int64_t keys, int64_t dim,
                            float* sums) {
    constexpr int V = 4;
    for (int64_t column = 0; column < COLUMN_BLOCK; column += V * LANES) {
        f32 acc[Q][V] = {};
        for (int64_t k = 0; k < keys; ++k) {
            f32 w[Q];
            for (int i = 0; i < Q; ++i) w[i] = splat(weights[i * SCORE_ROW + k]);
            for (int v = 0; v < V; ++v) {
                const f32 value = loadf(values + k * COLUMN_BLOCK + column + v * LANES);
                for (int i = 0; i < Q; ++i) acc[i][v] = fma(w[i], value, acc[i][v]);
            }
        }
        for (int i = 0; i < Q; ++i)
            for (int v = 0; v < V; ++v) {
                float* to = sums + i * dim + column + v * LANES;
                store(to, fma(loadf(to), splat(fades[i]), acc[i][v]));
            }
    }
}

// Calls body with a constant number of queries: threes, and twos or a one at the end.
template <class Three, class Two, class One>
static inline void by_threes(int64_t queries, Three three, Two two, One one) {
    int64_t i = 0;
    for (; queries - i >= 3 && queries - i != 4; i += 3) three(i);
    for (; queries - i >= 2; i += 2) two(i);
    if (i < queries) one(i);
}

// Scores [queries, 64] of `count` keys [.., dim], in steps of four: up to three columns more are written.
static inline void multiply_keys(const float* q, int64_t queries, const float* keys, int64_t count, int64_t dim,
                                 float* scores) {
    by_threes(
        queries, [&](int64_t i) { score_rows<3>(q + i * dim, keys, count, dim, scores + i * SCORE_ROW); },
        [&](int64_t i) { score_rows<2>(q + i * dim, keys, count, dim, scores + i * SCORE_ROW); },
        [&](int64_t i) { score_rows<1>(q + i * dim, keys, count, dim, scores + i * SCORE_ROW); });
}

// sums [queries, dim] = fade * sums + weights [queries, 64] x values [keys, 64], in 64 columns of sums.
static inline void add_values(const float* weights, const float* fades, int64_t queries, const float* values,
                              int64_t keys, int64_t dim, float* sums) {
    by_threes(
        queries, [&](int64_t i) { add_tile<3>(weights + i * SCORE_ROW, fades + i, values, keys, dim, sums + i * dim); },
        [&](int64_t i) { add_tile<2>(weights + i * SCORE_ROW, fades + i, values, keys, dim, sums + i * dim); },
        [&](int64_t i) { add_tile<1>(weights + i * SCORE_ROW, fades + i, values, keys, dim, sums + i * dim); });
}

}  // namespace ninfer
