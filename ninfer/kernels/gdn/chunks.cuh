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
//   kReadPieces pieces, 16 columns of keys each:  tiles of 8 tokens of -W, then of Q e^b
//   kWritePieces pieces, 16 tokens each:          tiles of 8 tokens of P, then tiles of 8 columns of K e^(b_last - b)
//   a slab of 16 rows of the state after another: tiles of 8 tokens of V, fp32, as sums of a product lie
//   e^b_last
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
constexpr int kDecayAt = kSlabsAt + kValues / kSlab * kTokenTiles * kTile;
static_assert(kDecayAt + 128 == NINFER_RECORD, "the plan thinks that a record has another size");
static_assert(kKeys % 16 == 0 && kValues % kSlab == 0, "heads must consist of whole tiles");

NINFER_DEVICE int write_piece_at(int piece) { return kReadPieces * kReadBytes + piece * kWriteBytes; }

NINFER_DEVICE u8* record_of(const ChunkArgs& args, i64 row, i64 head, i64 chunk) {
    return args.records + ((row * args.value_heads + head) * args.chunks + chunk) * NINFER_RECORD;
}

// Two numbers as bf16 and what that leaves of them as bf16: 16 bits of fraction.
struct Split {
    u32 high;
    u32 low;
};

NINFER_DEVICE Split split(float x, float y) {
    const u32 high = pack_bf16(x, y);
    const float2 rounded = unpack_bf16(high);
    return {high, pack_bf16(x - rounded.x, y - rounded.y)};
}

// A right-hand operand of 16 x 8: a lane's columns k, k + 1 and k + 8, k + 9 of one row of its transpose.
NINFER_DEVICE uint4 right_tile(float2 near, float2 far) {
    const Split a = split(near.x, near.y), b = split(far.x, far.y);
    return make_uint4(a.high, b.high, a.low, b.low);
}

// A left-hand operand of 16 x 16.
struct Left {
    u32 high[4];
    u32 low[4];
};

// From two neighbouring tiles of sums.
NINFER_DEVICE Left left_tile(const float (&near)[4], const float (&far)[4]) {
    Left left;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Split a = split(near[2 * i], near[2 * i + 1]), b = split(far[2 * i], far[2 * i + 1]);
        left.high[i] = a.high, left.low[i] = a.low, left.high[i + 2] = b.high, left.low[i + 2] = b.low;
    }
    return left;
}

// sums += left right, but for the product of both remainders, which is below the remainders' own rounding.
NINFER_DEVICE void multiply(float (&sums)[4], const Left& left, uint4 right) {
    const u32 high[2] = {right.x, right.y}, low[2] = {right.z, right.w};
    mma_bf16_16816(sums, left.low, high);
    mma_bf16_16816(sums, left.high, low);
    mma_bf16_16816(sums, left.high, high);
}

}  // namespace ninfer
