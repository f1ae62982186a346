// Products of 8-bit activations and weights stored in groups (q4, q5, q6, q8, t2).
//
// Activations. Each group of columns of a token, as long as the weight's groups, gets its own scale. In fp32, rounded to
// nearest even: amax = max |x|, scale = amax / 127, code = rint(x * (127 / amax)), which is within +-127. Columns beyond
// the last count as 0. If amax < 2^-119, scale and codes are 0. If amax is infinite or some x is NaN, the scale is
// infinite and the codes are 0: every product with this token is then 0 * infinity = NaN.
//
// Products. d_g, the product of the codes of group g, is exact in 32 bits. Lane j = g % 8 of eight sums adds, in rising
// g: lane[j] = fma(float(d_g), weight scale * token scale, lane[j]); `tree` adds the lanes. This is the only order there
// is: blocks of rows and tokens, threads and instructions change how d_g is computed, and integers do not care.
//
// How. A few rows at a time are unpacked, octet by octet, into a cache-resident block, which is then multiplied with all
// tokens of the call, 2 rows by up to 4 tokens in registers. So stored weights are read once for all tokens of a decode
// round, and unpacking is amortised over as many tokens as there are.
#pragma once

#include "linear/a8_octet.hpp"
#if NINFER_X86
#include "linear/a8_x86.hpp"
#else
#include "linear/a8_plain.hpp"
#endif

namespace ninfer::a8 {

constexpr int ROWS = 16;      // most rows of a block
constexpr int TILE = 4;       // tokens multiplied at once
constexpr int64_t BLOCK_BYTES = 16384;  // of a block of rows, of half of the first-level cache

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

    int64_t token(int64_t i) const { return picks == nullptr ? first + i : picks[i]; }
};

// ---- weights --------------------------------------------------------------------------------------------

// Unpacks a row. The groups of an unfinished octet are taken from a copy with zeros behind.
template <class F>
static inline void unpack_row(const Part& part, int64_t row, int64_t columns, Weights<F>* to) {
    const uint8_t* codes = part.codes + row * part.code_stride;
    const uint8_t* high = F::high ? part.high + row * part.high_stride : nullptr;
    const uint8_t* scales = part.scales + row * part.scale_stride;
    int64_t groups = (columns + F::group - 1) / F::group;
    for (; groups >= OCTET; groups -= OCTET, ++to) {
        unpack_codes(F{}, codes, high, to->codes);
        unpack_scales(scales, to->scale);
        codes += OCTET * 32;
        high += OCTET * F::high;
        scales += OCTET * 2;
    }
    if (groups == 0) return;
    uint8_t copy[OCTET * (32 + F::high + 2)] = {};
    std::memcpy(copy, codes, groups * 32);
    if (F::high) std::memcpy(copy + OCTET * 32, high, groups * F::high);
    std::memcpy(copy + OCTET * (32 + F::high), scales, groups * 2);
    unpack_codes(F{}, copy, copy + OCTET * 32, to->codes);
    unpack_scales(copy + OCTET * (32 + F::high), to->scale);
}

// Rows of a block that stay in the first-level cache; even where possible, since rows are multiplied in pairs.
template <class F>
static inline int64_t block_rows(int64_t columns) {
    const int64_t fitting = BLOCK_BYTES / (octets(columns, F::group) * sizeof(Weights<F>)) / 2 * 2;
    return fitting < 2 ? 2 : fitting > ROWS ? ROWS : fitting;
}

// Bytes of scratch for `multiply`.
static inline size_t block_bytes(const Output& o, int64_t columns) {
    size_t most = 0;
    for (int64_t i = 0; i < o.count; ++i)
        with_format(o.parts[i].format, [&](auto f) {
            const size_t bytes = block_rows<decltype(f)>(columns) * octets(columns, f.group) * sizeof(Weights<decltype(f)>);
            most = bytes > most ? bytes : most;
        });
    return most;
}

// ---- products -------------------------------------------------------------------------------------------

// Products of two unpacked rows with T tokens.
template <class F, int T>
static inline void multiply_tile(const Weights<F>* first, const Weights<F>* second,
                                 const Activations<F::group>* const (&tokens)[T], int64_t count, float (&out)[2][T]) {
    lanesf sums[2][T] = {};
    for (int64_t o = 0; o < count; ++o) {
        const Weights<F>* w[2] = {first + o, second + o};
        const Activations<F::group>* x[T];
        for (int t = 0; t < T; ++t) x[t] = tokens[t] + o;
        lanes32 d[2][T];
        dots<F, 2, T>(w, x, d);
        for (int r = 0; r < 2; ++r)
            for (int t = 0; t < T; ++t) {
                const lanesf scale = load<lanesf>(w[r]->scale) * load<lanesf>(x[t]->scale);
                sums[r][t] = fused(__builtin_convertvector(d[r][t], lanesf), scale, sums[r][t]);
            }
    }
    sum_lanes(sums[0], out[0]);
    sum_lanes(sums[1], out[1]);
}

// Products of a block of unpacked rows with tokens [begin, begin + T) of the batch.
template <class F, int T>
static inline void multiply_tokens(const Weights<F>* block, int64_t rows, const Batch& batch, int64_t begin, float* out,
                                   int64_t stride) {
    const int64_t count = octets(batch.panel->columns(), F::group);
    const Activations<F::group>* tokens[T];
    for (int t = 0; t < T; ++t) tokens[t] = batch.panel->token<F::group>(batch.token(begin + t));
    for (int64_t r = 0; r < rows; r += 2) {
        const bool alone = r + 1 == rows;
        const Weights<F>* first = block + r * count;
        float products[2][T];
        multiply_tile<F, T>(first, alone ? first : first + count, tokens, count, products);
        for (int t = 0; t < T; ++t) {
            out[(begin + t) * stride + r] = products[0][t];
            if (!alone) out[(begin + t) * stride + r + 1] = products[1][t];
        }
    }
}

template <class F>
static inline void multiply_block(const Weights<F>* block, int64_t rows, const Batch& batch, float* out, int64_t stride) {
    int64_t t = 0;
    for (; t + TILE <= batch.count; t += TILE) multiply_tokens<F, TILE>(block, rows, batch, t, out, stride);
    switch (batch.count - t) {
        case 3: return multiply_tokens<F, 3>(block, rows, batch, t, out, stride);
        case 2: return multiply_tokens<F, 2>(block, rows, batch, t, out, stride);
        case 1: return multiply_tokens<F, 1>(block, rows, batch, t, out, stride);
    }
}

// out[i][n - begin] = product of token i of the batch with row n of the output's weights, begin <= n < end; rows of out
// are `stride` floats apart. `scratch`: block_bytes, 64-byte aligned.
static inline void multiply(const Output& o, int64_t begin, int64_t end, const Batch& batch, char* scratch, float* out,
                            int64_t stride) {
    const int64_t columns = batch.panel->columns();
    const Part* part = o.parts;
    int64_t row = begin;  // in the part
    while (begin < end) {
        while (row >= part->rows) row -= part++->rows;
        with_format(part->format, [&](auto f) {
            typedef decltype(f) F;
            int64_t rows = block_rows<F>(columns);
            if (rows > end - begin) rows = end - begin;
            if (rows > part->rows - row) rows = part->rows - row;
            Weights<F>* block = reinterpret_cast<Weights<F>*>(scratch);
            for (int64_t r = 0; r < rows; ++r) unpack_row(*part, row + r, columns, block + r * octets(columns, F::group));
            multiply_block(block, rows, batch, out, stride);
            out += rows;
            row += rows;
            begin += rows;
        });
    }
}

}  // namespace ninfer::a8
