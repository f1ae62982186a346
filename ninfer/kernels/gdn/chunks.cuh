// What the two kernels for long sequences agree on. See chunks.cu for the mathematics.
#pragma once

#include "ninfer.cuh"

namespace ninfer {

constexpr int kChunk = 64;  // tokens
constexpr int kMostRows = 8;

struct ChunkArgs {
    const float* qkv;
    const float* g;
    const float* beta;
    float* state;
    float* out;           // null: the queries are not read
    const i32* slots;     // [2, batch]: source or -1, target
    const i32* segments;  // [3, batch]: first token, count, start
    u8* records;          // [rows, value_heads, chunks], NINFER_RECORD bytes each
    i64 batch;
    i64 width;
    i64 key_heads;
    i64 value_heads;
    i64 first_chunk;      // of every sequence
    i64 chunks;           // of every sequence, at most
    i32 rows[kMostRows];  // the sequences that this launch is about
};

// A record has what one chunk does to the state of one head: right-hand operands of matrix products as they go to the
// tensor cores, 16 bytes for each lane, cut into pieces of the size that is staged in shared memory at a time.
//   kReadPieces pieces, 16 columns of keys each:  tiles of 8 tokens of W, then of Q
//   kWritePieces pieces, 16 tokens each:          tiles of 8 tokens of P, then tiles of 8 columns of K
//   a slab of 16 rows of the state after another: tiles of 8 tokens of V', fp32, as sums of a product lie
//   numbers, fp32: e^b, then e^(b_last - b), of each token, and e^b_last
constexpr int kKeys = NINFER_DK;
constexpr int kValues = NINFER_DV;
constexpr int kTile = 32 * 16;  // bytes
constexpr int kTokenTiles = kChunk / 8;
constexpr int kKeyTiles = kKeys / 8;
constexpr int kReadPieces = kKeys / 16;
constexpr int kWritePieces = kChunk / 16;
constexpr int kReadBytes = 2 * kTokenTiles * kTile;
constexpr int kWriteBytes = (kTokenTiles + kKeyTiles) * kTile;
constexpr int kSlabsAt = kReadPieces * kReadBytes + kWritePieces * kWriteBytes;
constexpr int kSlab = 16;  // rows of the state
constexpr int kNumbersAt = kSlabsAt + kValues / kSlab * kTokenTiles * kTile;
static_assert(kNumbersAt + (2 * kChunk + 32) * 4 == NINFER_RECORD, "the plan thinks that a record has another size");
static_assert(kKeys % 16 == 0 && kValues % kSlab == 0, "heads must consist of whole tiles");

NINFER_DEVICE int write_piece_at(int piece) { return kReadPieces * kReadBytes + piece * kWriteBytes; }

NINFER_DEVICE u8* record_of(const ChunkArgs& args, i64 row, i64 head, i64 chunk) {
    return args.records + ((row * args.value_heads + head) * args.chunks + chunk) * NINFER_RECORD;
}

// Operands are split in two fp16, which have 22 bits of a number between 2^-1 and 2^15 and are off by at most 2^-25
// below. Right-hand operands are about 1 at most, so they go in times kRight. Left-hand operands, which are parts of
// the state and of its corrections, go in times a power of two that follows from the greatest of them. Both are exact.
constexpr float kRight = 8192.0f;
constexpr float kFromRight = 1.0f / kRight;

struct Split {
    u32 high;
    u32 low;
};

NINFER_DEVICE Split split(float x, float y) {
    const u32 high = pack_half(x, y);
    const float2 rounded = unpack_half(high);
    return {high, pack_half(x - rounded.x, y - rounded.y)};
}

// A right-hand operand of 16 x 8: a lane's columns k, k + 1 and k + 8, k + 9 of one row of its transpose.
NINFER_DEVICE uint4 right_tile(float2 near, float2 far) {
    const Split a = split(near.x * kRight, near.y * kRight), b = split(far.x * kRight, far.y * kRight);
    return make_uint4(a.high, b.high, a.low, b.low);
}

// A left-hand operand of 16 x 16.
struct Left {
    u32 high[4];
    u32 low[4];
};

// From two neighbouring tiles that lie as sums do. Even columns times factor.x, odd ones times factor.y.
NINFER_DEVICE Left left_tile(const float (&near)[4], float2 near_factor, const float (&far)[4], float2 far_factor) {
    Left left;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Split a = split(near[2 * i] * near_factor.x, near[2 * i + 1] * near_factor.y);
        const Split b = split(far[2 * i] * far_factor.x, far[2 * i + 1] * far_factor.y);
        left.high[i] = a.high, left.low[i] = a.low, left.high[i + 2] = b.high, left.low[i + 2] = b.low;
    }
    return left;
}

NINFER_DEVICE Left left_tile(const float (&near)[4], const float (&far)[4], float factor) {
    return left_tile(near, make_float2(factor, factor), far, make_float2(factor, factor));
}

// sums += left right for neighbouring tiles, but for the product of both remainders, which is below the remainders' own
// rounding. The products of one sum wait for one another, so several sums go side by side.
template <int TILES>
NINFER_DEVICE void multiply(float (*sums)[4], const Left& left, const uint4 (&right)[TILES]) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        const u32 high[2] = {right[i].x, right[i].y};
        mma_f16_16816(sums[i], left.low, high);
    }
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        const u32 low[2] = {right[i].z, right[i].w};
        mma_f16_16816(sums[i], left.high, low);
    }
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        const u32 high[2] = {right[i].x, right[i].y};
        mma_f16_16816(sums[i], left.high, high);
    }
}

}  // namespace ninfer
