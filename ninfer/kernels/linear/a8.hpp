// Products of 8-bit activations and weights stored in groups (q4, q5, q6, q8, t2).
//
// Activations. Each group of columns of a token, as long as the weight's groups, gets its own scale. In fp32, rounded
// to nearest even: amax = max |x|, scale = amax / 127, code = rint(x * (127 / amax)), which is within +-127. Columns
// beyond the last count as 0. If amax < 2^-119, scale and codes are 0. If amax is infinite or some x is NaN, the scale
// is infinite and the codes are 0: every product with this token is then 0 * infinity = NaN.
//
// Products. d_g, the product of the codes of group g, is exact in 32 bits. Lane j = g % 8 of eight sums adds, in rising
// g: lane[j] = fma(float(d_g), weight scale * token scale, lane[j]); `tree` adds the lanes. There is no other order:
// blocks of rows and tokens, threads and instructions only change how d_g is computed, and integers do not care.
//
// How. With up to 8 tokens (decode), an octet of a row is unpacked in registers and multiplied with all of them, so
// that memory traffic, unpacking and products overlap. With more tokens, a few rows are unpacked into the first-level
// cache once and multiplied with all of them, 2 rows by 4 tokens in registers.
#pragma once

#include <algorithm>

#include "linear/a8_octet.hpp"
#if NINFER_X86
#include "linear/a8_x86.hpp"
#else
#include "linear/a8_plain.hpp"
#endif

namespace ninfer::a8 {

constexpr int ROWS = 16;      // most rows of a block
constexpr int STREAMED = 8;   // up to so many tokens, weights are unpacked in registers
constexpr int TILE = 4;       // tokens multiplied at once with unpacked rows
constexpr int AHEAD = 4096;   // bytes of codes between what is read and what is asked for
constexpr int64_t BLOCK_BYTES = 16384;  // of unpacked rows, half of a first-level cache

static inline int64_t octets(int64_t columns, int group) { return (columns + OCTET * group - 1) / (OCTET * group); }

// ---- activations ----------------------------------------------------------------------------------------

// Bit i of a mask stands for groups of 32 << i columns.
static inline unsigned group_bit(int group) { return group / 32; }

// The group lengths of an output's weights.
static inline unsigned group_mask(const Output& o) {
    unsigned mask = 0;
    for (int64_t i = 0; i < o.count; ++i) with_format(o.parts[i].format, [&](auto f) { mask |= group_bit(f.group); });
    return mask;
}

// Quantised tokens, once for each length of group that is needed.
class Panel {
   public:
    static size_t bytes(int64_t tokens, int64_t columns, unsigned mask) {
        return tokens * (bytes_of<32>(columns, mask) + bytes_of<64>(columns, mask) + bytes_of<128>(columns, mask));
    }

    // `memory` has `bytes` bytes, 64-byte aligned.
    Panel(char* memory, int64_t tokens, int64_t columns, unsigned mask) : columns_(columns), mask_(mask) {
        at_[0] = memory;
        at_[1] = at_[0] + tokens * bytes_of<32>(columns, mask);
        at_[2] = at_[1] + tokens * bytes_of<64>(columns, mask);
    }

    // The octets of a token.
    template <int G>
    Activations<G>* token(int64_t t) const {
        return reinterpret_cast<Activations<G>*>(at_[G / 64]) + t * octets(columns_, G);
    }

    // Token t becomes x [columns].
    void quantise(int64_t t, const float* x) const {
        if (mask_ & group_bit(32)) quantise_groups<32>(x, token<32>(t));
        if (mask_ & group_bit(64)) quantise_groups<64>(x, token<64>(t));
        if (mask_ & group_bit(128)) quantise_groups<128>(x, token<128>(t));
    }

    int64_t columns() const { return columns_; }

   private:
    template <int G>
    static size_t bytes_of(int64_t columns, unsigned mask) {
        return mask & group_bit(G) ? octets(columns, G) * sizeof(Activations<G>) : 0;
    }

