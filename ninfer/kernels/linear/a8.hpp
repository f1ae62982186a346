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
// How. A row is multiplied with up to 8 tokens at once. With few tokens (decode), its octets are unpacked in registers,
// so that memory traffic, unpacking and products overlap. With more, some octets of 32 rows at a time are unpacked and
// multiplied with all tokens, eight by eight: those of the tokens stay in the first-level cache while the rows' stream
// from the second. Two octets of 16 rows in the first-level cache were 5 to 14 % slower (q8), and not faster for q4.
#pragma once

#include <algorithm>

#include "linear/a8_octet.hpp"
#if NINFER_X86
#include "linear/a8_x86.hpp"
#else
#include "linear/a8_plain.hpp"
#endif

namespace ninfer::a8 {

constexpr int ROWS = 32;          // most rows of a block
constexpr int TOKENS = 128;       // most tokens that a block of unpacked rows is multiplied with
constexpr int TILE = 8;           // tokens multiplied at once: as many sums as registers hold
constexpr int AHEAD = 3072;       // bytes of codes between what is read and what is asked for
constexpr int ROW_BYTES = 2304;   // of unpacked octets of a row
constexpr size_t SCRATCH_BYTES = ROWS * ROW_BYTES + ROWS * TOKENS * sizeof(lanesf);

static inline int64_t octets(int64_t columns, int group) { return (columns + OCTET * group - 1) / (OCTET * group); }

// ---- activations ----------------------------------------------------------------------------------------

// Of a mask of group lengths: 32, 64, 128.
static inline unsigned group_bit(int group) { return group / 32; }

// The group lengths of an output's weights.
static inline unsigned group_mask(const Output& o) {
    unsigned mask = 0;
    for (int64_t i = 0; i < o.count; ++i) with_format(o.parts[i].format, [&](auto f) { mask |= group_bit(f.group); });
    return mask;
}

// Quantises an octet of G columns to a group; values [8 * G].
template <int G>
static inline void quantise_octet(const float* values, Activations<G>& to) {
    lanes32 bits;
    for (int i = 0; i < OCTET; ++i) bits[i] = greatest_magnitude<G>(values + i * G);
    const lanesf amax = (lanesf)bits, none = {};
    const lanes32 is_zero = amax < 0x1p-119f, is_finite = bits < 0x7f800000;
    const lanesf by = is_zero ? none : 127.0f / amax, scale = is_zero ? none : amax / 127.0f;
    store(to.scale, is_finite ? scale : none + INFINITY);
    alignas(32) int8_t codes[OCTET * G];
    for (int i = 0; i < OCTET; ++i) {
        if (is_finite[i]) {
            for (int k = i * G; k < (i + 1) * G; k += 32) narrow(values + k, by[i], codes + k);
        } else {
            std::memset(codes + i * G, 0, G);
        }
    }
    arrange<G>(codes, to);
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
        if (mask_ & group_bit(32)) quantise_octets(x, token<32>(t));
        if (mask_ & group_bit(64)) quantise_octets(x, token<64>(t));
        if (mask_ & group_bit(128)) quantise_octets(x, token<128>(t));
    }

    int64_t columns() const { return columns_; }

   private:
    template <int G>
    static size_t bytes_of(int64_t columns, unsigned mask) {
        return mask & group_bit(G) ? octets(columns, G) * sizeof(Activations<G>) : 0;
    }

    template <int G>
    void quantise_octets(const float* x, Activations<G>* to) const {
        int64_t left = columns_;
        for (; left >= OCTET * G; left -= OCTET * G, x += OCTET * G) quantise_octet(x, *to++);
        if (left == 0) return;
        float padded[OCTET * G] = {};
        std::memcpy(padded, x, sizeof(float) * left);
        quantise_octet(padded, *to);
    }

    char* at_[3];
    int64_t columns_;
    unsigned mask_;
};

// Some tokens of a panel: those listed, or `count` from `first` on.
struct Batch {
    const Panel* panel;
    const int32_t* picks;
    int64_t first;
    int64_t count;

    // Octet 0 of tokens begin, begin + 1, ...; beyond the last token, of the last again.
    template <int G, int T>
    void tokens(int64_t begin, const Activations<G>* (&out)[T]) const {
        for (int t = 0; t < T; ++t) {
            const int64_t i = begin + t < count ? begin + t : count - 1;
            out[t] = panel->token<G>(picks == nullptr ? first + i : picks[i]);
        }
    }
};

// ---- weights --------------------------------------------------------------------------------------------

