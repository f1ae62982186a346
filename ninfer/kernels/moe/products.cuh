// What the launches of the experts' products are told; mirrored in cuda_experts.py.
#pragma once

#include "experts.cuh"

namespace ninfer {

struct ProductArgs {
    const float* x;         // f32[.., columns]
    const u16* octets;      // bf16[.., units * 128] in the order of pairs, where the kernel wants that
    float* out;             // f32[slots, rows]
    const Expert* experts;
    const Item* items;
    const i32* total;       // number of items
    const i32* places;      // [slots] by place: its slot
    i32 columns;
    i32 units;     // of 128 columns, the last may be ragged
    i32 segments;  // that K is split into
    i32 rows;      // of a product
    i32 paired;    // whether the weights are gate and up, whose silu_mul is the product, or down
    i32 divisor;   // slots that share a row of x
    i32 vector;    // rows of x begin at multiples of 16 bytes, columns is a multiple of 4
    i32 team;      // warps that share the segments
};

// The row of x that a place's slot takes.
NINFER_DEVICE i64 input_index(const ProductArgs& args, int place) { return args.places[place] / args.divisor; }

NINFER_DEVICE const float* input_row(const ProductArgs& args, int place) {
    return args.x + input_index(args, place) * args.columns;
}

}  // namespace ninfer