    template <int G>
    void quantise_groups(const float* x, Activations<G>* to) const;

    char* at_[3];
    int64_t columns_;
    unsigned mask_;
};

// Quantises G values; returns their scale.
template <int G>
static inline float quantise_group(const float* x, int8_t* codes) {
    i32 greatest = {};
    for (int i = 0; i < G; i += LANES) {
        const i32 magnitude = load<i32>(x + i) & 0x7fffffff;  // ordered like the floats, with NaN above infinity
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    int32_t bits = 0;
    for (int i = 0; i < LANES; ++i) bits = greatest[i] > bits ? greatest[i] : bits;
    float amax;
    std::memcpy(&amax, &bits, 4);
    if (!(amax >= 0x1p-119f && amax <= 3.4028234664e38f)) {
        std::memset(codes, 0, G);
        return amax < 0x1p-119f ? 0.0f : INFINITY;
    }
    for (int i = 0; i < G; i += 32) narrow(x + i, 127.0f / amax, codes + i);
    return amax / 127.0f;
}

template <int G>
inline void Panel::quantise_groups(const float* x, Activations<G>* to) const {
    alignas(64) int8_t codes[OCTET * G];
    for (int64_t o = 0, begin = 0; begin < columns_; ++o)
        for (int i = 0; i < OCTET; ++i, begin += G) {
            const int64_t left = columns_ - begin;
            float padded[G] = {};
            if (left > 0 && left < G) std::memcpy(padded, x + begin, sizeof(float) * left);
            to[o].scale[i] = quantise_group<G>(left >= G ? x + begin : padded, codes + i * G);
            if (i == OCTET - 1) arrange<G>(codes, to[o]);
        }
}

// Some tokens of a panel: those listed, or `count` from `first` on.
struct Batch {
    const Panel* panel;
    const int32_t* picks;
    int64_t first;
    int64_t count;

    // Octets of tokens begin, begin + 1, ...; beyond the last token, of the last again.
    template <int G, int T>
    void tokens(int64_t begin, const Activations<G>* (&out)[T]) const {
        for (int t = 0; t < T; ++t) {
            const int64_t i = begin + t < count ? begin + t : count - 1;
            out[t] = panel->token<G>(picks == nullptr ? first + i : picks[i]);
        }
    }
};

// ---- weights --------------------------------------------------------------------------------------------

// A row as it is stored, octet by octet.
template <class F>
class StoredRow {
   public:
    const uint8_t* codes;
    const uint8_t* high;
    const uint8_t* scales;

    StoredRow(const Part& part, int64_t row, int64_t columns)
        : codes(part.codes + row * part.code_stride),
          high(F::high ? part.high + row * part.high_stride : nullptr),
          scales(part.scales + row * part.scale_stride),
          groups_((columns + F::group - 1) / F::group) {
        finish_octet();
    }

    void next() {
        codes += OCTET * 32;
        high += OCTET * F::high;
        scales += OCTET * 2;
        groups_ -= OCTET;
        finish_octet();
    }

    // Asks for what this row, or the rows behind it, will need soon.
    void prefetch() const {
        for (int i = 0; i < OCTET * 32; i += 64) __builtin_prefetch(codes + AHEAD + i);
        for (int i = 0; i < OCTET * F::high; i += 64) __builtin_prefetch(high + AHEAD / 32 * F::high + i);
        __builtin_prefetch(scales + AHEAD / 16);
    }

   private:
    // An octet that lacks groups is replaced by a copy with zeros behind.
    void finish_octet() {
        if (groups_ >= OCTET || groups_ <= 0) return;
        std::memset(copy_, 0, sizeof copy_);
        codes = copy(codes, 0, 32);
        if (F::high) high = copy(high, 32, F::high);
        scales = copy(scales, 32 + F::high, 2);
    }

    const uint8_t* copy(const uint8_t* from, int at, int bytes) {
        std::memcpy(copy_ + OCTET * at, from, groups_ * bytes);
        return copy_ + OCTET * at;
    }

    int64_t groups_;
    uint8_t copy_[OCTET * (32 + F::high + 2)];
};

// Rows of a block of unpacked rows that stays in the first-level cache.
template <class F>
static inline int64_t block_rows(int64_t columns) {
    const int64_t fitting = BLOCK_BYTES / (octets(columns, F::group) * sizeof(Weights<F>)) / 2 * 2;
    return fitting < 2 ? 2 : fitting > ROWS ? ROWS : fitting;
}

// Bytes of scratch for `multiply`.
static inline size_t scratch_bytes(const Output& o, int64_t columns) {
    size_t most = 0;
    for (int64_t i = 0; i < o.count; ++i)
        with_format(o.parts[i].format, [&](auto f) {
            typedef decltype(f) F;
            const size_t bytes = block_rows<F>(columns) * octets(columns, F::group) * sizeof(Weights<F>);
            most = bytes > most ? bytes : most;
        });
    return most;
}

// ---- products -------------------------------------------------------------------------------------------

static inline lanesf add_octet(lanes32 products, lanesf weight_scale, const float* token_scale, lanesf sum) {
    return fused(__builtin_convertvector(products, lanesf), weight_scale * load<lanesf>(token_scale), sum);
}

// Rows of a part; their products go to out[token][row], tokens `stride` floats apart.
struct Rows {
    const Part* part;
    int64_t begin;
    int64_t count;  // at most ROWS
    float* out;
    int64_t stride;
};

// The products of up to ROWS rows from their lanes.
static inline void finish_rows(lanesf (&sums)[ROWS], int64_t count, float* out) {
    float y[ROWS];
    for (int64_t r = count; r % 4 != 0; ++r) sums[r] = lanesf{};
    for (int64_t r = 0; r < count; r += 4) sum_lanes(sums + r, y + r);
    std::memcpy(out, y, sizeof(float) * count);
}

// Products of stored rows with tokens [begin, begin + count) of the batch, of which there are at most T.
template <class F, int T>
static inline void multiply_stored(const Rows& rows, const Batch& batch, int64_t begin, int64_t count) {
    const int64_t columns = batch.panel->columns();
    const Activations<F::group>* tokens[T];
    batch.tokens<F::group>(begin, tokens);
    lanesf sums[T][ROWS];
    for (int64_t r = 0; r < rows.count; ++r) {
        StoredRow<F> row(*rows.part, rows.begin + r, columns);
        for (int t = 0; t < T; ++t) sums[t][r] = lanesf{};
        for (int64_t o = 0; o < octets(columns, F::group); ++o, row.next()) {
            const Activations<F::group>* x[T];
            for (int t = 0; t < T; ++t) x[t] = tokens[t] + o;
            row.prefetch();
            lanes32 products[T];
            multiply_stored_octet<F, T>(row.codes, row.high, x, products);
            const lanesf scale = stored_scales(row.scales);
            for (int t = 0; t < T; ++t) sums[t][r] = add_octet(products[t], scale, x[t]->scale, sums[t][r]);
        }
    }
    for (int64_t t = 0; t < count; ++t) finish_rows(sums[t], rows.count, rows.out + (begin + t) * rows.stride);
}

template <class F>
static inline void unpack(const Rows& rows, int64_t columns, Weights<F>* to) {
    for (int64_t r = 0; r < rows.count; ++r) {
        StoredRow<F> row(*rows.part, rows.begin + r, columns);
        for (int64_t o = 0; o < octets(columns, F::group); ++o, ++to, row.next()) {
            row.prefetch();
            unpack_codes(row.codes, row.high, *to);
            store(to->scale, stored_scales(row.scales));
        }
    }
}

// Products of two unpacked rows with TILE tokens: sums[0] and sums[1], to be finished by `sum_lanes`.
template <class F>
static inline void multiply_tile(const Weights<F>* const (&rows)[2], const Activations<F::group>* const (&tokens)[TILE],
                                 int64_t count, lanesf (&sums)[2][TILE]) {
    for (int i = 0; i < 2 * TILE; ++i) sums[i / TILE][i % TILE] = in_order(lanesf{});
    for (int64_t o = 0; o < count; ++o) {
        const Weights<F>* const w[2] = {rows[0] + o, rows[1] + o};
        const Activations<F::group>* x[TILE];
        for (int t = 0; t < TILE; ++t) x[t] = tokens[t] + o;
        lanes32 products[2][TILE];
        multiply_octet<F, 2, TILE>(w, x, products);
        for (int r = 0; r < 2; ++r)
            for (int t = 0; t < TILE; ++t)
                sums[r][t] = add_octet(products[r][t], load<lanesf>(w[r]->scale), x[t]->scale, sums[r][t]);
    }
}

// Products of unpacked rows with all tokens of the batch.
template <class F>
static inline void multiply_unpacked(const Rows& rows, const Weights<F>* block, const Batch& batch) {
    const int64_t count = octets(batch.panel->columns(), F::group);
    for (int64_t t = 0; t < batch.count; t += TILE) {
        const Activations<F::group>* tokens[TILE];
        batch.tokens<F::group>(t, tokens);
        for (int64_t r = 0; r < rows.count; r += 2) {
            const Weights<F>* first = block + r * count;
            const Weights<F>* pair[2] = {first, r + 1 < rows.count ? first + count : first};
            lanesf sums[2][TILE];
            multiply_tile<F>(pair, tokens, count, sums);
            for (int64_t i = r; i < r + 2 && i < rows.count; ++i) {
                float y[TILE];
                sum_lanes(sums[i - r], y);
                for (int64_t j = 0; j < TILE && t + j < batch.count; ++j) rows.out[(t + j) * rows.stride + i] = y[j];
            }
        }
    }
}

template <class F>
static inline void multiply_rows(const Rows& rows, const Batch& batch, char* scratch) {
    if (batch.count > STREAMED) {
        Weights<F>* block = reinterpret_cast<Weights<F>*>(scratch);
        unpack(rows, batch.panel->columns(), block);
        return multiply_unpacked(rows, block, batch);
    }
    int64_t done = 0;
    while (done < batch.count) {
        const int64_t left = batch.count - done;
        if (left > 5) return multiply_stored<F, 8>(rows, batch, done, left);
        const int64_t step = left < 3 ? left : left < 4 ? 3 : 4;
        if (left > 2) multiply_stored<F, 4>(rows, batch, done, step);
        else if (left == 2) multiply_stored<F, 2>(rows, batch, done, step);
        else multiply_stored<F, 1>(rows, batch, done, step);
        done += step;
    }
}

// out[i][n - begin] = product of token i of the batch with row n of the output's weights, begin <= n < end; tokens are
// `stride` floats apart in out. `scratch`: scratch_bytes, 64-byte aligned.
static inline void multiply(const Output& o, int64_t begin, int64_t end, const Batch& batch, char* scratch, float* out,
                            int64_t stride) {
    const Part* part = o.parts;
    int64_t row = begin;  // in the part
    while (begin < end) {
        while (row >= part->rows) row -= part++->rows;
        with_format(part->format, [&](auto f) {
            typedef decltype(f) F;
            const int64_t most = batch.count > STREAMED ? block_rows<F>(batch.panel->columns()) : ROWS;
            const int64_t count = std::min({most, end - begin, part->rows - row});
            multiply_rows<F>({part, row, count, out, stride}, batch, scratch);
            out += count;
            row += count;
            begin += count;
        });
    }
}

}  // namespace ninfer::a8
