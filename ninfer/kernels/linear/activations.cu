// Activations made ready for linear: rounded to bf16 in the order of pairs, and rotated where a weight has signs.
//
// Floors: 6 bytes per element read and written by to_octets, 8 by hadamard.
#include "ninfer.cuh"

#include "hadamard.cuh"
#include "narrow.cuh"

using namespace ninfer;

struct OctetArgs {
    const float* x;  // f32[tokens, columns]
    u16* octets;     // bf16[tokens, 8 * width]
    i64 tokens;
    i32 columns;
    i32 width;   // octets of a row; zeros from `columns` on
    i32 vector;  // rows of x begin at multiples of 16 bytes, columns is a multiple of 4
    i32 unused;
};

// A thread has one octet.
NINFER_KERNEL(to_octets, OctetArgs, 256) {
    const i64 at = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= args.tokens * args.width) return;
    const int column = static_cast<int>(at % args.width) * 8;
    const float* row = args.x + at / args.width * args.columns;
    float values[8];
    load_octet(values, row, column, args.columns, args.vector != 0);
    u32 pairs[4];
    fp32_pairs(values, pairs);
    store16(args.octets + at * 8, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
}

struct HadamardArgs {
    const float* x;      // f32[tokens, columns]
    const float* signs;  // f32[columns]
    float* out;          // f32[tokens, columns]
    i64 columns;         // a multiple of 1024
};

// A block has one block of columns.
NINFER_KERNEL(hadamard, HadamardArgs, kRotationThreads) {
    __shared__ float exchanged[kRotated];
    const i64 column = static_cast<i64>(blockIdx.x) * kRotated;
    const i64 first = static_cast<i64>(blockIdx.y) * args.columns + column;
    rotate_block(args.x + first, args.signs + column, args.out + first, exchanged);
}
