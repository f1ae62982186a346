// What the launches of a linear are told; mirrored in cuda.py.
//
// NINFER_FORMATS: the formats that occur, as bits; code for others is not compiled.
#pragma once

#include "tile.cuh"

namespace ninfer {

constexpr int kMaxOutputs = 24;

// The product with one part, and where it goes.
struct Output {
    Part part;
    float* out;             // of the part's row 0 and token 0
    const float* residual;  // likewise, or nullptr
    i32 first_tile;         // the launch's blocks are tiles of the parts, one part after another
    i32 first_row;          // in `partial`
    i64 out_stride;         // floats from token to token, of residual too
};

struct LinearArgs {
    const float* x;     // f32[tokens, columns]
    const u16* octets;  // bf16[tokens, units * 128] in the order of pairs; nullptr where x is read
    float* partial;     // f32[segments, tokens, rows] for sums of segments that another launch adds; else nullptr
    i32 tokens;
    i32 columns;
    i32 units;     // of 128 columns, the last may be ragged
    i32 segments;  // that K is split into
    i32 rows;      // of all parts; the width of `partial`
    i32 count;     // of outputs
    i32 paired;    // outputs 2i and 2i + 1 are gate and up rows of one format, whose silu_mul is stored in 2i's out
    i32 vector;    // rows of x begin at multiples of 16 bytes, columns is a multiple of 4
    Output outputs[kMaxOutputs];
};

// Which tile of which output a block has.
struct Tile {
    int output;
    int tile;  // within the output
};

NINFER_DEVICE Tile find_tile(const LinearArgs& args, int block) {
    const int step = args.paired ? 2 : 1;
    int output = 0;
    while (output + step < args.count && block >= args.outputs[output + step].first_tile) output += step;
    return {output, block - args.outputs[output].first_tile};
}

template <int FORMAT>
struct FormatTag {
    static constexpr int value = FORMAT;
};

template <int FORMAT, class Body>
NINFER_DEVICE void try_format(int format, Body body) {
    constexpr int bit = 1 << FORMAT;
    if constexpr ((NINFER_FORMATS & bit) != 0) {
        if (NINFER_FORMATS == bit || format == FORMAT) body(FormatTag<FORMAT>());
    }
}

// body(FormatTag<format>()), of those in NINFER_FORMATS.
template <class Body>
NINFER_DEVICE void with_format(int format, Body body) {
    try_format<BF16>(format, body);
    try_format<Q4>(format, body);
    try_format<Q5>(format, body);
    try_format<Q6>(format, body);
    try_format<Q8>(format, body);
    try_format<T2>(format, body);
    try_format<NVFP4>(format, body);
    try_format<FP8_ROW>(format, body);
}

}  // namespace ninfer
