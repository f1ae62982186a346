// Products of fp32 activations and exactly represented weights.
//
// Order. For one row and one token, lane k % LANES adds w_k * x_k, in rising k, with `fma`, with zeros up to a multiple
// of PAD; `sum` adds the lanes, and the row's factor multiplies the result. This is the only order there is, so bits
// depend on neither the number of tokens or rows, nor on blocks, nor on threads.
//
// How. Some rows are multiplied with some tokens, one block of columns after another; between blocks the lanes wait in
// memory. For few tokens weights become fp32 on their way through registers. For more, the block's weights become fp32
// in cache first, and are then multiplied with all tokens, TILE_ROWS by TILE_TOKENS sums in registers.
#pragma once

#include "linear/decode.hpp"
#include "simd.hpp"

#include <type_traits>

namespace ninfer::a16 {

constexpr int PAD = 64;
constexpr int TOKENS = 128;      // most tokens of a call
constexpr int ROWS = 3 * LANES;  // most rows of a call
constexpr int TILE_ROWS = 3;
constexpr int TILE_TOKENS = LANES / 2;
constexpr int COLUMNS = 1024;             // of a block in cache
constexpr int STREAM_TOKENS = 8;          // up to so many, weights go through registers
constexpr int STREAM_ROWS = 12 * LANES;   // most rows of a call with so few tokens
constexpr int STREAM_FLOATS = 4096;       // of x to a block of columns, half of the first-level cache
constexpr int64_t AHEAD = 4096;           // bytes of codes between what is read and what is asked for
constexpr int PRODUCTS = TOKENS * ROWS;   // most products of a call
static_assert(STREAM_TOKENS * STREAM_ROWS <= PRODUCTS, "few tokens need no more memory than many");

// Most rows of a call with so many tokens. Few tokens leave the time to memory, which long runs of rows read faster.
static inline int64_t most_rows(int64_t tokens) { return tokens <= STREAM_TOKENS ? STREAM_ROWS : ROWS; }

// Some rows of x [.., columns]: those listed, or `count` from `first` on.
struct Batch {
    const float* x;
    int64_t columns;
    const int32_t* picks;
    int64_t first;
    int64_t count;

    const float* token(int64_t i) const { return x + (picks == nullptr ? first + i : picks[i]) * columns; }
};

// Memory of one worker.
struct Scratch {
    float* block;  // [ROWS][COLUMNS]
    f32* sums;     // [tokens][most rows]: a vector of lanes for each token and row

    template <class Worker>
    static Scratch of(Worker& worker) {
        return {worker.template own<float>(ROWS * COLUMNS), worker.template own<f32>(PRODUCTS)};
    }
};

// A block of columns.
struct Columns {
    int64_t begin;
    int64_t count;
    int64_t all;

