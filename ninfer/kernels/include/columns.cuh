// Wide rows, such as logits over a vocabulary, in spans of 256 columns: a span is one warp's, and lane l holds its
// columns l, 32 + l, ..., 224 + l. Where spans lie does not depend on the call, so neither do sums over them.
//
// A bitset says which columns count: bit i % 32 of word i / 32 for column i. Bits past the last column are ignored.
#pragma once

#include "warp.cuh"

namespace ninfer {

constexpr int kSpan = 256;
constexpr int kSpanRounds = kSpan / kWarp;

struct Columns {
    const float* values;
    const u32* allowed;  // null: every column counts
    i32 count;
};

// A lane's part of one span.
struct SpanPart {
    float values[kSpanRounds];  // -infinity where the column does not count
    u32 live;                   // bit i: values[i] counts
    i32 first;                  // column of values[0]; values[i] is that of column first + 32 i
};

NINFER_DEVICE bool is_allowed(const Columns& row, i32 column) {
    return row.allowed == nullptr || (row.allowed[column / 32] >> (column % 32) & 1u) != 0;
}

// Span `span` may lie behind the row's end.
NINFER_DEVICE SpanPart read_span(const Columns& row, i32 span) {
    SpanPart part;
    part.live = 0;
    part.first = span * kSpan + lane();
#pragma unroll
    for (int i = 0; i < kSpanRounds; ++i) {
        const i32 column = part.first + i * kWarp;
        const bool counts = column < row.count && is_allowed(row, column);
        part.values[i] = counts ? row.values[column] : -kInf;
        part.live |= static_cast<u32>(counts) << i;
    }
    return part;
}

// Unsigned integers in the order of the numbers: -0 equals +0, and NaN is above all.
NINFER_DEVICE u32 rank_of(float value) {
    const u32 bits = bits_as<u32>(value + 0.0f);
    if (value != value) return 0xffffffffu;
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

NINFER_DEVICE u64 rank_of(double value) {
    const u64 bits = bits_as<u64>(value + 0.0), sign = 1ull << 63;
    if (value != value) return ~0ull;
    return (bits & sign) != 0 ? ~bits : bits | sign;
}

// The number of a rank; NaN for that of NaN.
NINFER_DEVICE float from_rank(u32 rank) {
    return bits_as<float>((rank & 0x80000000u) != 0 ? rank & 0x7fffffffu : ~rank);
}

NINFER_DEVICE double from_rank(u64 rank) {
    const u64 sign = 1ull << 63;
    return bits_as<double>((rank & sign) != 0 ? rank & ~sign : ~rank);
}

// A peak orders columns by their values, and of equal values the lower column is the greater peak. 0: no column.
NINFER_DEVICE u64 peak_of(float value, i32 column) {
    return static_cast<u64>(rank_of(value)) << 32 | (0xffffffffu - static_cast<u32>(column));
}
NINFER_DEVICE float peak_value(u64 peak) { return peak == 0 ? -kInf : from_rank(static_cast<u32>(peak >> 32)); }
NINFER_DEVICE i32 peak_column(u64 peak) { return static_cast<i32>(0xffffffffu - static_cast<u32>(peak)); }

// The greatest peak of a span, in every lane.
NINFER_DEVICE u64 span_peak(const SpanPart& part) {
    u64 best = 0;
#pragma unroll
    for (int i = 0; i < kSpanRounds; ++i)
        if ((part.live >> i & 1u) != 0) best = greater(best, peak_of(part.values[i], part.first + i * kWarp));
    return warp_max(best);
}

// The greatest of the block's THREADS values, in every thread. `shared`: 32 numbers, free again after the call.
template <int THREADS>
NINFER_DEVICE u64 block_greatest(u64 value, u64* shared) {
    value = warp_max(value);
    if (lane() == 0) shared[warp()] = value;
    __syncthreads();
    value = warp_max(lane() < THREADS / kWarp ? shared[lane()] : 0ull);
    __syncthreads();
    return value;
}

// The greatest of a row's peaks [spans], in every thread.
template <int THREADS>
NINFER_DEVICE u64 row_peak(const u64* peaks, i32 spans, u64* shared) {
    u64 best = 0;
    for (i32 i = static_cast<i32>(threadIdx.x); i < spans; i += THREADS) best = greater(best, peaks[i]);
    return block_greatest<THREADS>(best, shared);
}

}  // namespace ninfer
