// Activations made ready for linear: rounded to bf16 in the order of pairs, and rotated where a weight has signs.
//
// Floors: 6 bytes per element read and written by to_octets, 8 by hadamard.
#include "ninfer.cuh"

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

constexpr int kBlock = 1024;
constexpr int kOwn = 8;  // neighbours that a thread has
constexpr int kThreads = kBlock / kOwn;

// One stage between a thread's own values.
template <int SPAN>
NINFER_DEVICE void stage_own(float (&v)[kOwn]) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        if ((i & SPAN) != 0) continue;
        const float low = v[i], high = v[i + SPAN];
        v[i] = low + high;
        v[i + SPAN] = low - high;
    }
}

NINFER_DEVICE float stage_sum(float mine, float other, bool upper) { return upper ? other - mine : mine + other; }

// A block has one block of 1024 columns. The stages are those of the oracle, in its order: bf16 turns on the last bit.
NINFER_KERNEL(hadamard, HadamardArgs, kThreads) {
    __shared__ float exchanged[kBlock];
    const i64 column = static_cast<i64>(blockIdx.x) * kBlock + kOwn * threadIdx.x;
    const i64 first = static_cast<i64>(blockIdx.y) * args.columns + column;
    const int thread = threadIdx.x;
    float v[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) v[i] = args.x[first + i] * args.signs[column + i];
    stage_own<1>(v);
    stage_own<2>(v);
    stage_own<4>(v);
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) v[i] = stage_sum(v[i], shuffle_xor(v[i], apart), (thread & apart) != 0);
    }
#pragma unroll
    for (int apart = kWarp; apart < kThreads; apart *= 2) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kOwn; ++i) exchanged[i * kThreads + thread] = v[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            v[i] = stage_sum(v[i], exchanged[i * kThreads + (thread ^ apart)], (thread & apart) != 0);
        }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) args.out[first + i] = v[i] * 0.03125f;
}
