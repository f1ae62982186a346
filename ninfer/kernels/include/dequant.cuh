// Stored weights to numbers in registers, straight from the artifact's planes: one Decoder per format, all alike.
//
// Decoders give pairs (pairs.cuh), which lack what a whole group or row has in common:
//   q4 q5 q6 q8 t2   integer codes; multiply the sum over each kGroup columns by group_scale
//   nvfp4            e2m1 * e4m3 * 2^-7; multiply the sum over the row by factor, 2^7 / divisor
//   fp8 row          e4m3; multiply the sum over the row by factor, the row's scale
//   bf16             the weight
// fp32 has no pairs, only `floats`. `decode_one` gives one whole weight.
//
// Padded rows can be read up to the next multiple of 128 columns, and hold codes of zero there. NVFP4's end at a
// multiple of 64; nothing may be read behind it. The others read as zeros from their end on, and may lie anywhere.
// Formats and layouts: artifact v3, sections 3 and 4.
#pragma once

#include "memory.cuh"
#include "pairs.cuh"

namespace ninfer {

// As in linear/matrix.hpp, whose mirror in Python serves both.
enum Format : i32 { BF16 = 0, FP32 = 1, Q4 = 2, Q5 = 3, Q6 = 4, Q8 = 5, T2 = 6, NVFP4 = 7, FP8_ROW = 8 };

// Consecutive rows of one stored parent. The pointers are to the first of these rows (of NVFP4: to the parent's planes,
// since it is consumed whole); the strides are bytes from row to row.
struct Part {
    i32 format;
    i32 unused;
    i64 rows;
    const u8* codes;   // values of a direct format
    const u8* high;    // q5, q6
    const u8* scales;  // fp16 per group, bf16 per row, or NVFP4's swizzled E4M3 plane
    i64 code_stride;
    i64 high_stride;
    i64 scale_stride;
    float divisor;  // NVFP4
    float unused_too;
};

// One stored row.
struct Row {
    const u8* codes;
    const u8* high;
    const u8* scales;
    i64 columns;
};

// What one load brings: 16 bytes of codes, and what belongs to them. What a format lacks takes no register.
struct Chunk {
    u32 codes[4];
    u32 high[2];
    u32 blocks;  // NVFP4: the E4M3 scales of its two blocks
};

// ---- what formats share ---------------------------------------------------------------------------------

NINFER_DEVICE Row row_of(const Part& part, i64 n, i64 columns) {
    return {part.codes + n * part.code_stride, part.high + n * part.high_stride, part.scales + n * part.scale_stride,
            columns};
}

NINFER_DEVICE void put(u32 (&to)[4], uint4 from) {
    to[0] = from.x;
    to[1] = from.y;
    to[2] = from.z;
    to[3] = from.w;
}

// 16 bytes of a row that ends where it ends, wherever they lie: numbers of type Word from the k-th on.
template <class Word>
NINFER_DEVICE uint4 load_words(const Row& row, i64 k) {
    constexpr int per_word = 4 / sizeof(Word);
    const Word* from = reinterpret_cast<const Word*>(row.codes) + k;
    const i64 left = row.columns - k;
    if (left >= 4 * per_word && reinterpret_cast<u64>(from) % 16 == 0) return load_streaming16(from);
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < 4 * per_word; ++i) {
        if (i < left) words[i / per_word] |= static_cast<u32>(from[i]) << 8 * sizeof(Word) * (i % per_word);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// CODE_BITS of codes to a column, HIGH_BITS in the other plane, GROUP columns to an fp16 scale (0: there is none).
template <int CODE_BITS, int HIGH_BITS, int GROUP, bool PADDED>
struct Stored {
    static constexpr int kCodeBits = CODE_BITS;
    static constexpr int kHighBits = HIGH_BITS;
    static constexpr int kGroup = GROUP;
    static constexpr bool kPadded = PADDED;
    static constexpr int kChunk = 128 / CODE_BITS;  // columns of one load
    static constexpr int kOctets = kChunk / 8;
    static constexpr int kHighBytes = kChunk * HIGH_BITS / 8;

    // Row n of `columns` columns.
    static NINFER_MEMBER Row row(const Part& part, i64 n, i64 columns) { return row_of(part, n, columns); }
    static NINFER_MEMBER float factor(const Part&, i64) { return 1.0f; }
    static NINFER_MEMBER float group_scale(const Row& row, i64 group) {
        return half_to_float(load2(row.scales + 2 * group));
    }

    // Columns [k, k + kChunk); k is a multiple of kChunk.
    static NINFER_MEMBER Chunk load(const Row& row, i64 k) {
        Chunk chunk{};
        put(chunk.codes, load_streaming16(row.codes + k * CODE_BITS / 8));
        if (kHighBytes == 4) chunk.high[0] = load_streaming4(row.high + k * HIGH_BITS / 8);
        if (kHighBytes == 8) {
            const uint2 words = load_streaming8(row.high + k * HIGH_BITS / 8);
            chunk.high[0] = words.x;
            chunk.high[1] = words.y;
        }
        return chunk;
    }
};

// A two's-complement code of BITS bits.
template <int BITS>
NINFER_DEVICE float signed_code(u32 bits) {
    return static_cast<float>(static_cast<i32>(bits << (32 - BITS)) >> (32 - BITS));
}

NINFER_DEVICE u32 nibble(const u8* codes, i64 k) { return codes[k / 2] >> 4 * (k % 2) & 15u; }

// ---- formats --------------------------------------------------------------------------------------------

// pairs(chunk, octet, out): one of the chunk's octets. code(row, k): one column's number, without what its group or row
// has in common.
template <int FORMAT>
struct Decoder;

template <>
struct Decoder<Q4> : Stored<4, 0, 64, true> {
    static NINFER_MEMBER void pairs(const Chunk& chunk, int octet, u32 (&out)[4]) {
        q4_pairs(chunk.codes[octet], out);
    }
    static NINFER_MEMBER float code(const Row& row, i64 k) { return signed_code<4>(nibble(row.codes, k)); }
};

template <>
struct Decoder<Q5> : Stored<4, 1, 64, true> {
    static NINFER_MEMBER void pairs(const Chunk& chunk, int octet, u32 (&out)[4]) {
        q5_pairs(chunk.codes[octet], chunk.high[0] >> 8 * octet, out);
    }
    static NINFER_MEMBER float code(const Row& row, i64 k) {
        return signed_code<5>(nibble(row.codes, k) | (row.high[k / 8] >> k % 8 & 1u) << 4);
    }
};

template <>
struct Decoder<Q6> : Stored<4, 2, 64, true> {
    static NINFER_MEMBER void pairs(const Chunk& chunk, int octet, u32 (&out)[4]) {
        q6_pairs(chunk.codes[octet], chunk.high[octet / 2] >> 16 * (octet % 2), out);
    }
    static NINFER_MEMBER float code(const Row& row, i64 k) {
        return signed_code<6>(nibble(row.codes, k) | (row.high[k / 4] >> 2 * (k % 4) & 3u) << 4);
    }
};

template <>
struct Decoder<Q8> : Stored<8, 0, 32, true> {
    static NINFER_MEMBER void pairs(const Chunk& chunk, int octet, u32 (&out)[4]) {
        q8_pairs(chunk.codes[2 * octet], chunk.codes[2 * octet + 1], out);
    }
    static NINFER_MEMBER float code(const Row& row, i64 k) { return signed_code<8>(row.codes[k]); }
};

template <>
struct Decoder<T2> : Stored<2, 0, 128, true> {
    static NINFER_MEMBER void pairs(const Chunk& chunk, int octet, u32 (&out)[4]) {
        t2_pairs(chunk.codes[octet / 2] >> 16 * (octet % 2), out);
    }
    static NINFER_MEMBER float code(const Row& row, i64 k) {
        return signed_code<2>(row.codes[k / 4] >> 2 * (k % 4));
    }
};

template <>
struct Decoder<NVFP4> : Stored<4, 0, 0, false> {
    static NINFER_MEMBER Row row(const Part& part, i64 n, i64 columns) {
        Row row = row_of(part, n, columns);
        row.scales = part.scales + n / 128 * (columns / 64) * 512 + n % 32 * 16 + n % 128 / 32 * 4;
        return row;
    }
    static NINFER_MEMBER float factor(const Part& part, i64) { return 128.0f / part.divisor; }
    static NINFER_MEMBER Chunk load(const Row& row, i64 k) {
        Chunk chunk = Stored::load(row, k);
        chunk.blocks = load2(row.scales + k / 64 * 512 + k % 64 / 16);
        return chunk;
    }
    static NINFER_MEMBER void pairs(const Chunk& chunk, int octet, u32 (&out)[4]) {
        nvfp4_pairs(chunk.codes[octet], e4m3_scale_pair(chunk.blocks >> 8 * (octet / 2)), out);
    }
    // Times the block's scale.
    static NINFER_MEMBER float code(const Row& row, i64 k) {
        return e2m1_to_float(nibble(row.codes, k)) * e4m3_to_float(row.scales[k / 64 * 512 + k % 64 / 16]);
    }
};

template <>
struct Decoder<FP8_ROW> : Stored<8, 0, 0, false> {
    static NINFER_MEMBER float factor(const Part& part, i64 n) {
        return bf16_to_float(load2(part.scales + n * part.scale_stride));
    }
    static NINFER_MEMBER Chunk load(const Row& row, i64 k) {
        Chunk chunk{};
        put(chunk.codes, load_words<u8>(row, k));
        return chunk;
    }
    static NINFER_MEMBER void pairs(const Chunk& chunk, int octet, u32 (&out)[4]) {
        fp8_pairs(chunk.codes[2 * octet], chunk.codes[2 * octet + 1], out);
    }
    static NINFER_MEMBER float code(const Row& row, i64 k) { return e4m3_to_float(row.codes[k]); }
};

template <>
struct Decoder<BF16> : Stored<16, 0, 0, false> {
    static NINFER_MEMBER Chunk load(const Row& row, i64 k) {
        Chunk chunk{};
        put(chunk.codes, load_words<u16>(row, k));
        return chunk;
    }
    static NINFER_MEMBER void pairs(const Chunk& chunk, int, u32 (&out)[4]) {
        bf16_pairs(make_uint4(chunk.codes[0], chunk.codes[1], chunk.codes[2], chunk.codes[3]), out);
    }
    static NINFER_MEMBER float code(const Row& row, i64 k) { return bf16_to_float(load2(row.codes + 2 * k)); }
};

// A chunk is half an octet.
template <>
struct Decoder<FP32> : Stored<32, 0, 0, false> {
    static NINFER_MEMBER Chunk load(const Row& row, i64 k) {
        Chunk chunk{};
        put(chunk.codes, load_words<u32>(row, k));
        return chunk;
    }
    static NINFER_MEMBER void floats(const Chunk& chunk, float (&out)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = bits_as<float>(chunk.codes[i]);
    }
    static NINFER_MEMBER float code(const Row& row, i64 k) { return bits_as<float>(load4(row.codes + 4 * k)); }
};

// The weight at row n and column k of `columns`: the fp32 that the format defines.
template <int FORMAT>
NINFER_DEVICE float decode_one(const Part& part, i64 n, i64 k, i64 columns) {
    using D = Decoder<FORMAT>;
    const Row row = D::row(part, n, columns);
    const float code = D::code(row, k);
    if (D::kGroup != 0) return code * D::group_scale(row, k / (D::kGroup != 0 ? D::kGroup : 1));
    return FORMAT == NVFP4 ? __fdiv_rn(code, part.divisor) : code * D::factor(part, n);
}

}  // namespace ninfer