// Rows of a part; their products go to out[token][row], tokens `stride` floats apart.
struct Rows {
    const Part* part;
    int64_t begin;
    int64_t count;  // at most ROWS
    float* out;
    int64_t stride;
};

// An octet as it is stored.
struct StoredOctet {
    const uint8_t* codes;
    const uint8_t* high;
    const uint8_t* scales;
};

template <class F>
class StoredRow {
   public:
    StoredRow(const Part& part, int64_t row, int64_t columns) {
        start_ = {part.codes + row * part.code_stride, F::high ? part.high + row * part.high_stride : nullptr,
                  part.scales + row * part.scale_stride};
        const int64_t groups = (columns + F::group - 1) / F::group;
        whole_ = groups / OCTET;
        if (groups % OCTET != 0) copy_tail(groups % OCTET);
    }

    // An octet that lacks groups is a copy with zeros behind.
    StoredOctet octet(int64_t o) const { return o < whole_ ? advanced(start_, o) : tail_; }

    // Asks for what this row, or rows behind it, will need soon after octet o. The scales are so few that the machine
    // fetches them in time; asking for them too made q5 and q6 a sixth slower.
    void prefetch(int64_t o) const {
        const StoredOctet later = advanced(start_, o + AHEAD / (OCTET * 32));
        for (int i = 0; i < OCTET * 32; i += 64) __builtin_prefetch(later.codes + i);
        for (int i = 0; i < OCTET * F::high; i += 64) __builtin_prefetch(later.high + i);
    }

   private:
    static StoredOctet advanced(const StoredOctet& from, int64_t o) {
        return {from.codes + o * OCTET * 32, from.high + o * OCTET * F::high, from.scales + o * OCTET * 2};
    }

    void copy_tail(int64_t groups) {
        std::memset(copy_, 0, sizeof copy_);
        const StoredOctet from = advanced(start_, whole_);
        tail_ = {copy_, copy_ + OCTET * 32, copy_ + OCTET * (32 + F::high)};
        std::memcpy(copy_, from.codes, groups * 32);
        if (F::high) std::memcpy(copy_ + OCTET * 32, from.high, groups * F::high);
        std::memcpy(copy_ + OCTET * (32 + F::high), from.scales, groups * 2);
    }

    StoredOctet start_, tail_;
    int64_t whole_;
    uint8_t copy_[OCTET * (32 + F::high + 2)];
};

// ---- products -------------------------------------------------------------------------------------------

// The products of up to ROWS rows from their lanes.
static inline void finish_rows(lanesf* sums, int64_t count, float* out) {
    float y[ROWS];
    for (int64_t r = count; r % 4 != 0; ++r) sums[r] = lanesf{};
    for (int64_t r = 0; r < count; r += 4) sum_lanes(sums + r, y + r);
    std::memcpy(out, y, sizeof(float) * count);
}

// Adds an octet's products with T tokens to their lanes.
template <int G, int T>
static inline void add_octet(const lanes32 (&products)[T], lanesf weight_scale, const Activations<G>* const (&x)[T],
                             lanesf (&lanes)[T]) {
    for (int t = 0; t < T; ++t) {
        const lanesf scale = weight_scale * load<lanesf>(x[t]->scale);
        lanes[t] = fused(__builtin_convertvector(products[t], lanesf), scale, lanes[t]);
    }
}

// Products of stored rows with tokens [begin, begin + count) of the batch, of which there are at most T.
template <class F, int T>
static inline void multiply_stored(const Rows& rows, const Batch& batch, int64_t begin, int64_t count) {
    const int64_t columns = batch.panel->columns();
    const Activations<F::group>* tokens[T];
    batch.tokens(begin, tokens);
    lanesf sums[T][ROWS];
    for (int64_t r = 0; r < rows.count; ++r) {
        const StoredRow<F> row(*rows.part, rows.begin + r, columns);
        lanesf lanes[T];
        for (int t = 0; t < T; ++t) lanes[t] = in_order(lanesf{});
        for (int64_t o = 0; o < octets(columns, F::group); ++o) {
            const Activations<F::group>* x[T];
            for (int t = 0; t < T; ++t) x[t] = tokens[t] + o;
            row.prefetch(o);
            const StoredOctet stored = row.octet(o);
            lanes32 products[T];
            multiply_stored_octet<F, T>(stored.codes, stored.high, x, products);
            add_octet(products, stored_scales(stored.scales), x, lanes);
        }
        for (int t = 0; t < T; ++t) sums[t][r] = lanes[t];
    }
    for (int64_t t = 0; t < count; ++t) finish_rows(sums[t], rows.count, rows.out + (begin + t) * rows.stride);
}

