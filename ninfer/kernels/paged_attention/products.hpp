// The two products of attention, in registers: queries with keys, and weights with values.
//
// A score is a dot product whose element d is added to lane d % LANES, and the lanes are added in the tree of `sum`. A
// value is added after the values of lower keys. Nothing depends on which queries and keys share the registers.
#pragma once

#include "kv_cache/rows.hpp"
#include "simd.hpp"

namespace ninfer {

constexpr int64_t COLUMN_BLOCK = 64;  // columns of sums that one call adds to

// Keys or values: LANES numbers from (row, column). `fetch` brings number i of what is read next into the cache: far
// memory is read at its full speed only if one line after another is asked for, at an even pace.
struct NearRows {
    using Number = float;
    const float* first;
    int64_t stride;
    f32 at(int64_t row, int64_t column) const { return loadf(first + row * stride + column); }
    void fetch(int64_t) const {}
};

struct Fp32Rows {
    using Number = float;
    const float* first;
    int64_t stride;
    const float* next;
    f32 at(int64_t row, int64_t column) const { return loadf(first + row * stride + column); }
    void fetch(int64_t i) const { __builtin_prefetch(next + i, 0, 2); }
};

struct Bf16Rows {
    using Number = uint16_t;
    const uint16_t* first;
    int64_t stride;
    const uint16_t* next;
    f32 at(int64_t row, int64_t column) const { return from_bf16(first + row * stride + column); }
    void fetch(int64_t i) const { __builtin_prefetch(next + i, 0, 2); }
};

struct Int8Rows {
    using Number = int8_t;
    const int8_t* first;
    int64_t stride;
    const int8_t* next;
    const float* scales;  // [rows, groups]
    int64_t groups;
    f32 at(int64_t row, int64_t column) const {
        return from_int8(first + row * stride + column) * scales[row * groups + column / INT8_GROUP];
    }
    void fetch(int64_t i) const { __builtin_prefetch(next + i, 0, 2); }
};

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

// Keys, or vectors of a value, that share the registers with so many queries: 16 hold 12 sums and their factors.
constexpr int companions(int queries) { return queries == 4 && LANES == 8 ? 2 : 4; }

// Scores of Q queries and the next keys of four.
template <int Q, class Rows>
static inline void score_tile(const float* q, const Rows& keys, int64_t key, int64_t dim, float* scores) {
    constexpr int K = companions(Q);
    f32 acc[Q][K] = {};
    for (int64_t i = 0; i < K * dim; i += 64 / sizeof(typename Rows::Number)) keys.fetch(key * dim + i);
    for (int64_t d = 0; d < dim; d += LANES) {
        f32 x[Q];
        for (int i = 0; i < Q; ++i) x[i] = loadf(q + i * dim + d);
        for (int k = 0; k < K; ++k) {
            const f32 y = keys.at(key + k, d);
            for (int i = 0; i < Q; ++i) acc[i][k] = fma(x[i], y, acc[i][k]);
        }
    }
    if constexpr (K == 4) {
        for (int i = 0; i < Q; ++i) store_sums(acc[i][0], acc[i][1], acc[i][2], acc[i][3], scores + i * PAGE + key);
    } else {
        for (int i = 0; i < Q; i += 2) {
            float sums[4];
            store_sums(acc[i][0], acc[i][1], acc[i + 1][0], acc[i + 1][1], sums);
            std::memcpy(scores + i * PAGE + key, sums, 8);
            std::memcpy(scores + (i + 1) * PAGE + key, sums + 2, 8);
        }
    }
}

template <int Q, class Rows>
static inline void add_tile(const float* weights, const float* fades, const Rows& values, int64_t count, int64_t dim,
                            float* sums) {
    constexpr int V = companions(Q);
    for (int64_t column = 0; column < COLUMN_BLOCK; column += V * LANES) {
        f32 acc[Q][V] = {};
        for (int64_t k = 0; k < count; ++k) {
            values.fetch(column * PAGE + k * V * LANES);
            f32 w[Q];
            for (int i = 0; i < Q; ++i) w[i] = splat(weights[i * PAGE + k]);
            for (int v = 0; v < V; ++v) {
                const f32 y = values.at(k, column + v * LANES);
                for (int i = 0; i < Q; ++i) acc[i][v] = fma(w[i], y, acc[i][v]);
            }
        }
        for (int i = 0; i < Q; ++i)
            for (int v = 0; v < V; ++v) {
                float* to = sums + i * dim + column + v * LANES;
                store(to, fma(loadf(to), splat(fades[i]), acc[i][v]));
            }
    }
}

template <int N>
struct Constant {
    static constexpr int value = N;
};

// Calls body(first, a constant number) for queries that share the registers: threes, and what is left by fewest calls.
template <class Body>
static inline void by_registers(int64_t queries, Body body) {
    int64_t i = 0;
    for (; queries - i >= 3 && queries - i != 4; i += 3) body(i, Constant<3>());
    switch (queries - i) {
        case 4: return body(i, Constant<4>());
        case 2: return body(i, Constant<2>());
        case 1: return body(i, Constant<1>());
    }
}

// Scores [queries, 64] of the first `count` keys, in steps of four: columns up to three beyond may be written.
template <class Rows>
__attribute__((noinline)) void multiply_keys(const float* q, int64_t queries, const Rows& keys, int64_t count,
                                             int64_t dim, float* scores) {
    by_registers(queries, [&](int64_t i, auto number) {
        constexpr int Q = decltype(number)::value;
        for (int64_t key = 0; key < count; key += companions(Q))
            score_tile<Q>(q + i * dim, keys, key, dim, scores + i * PAGE);
    });
}

// sums [queries, dim] = fade * sums + weights [queries, 64] x values, in 64 columns of sums and of `count` values.
template <class Rows>
__attribute__((noinline)) void add_values(const float* weights, const float* fades, int64_t queries, const Rows& values,
                                          int64_t count, int64_t dim, float* sums) {
    by_registers(queries, [&](int64_t i, auto number) {
        add_tile<decltype(number)::value>(weights + i * PAGE, fades + i, values, count, dim, sums + i * dim);
    });
}

}  // namespace ninfer