    bool first() const { return begin == 0; }
    bool last() const { return begin + count == all; }
    bool whole() const { return count == all; }
};

// ---- sums of lanes --------------------------------------------------------------------------------------

#if NINFER_X86
// Lane i becomes `sum` of v[i], for eight vectors at once: the same additions, in other places.
NINFER_INLINE static __m256 sum_eight(const __m256* v) {
    __m256 halves[4], quarters[2];
    NINFER_UNROLL
    for (int i = 0; i < 4; ++i) {
        const __m256 a = v[2 * i], b = v[2 * i + 1];
        halves[i] = _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
    }
    NINFER_UNROLL
    for (int i = 0; i < 2; ++i) {
        const __m256d a = (__m256d)halves[2 * i], b = (__m256d)halves[2 * i + 1];
        quarters[i] = (__m256)_mm256_unpacklo_pd(a, b) + (__m256)_mm256_unpackhi_pd(a, b);
    }
    const __m256 a = quarters[0], b = quarters[1];
    const __m256 sums = _mm256_shuffle_ps(a, b, 0x88) + _mm256_shuffle_ps(a, b, 0xdd);
    return _mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#endif

// Lane i becomes `sum` of v[i].
static inline f32 sum_each(const f32* v) {
#if NINFER_X86_512
    __m256 halves[LANES];
    for (int i = 0; i < LANES; ++i)
        halves[i] = _mm512_castps512_ps256((__m512)v[i]) + _mm512_extractf32x8_ps((__m512)v[i], 1);
    return (f32)_mm512_insertf32x8(_mm512_castps256_ps512(sum_eight(halves)), sum_eight(halves + 8), 1);
#elif NINFER_X86
    return (f32)sum_eight((const __m256*)v);
#else
    f32 sums;
    for (int i = 0; i < LANES; ++i) sums[i] = sum(v[i]);
    return sums;
#endif
}

// ---- stored rows ----------------------------------------------------------------------------------------

template <class F>
NINFER_INLINE static Row advanced(const Row& row, int64_t unit) {
    return {row.codes + unit * F::codes, row.high + unit * F::high, row.scales + (unit * F::scales & ~1)};
}

// The last `columns` columns of a row, fewer than PAD, with zeros behind them: in `copy` unless the row is padded.
template <class F>
static inline Row last_columns(Row row, int64_t columns, uint8_t* copy) {
    if (F::padded) return row;
    std::memset(copy, 0, F::codes * PAD / F::columns);
    std::memcpy(copy, row.codes, F::codes / F::columns * columns);
    row.codes = copy;
    return row;
}

static inline const float* last_floats(const float* x, int64_t count, float* copy) {
    std::memset(copy, 0, PAD * sizeof(float));
    std::memcpy(copy, x, count * sizeof(float));
    return copy;
}

// Fetches what lies `ahead` bytes behind a unit into the second-level cache: the first cannot hold it until then.
template <class F>
NINFER_INLINE static void fetch(const Row& row, int64_t ahead) {
    NINFER_UNROLL_FORMAT
    for (int b = 0; b < F::codes; b += 64) __builtin_prefetch(row.codes + ahead + b, 0, 2);
}

// How far ahead of some columns lies what is read after them: the same rows' next ones, or the first ones of the next
// call's rows.
template <class F>
static inline int64_t ahead(const Part& part, const Columns& columns, int64_t rows) {
    if (columns.last()) return rows * part.code_stride - columns.begin / F::columns * F::codes;
    return columns.count / F::columns * F::codes;
}

// ---- lanes ----------------------------------------------------------------------------------------------

// Sums of T tokens, ROOM vectors from each other, and R rows, `apart`.
template <int ROOM, int R, int T>
NINFER_INLINE static void take(const f32* from, int64_t apart, const Columns& columns, f32 (&sums)[R][T]) {
    NINFER_UNROLL
    for (int t = 0; t < T; ++t) {
        NINFER_UNROLL
        for (int r = 0; r < R; ++r) sums[r][t] = columns.first() ? f32{} : from[t * ROOM + r * apart];
    }
}

template <int ROOM, int R, int T>
NINFER_INLINE static void put(const f32 (&sums)[R][T], f32* to, int64_t apart, int64_t rows, int64_t tokens) {
    NINFER_UNROLL
    for (int t = 0; t < T; ++t) {
        NINFER_UNROLL
        for (int r = 0; r < R; ++r)
            if (r * apart < rows && t < tokens) to[t * ROOM + r * apart] = sums[r][t];
    }
}

// ---- through registers ----------------------------------------------------------------------------------

template <class F, int R, int T>
NINFER_INLINE static void stream_units(
    const Row (&rows)[R], const float* const (&x)[T], int64_t count, int64_t next, f32 (&sums)[R][T]) {
    for (int64_t k = 0; k < count; k += F::columns) {
        const int64_t u = k / F::columns;
        typename F::Shared shared[R];
        NINFER_UNROLL_FORMAT
        for (int r = 0; r < R; ++r) {
            fetch<F>(advanced<F>(rows[r], u), next);
            shared[r] = F::shared(advanced<F>(rows[r], u));
        }
        NINFER_UNROLL_FORMAT
        for (int i = 0; i < F::columns / LANES; ++i) {
            NINFER_UNROLL_FORMAT
            for (int r = 0; r < R; ++r) {  // in turns, because a sum waits for its last product
                const f32 w = F::vector(advanced<F>(rows[r], u), shared[r], i);
                NINFER_UNROLL_FORMAT
                for (int t = 0; t < T; ++t) sums[r][t] = fma(w, loadf(x[t] + k + i * LANES), sums[r][t]);
            }
        }
    }
}

// to[t][r] += the lanes of R rows, `apart` from each other, and T tokens. Rows from `count` on and tokens from `tokens` on
// repeat others.
template <class F, int R, int T>
__attribute__((noinline)) static void stream_tile(
    const Part& part, int64_t row, int64_t apart, int64_t count, const Batch& batch, int64_t token, int64_t tokens,
    const Columns& columns, f32* to) {
    const int64_t next = columns.whole() ? AHEAD : ahead<F>(part, columns, STREAM_ROWS);
    const int64_t left = columns.count % PAD, whole = columns.count - left;
    Row rows[R];
    const float* x[T];
    f32 sums[R][T];
    for (int r = 0; r < R; ++r) {
        const Row begin = F::row(part, row + (r * apart < count ? r * apart : 0), columns.all);
        rows[r] = advanced<F>(begin, columns.begin / F::columns);
    }
    for (int t = 0; t < T; ++t) x[t] = batch.token(token + (t < tokens ? t : tokens - 1)) + columns.begin;
    take<STREAM_ROWS>(to, apart, columns, sums);
    uint8_t last_codes[R][F::codes * PAD / F::columns];
    float last_x[T][PAD];
    for (int pass = 0; pass < (left > 0 ? 2 : 1); ++pass) {
        if (pass == 1) {
            for (int r = 0; r < R; ++r)
                rows[r] = last_columns<F>(advanced<F>(rows[r], whole / F::columns), left, last_codes[r]);
            for (int t = 0; t < T; ++t) x[t] = last_floats(x[t] + whole, left, last_x[t]);
        }
        stream_units<F>(rows, x, pass == 0 ? whole : PAD, next, sums);
    }
    put<STREAM_ROWS>(sums, to, apart, count, tokens);
}

// All rows of a call and all tokens: R rows at a time, with T tokens after T tokens. The R rows are far apart, so that each
// is followed by its neighbour: memory streams along a few long runs, while neighbours in turns got two thirds of that.
template <class F, int R, int T>
static inline void stream_apart(
    const Part& part, int64_t begin, int64_t count, const Batch& batch, const Columns& columns, f32* to) {
    const int64_t apart = (count + R - 1) / R;
    for (int64_t r = 0; r < apart; ++r)
        for (int64_t t = 0; t < batch.count; t += T)
            stream_tile<F, R, T>(
                part, begin + r, apart, count - r, batch, t, batch.count - t, columns, to + t * STREAM_ROWS + r);
}

// Rows [begin, end) and all tokens.
template <class F>
static inline void stream_rows(
    const Part& part, int64_t begin, int64_t end, const Batch& batch, const Columns& columns, f32* to) {
    constexpr bool direct = std::is_empty<typename F::Shared>::value;
    constexpr int FEW = direct ? 3 : 4;   // a sum waits for its last product, unless decoding takes that long anyway
    constexpr int MANY = direct ? 3 : 2;  // with four tokens: what registers hold
    if (batch.count == 1) stream_apart<F, FEW, 1>(part, begin, end - begin, batch, columns, to);
    else if (batch.count == 2) stream_apart<F, FEW, 2>(part, begin, end - begin, batch, columns, to);
    else stream_apart<F, MANY, 4>(part, begin, end - begin, batch, columns, to);
}

// ---- through a block in cache ---------------------------------------------------------------------------

// A row's columns in fp32, with zeros up to a multiple of PAD.
template <class F>
static void decode(const Part& part, int64_t row, const Columns& columns, float* to) {
    const int64_t next = ahead<F>(part, columns, ROWS), left = columns.count % PAD, whole = columns.count - left;
    Row begin = advanced<F>(F::row(part, row, columns.all), columns.begin / F::columns);
    uint8_t last[F::codes * PAD / F::columns];
    for (int pass = 0; pass < (left > 0 ? 2 : 1); ++pass) {
        if (pass == 1) begin = last_columns<F>(advanced<F>(begin, whole / F::columns), left, last);
        for (int64_t k = 0; k < (pass == 0 ? whole : PAD); k += F::columns) {
            const Row unit = advanced<F>(begin, k / F::columns);
            fetch<F>(unit, next);
            const typename F::Shared shared = F::shared(unit);
            NINFER_UNROLL_FORMAT
            for (int i = 0; i < F::columns / LANES; ++i, to += LANES) store(to, F::vector(unit, shared, i));
        }
    }
}

template <int R, int T>
NINFER_INLINE static void multiply_vectors(
    const float* block, const float* const (&x)[T], int64_t count, f32 (&sums)[R][T]) {
    for (int64_t k = 0; k < count; k += LANES) {
        f32 v[T];
        NINFER_UNROLL
        for (int t = 0; t < T; ++t) v[t] = loadf(x[t] + k);
        NINFER_UNROLL
        for (int r = 0; r < R; ++r) {
            const f32 w = loadf(block + r * COLUMNS + k);
            NINFER_UNROLL
            for (int t = 0; t < T; ++t) sums[r][t] = fma(w, v[t], sums[r][t]);
        }
    }
}

// to[t][r] += the lanes of R rows of the block and T tokens. Never inlined: its sums must stay in registers.
template <int R, int T>
__attribute__((noinline)) static void multiply_tile(
    const float* block, const Batch& batch, int64_t token, const Columns& columns, f32* to) {
    const int64_t left = columns.count % PAD, whole = columns.count - left;
    f32 sums[R][T];
    const float* x[T];
    float last_x[T][PAD];
    for (int t = 0; t < T; ++t) x[t] = batch.token(token + t) + columns.begin;
    take<ROWS>(to, 1, columns, sums);
    for (int pass = 0; pass < (left > 0 ? 2 : 1); ++pass) {
        if (pass == 1)
            for (int t = 0; t < T; ++t) x[t] = last_floats(x[t] + whole, left, last_x[t]);
        multiply_vectors(block + pass * whole, x, pass == 0 ? whole : PAD, sums);
    }
    put<ROWS>(sums, to, 1, R, T);
}

template <int T>
static void multiply_tokens(
    const float* block, int64_t rows, const Batch& batch, int64_t token, const Columns& columns, f32* to) {
    constexpr int R = T > TILE_TOKENS / 2 ? TILE_ROWS : 2 * TILE_ROWS;
    for (int64_t r = 0; r < rows; r += R)
        multiply_tile<R, T>(block + r * COLUMNS, batch, token, columns, to + token * ROWS + r);
}

// The tokens from `token` on, at most T.
template <int T>
static void multiply_rest(
    const float* block, int64_t rows, const Batch& batch, int64_t token, const Columns& columns, f32* to) {
    if constexpr (T > 0) {
        if (batch.count - token == T) return multiply_tokens<T>(block, rows, batch, token, columns, to);
        multiply_rest<T - 1>(block, rows, batch, token, columns, to);
    }
}

static inline void multiply_block(
    const float* block, int64_t rows, const Batch& batch, const Columns& columns, f32* to) {
    int64_t t = 0;
    for (; t + TILE_TOKENS <= batch.count; t += TILE_TOKENS)
        multiply_tokens<TILE_TOKENS>(block, rows, batch, t, columns, to);
    multiply_rest<TILE_TOKENS - 1>(block, rows, batch, t, columns, to);
}

// ---- rows of an output ----------------------------------------------------------------------------------

// Calls body(F{}, part, begin, end, offset) for the rows [begin, end) of an output, part by part: the struct of its
// format, rows of the part, and where the first of them stands among the rows asked for.
template <class Body>
static inline void by_part(const Output& o, int64_t begin, int64_t end, Body body) {
    int64_t offset = 0;
    for (const Part* part = o.parts; begin < end; ++part) {
        const int64_t stop = end < part->rows ? end : part->rows;
        if (begin < stop) {
            with_format(part->format, [&](auto f) { body(f, *part, begin, stop, offset); });
            offset += stop - begin;
            begin = stop;
        }
        begin -= part->rows;
        end -= part->rows;
    }
}

static inline void multiply_columns(
    const Output& o, int64_t begin, int64_t end, const Batch& batch, const Columns& columns, const Scratch& s) {
    const bool stream = batch.count <= STREAM_TOKENS;
    by_part(o, begin, end, [&](auto f, const Part& part, int64_t first, int64_t stop, int64_t offset) {
        using F = decltype(f);
        if (stream) {
            stream_rows<F>(part, first, stop, batch, columns, s.sums + offset);
        } else {
            for (int64_t row = first; row < stop; ++row)
                decode<F>(part, row, columns, s.block + (offset + row - first) * COLUMNS);
        }
    });
    if (stream) return;
    constexpr int64_t TILE = 2 * TILE_ROWS;
    const int64_t rows = end - begin, tiled = (rows + TILE - 1) / TILE * TILE;
    std::memset(s.block + rows * COLUMNS, 0, (tiled - rows) * COLUMNS * sizeof(float));
    multiply_block(s.block, tiled, batch, columns, s.sums);
}

// products[t][r], tokens `stride` apart, of at most TOKENS tokens and at most most_rows of them rows [begin, end) of an
// output.
static inline void multiply(
    const Output& o, int64_t begin, int64_t end, const Batch& batch, const Scratch& s, float* products,
    int64_t stride) {
    const int64_t few = batch.count < 4 ? batch.count : 4;
    const int64_t step = batch.count <= STREAM_TOKENS ? STREAM_FLOATS / few / 128 * 128 : COLUMNS;
    for (int64_t k = 0; k < batch.columns; k += step) {
        const int64_t left = batch.columns - k;
        multiply_columns(o, begin, end, batch, {k, left < step ? left : step, batch.columns}, s);
    }
    float factors[STREAM_ROWS] = {};
    by_part(o, begin, end, [&](auto f, const Part& part, int64_t first, int64_t stop, int64_t offset) {
        for (int64_t row = first; row < stop; ++row) factors[offset + row - first] = f.factor(part, row);
    });
    const int64_t rows = end - begin, room = most_rows(batch.count);
    for (int64_t t = 0; t < batch.count; ++t)
        for (int64_t r = 0; r < rows; r += LANES) {  // lanes of rows that do not exist may hold anything
            const int count = static_cast<int>(rows - r < LANES ? rows - r : LANES);
            store_head(products + t * stride + r, sum_each(s.sums + t * room + r) * loadf(factors + r), count);
        }
}

}  // namespace ninfer::a16