// Unpacked octets [begin, begin + width) of a block of rows.
template <class F>
struct Block {
    static constexpr int64_t most = ROW_BYTES / sizeof(Weights<F>);

    Weights<F>* octets;  // [rows][width]
    int64_t begin;
    int64_t width;

    void unpack(const Rows& rows, int64_t columns) const {
        for (int64_t r = 0; r < rows.count; ++r) {
            const StoredRow<F> row(*rows.part, rows.begin + r, columns);
            for (int64_t o = 0; o < width; ++o) {
                row.prefetch(begin + o);
                const StoredOctet stored = row.octet(begin + o);
                unpack_codes(stored.codes, stored.high, octets[r * width + o]);
                store(octets[r * width + o].scale, stored_scales(stored.scales));
            }
        }
    }
};

// Adds the products of row r of a block with TILE tokens to their lanes: sums[token][r].
template <class F>
static inline void multiply_tile(const Block<F>& block, int64_t r, const Activations<F::group>* const (&tokens)[TILE],
                                 lanesf (*sums)[ROWS]) {
    lanesf lanes[TILE];
    for (int t = 0; t < TILE; ++t) lanes[t] = in_order(sums[t][r]);
    for (int64_t o = 0; o < block.width; ++o) {
        const Weights<F>& w = block.octets[r * block.width + o];
        const Activations<F::group>* x[TILE];
        for (int t = 0; t < TILE; ++t) x[t] = tokens[t] + block.begin + o;
        lanes32 products[TILE];
        multiply_octet<F, TILE>(w, x, products);
        add_octet(products, load<lanesf>(w.scale), x, lanes);
    }
    for (int t = 0; t < TILE; ++t) sums[t][r] = lanes[t];
}

// Products of rows with the first `count` tokens, a multiple of TILE, at most TOKENS.
template <class F>
static inline void multiply_unpacked(const Rows& rows, const Batch& batch, int64_t count, char* scratch) {
    lanesf(*sums)[ROWS] = reinterpret_cast<lanesf(*)[ROWS]>(scratch + ROWS * ROW_BYTES);
    std::memset(sums, 0, count * sizeof *sums);
    const int64_t columns = batch.panel->columns(), all = octets(columns, F::group);
    for (int64_t o = 0; o < all; o += Block<F>::most) {
        const Block<F> block{reinterpret_cast<Weights<F>*>(scratch), o, std::min(Block<F>::most, all - o)};
        block.unpack(rows, columns);
        for (int64_t t = 0; t < count; t += TILE) {
            const Activations<F::group>* tokens[TILE];
            batch.tokens(t, tokens);
            for (int64_t r = 0; r < rows.count; ++r) multiply_tile(block, r, tokens, sums + t);
        }
    }
    for (int64_t t = 0; t < count; ++t) finish_rows(sums[t], rows.count, rows.out + t * rows.stride);
}

// Two or more tiles of tokens are worth a block of unpacked rows. What is left is computed as 8, 4, 2 or 1 tokens.
template <class F>
static inline void multiply_rows(const Rows& rows, const Batch& batch, char* scratch) {
    int64_t done = 0;
    if (batch.count >= 2 * TILE) multiply_unpacked<F>(rows, batch, done = batch.count / TILE * TILE, scratch);
    while (done < batch.count) {
        const int64_t left = batch.count - done;
        const int64_t step = left == 5 ? 4 : std::min<int64_t>(left, TILE);
        if (step > 4) multiply_stored<F, TILE>(rows, batch, done, step);
        else if (step > 2) multiply_stored<F, 4>(rows, batch, done, step);
        else if (step == 2) multiply_stored<F, 2>(rows, batch, done, step);
        else multiply_stored<F, 1>(rows, batch, done, step);
        done += step;
    }
}

// out[i][n - begin] = product of token i of the batch with row n of the output's weights, begin <= n < end; tokens are
// `stride` floats apart in out. The batch has at most TOKENS tokens. `scratch`: SCRATCH_BYTES, 64-byte aligned.
static inline void multiply(const Output& o, int64_t begin, int64_t end, const Batch& batch, char* scratch, float* out,
                            int64_t stride) {
    const Part* part = o.parts;
    int64_t row = begin;  // in the part
    while (begin < end) {
        while (row >= part->rows) row -= part++->rows;
        const int64_t count = std::min({(int64_t)ROWS, end - begin, part->rows - row});
        const Rows rows{part, row, count, out, stride};
        with_format(part->format, [&](auto f) { multiply_rows<decltype(f)>(rows, batch, scratch); });
        out += count;
        row += count;
        begin += count;
    }
}

}  // namespace ninfer::a8
