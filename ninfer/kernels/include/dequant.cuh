// Stored weights as numbers, straight from the artifact's planes: one Decoder per format, all alike.
//
// What codes of a format stand for (pairs.cuh gives them to tensor cores, `code` one of them) lacks what a whole group
// or row has in common:
//   q4 q5 q6 q8 t2   integer codes; multiply the sum over each kGroup columns by group_scale
//   nvfp4            pairs are e2m1 * e4m3 * 2^-7; multiply the sum over the row by factor, 2^7 / divisor
//   fp8 row          e4m3; multiply the sum over the row by factor, the row's scale
//   bf16 fp32        the weight
//
// Padded rows go on to the next multiple of 128 columns, with codes of zero. Formats and layouts: artifact v3, sections
// 3 and 4.
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
};

// ---- what formats share ---------------------------------------------------------------------------------

// CODE_BITS of codes to a column, HIGH_BITS in the other plane, GROUP columns to an fp16 scale (0: there is none).
template <int CODE_BITS, int HIGH_BITS, int GROUP, bool PADDED>
struct Stored {
    static constexpr int kCodeBits = CODE_BITS;
    static constexpr int kHighBits = HIGH_BITS;
    static constexpr int kGroup = GROUP;
    static constexpr bool kPadded = PADDED;

    // Row n of `columns` columns.
    static NINFER_MEMBER Row row(const Part& part, i64 n, i64) {
        return {part.codes + n * part.code_stride, part.high + n * part.high_stride,
                part.scales + n * part.scale_stride};
    }
    static NINFER_MEMBER float factor(const Part&, i64) { return 1.0f; }
    static NINFER_MEMBER float group_scale(const Row& row, i64 group) {
        return half_to_float(load2(row.scales + 2 * group));
    }
};

// A two's-complement code of BITS bits.
template <int BITS>
NINFER_DEVICE float signed_code(u32 bits) {
    return static_cast<float>(static_cast<i32>(bits << (32 - BITS)) >> (32 - BITS));
}

NINFER_DEVICE u32 nibble(const u8* codes, i64 k) { return codes[k / 2] >> 4 * (k % 2) & 15u; }

// ---- formats --------------------------------------------------------------------------------------------

// code(row, k): one column's number, without what its group or row has in common.
template <int FORMAT>
struct Decoder;

template <>
struct Decoder<Q4> : Stored<4, 0, 64, true> {
    static NINFER_MEMBER float code(const Row& row, i64 k) { return signed_code<4>(nibble(row.codes, k)); }
};

template <>
struct Decoder<Q5> : Stored<4, 1, 64, true> {
    static NINFER_MEMBER float code(const Row& row, i64 k) {
        return signed_code<5>(nibble(row.codes, k) | (row.high[k / 8] >> k % 8 & 1u) << 4);
    }
};

template <>
struct Decoder<Q6> : Stored<4, 2, 64, true> {
    static NINFER_MEMBER float code(const Row& row, i64 k) {
        return signed_code<6>(nibble(row.codes, k) | (row.high[k / 4] >> 2 * (k % 4) & 3u) << 4);
    }
};

template <>
struct Decoder<Q8> : Stored<8, 0, 32, true> {
    static NINFER_MEMBER float code(const Row& row, i64 k) { return signed_code<8>(row.codes[k]); }
};

template <>
struct Decoder<T2> : Stored<2, 0, 128, true> {
    static NINFER_MEMBER float code(const Row& row, i64 k) {
        return signed_code<2>(row.codes[k / 4] >> 2 * (k % 4));
    }
};

template <>
struct Decoder<NVFP4> : Stored<4, 0, 0, false> {
    static NINFER_MEMBER Row row(const Part& part, i64 n, i64 columns) {
        Row row = Stored::row(part, n, columns);
        row.scales = part.scales + n / 128 * (columns / 64) * 512 + n % 32 * 16 + n % 128 / 32 * 4;
        return row;
    }
    static NINFER_MEMBER float factor(const Part& part, i64) { return 128.0f / part.divisor; }
    // Times the block's scale, which is one of 16 columns.
    static NINFER_MEMBER float code(const Row& row, i64 k) {
        return e2m1_to_float(nibble(row.codes, k)) * e4m3_to_float(row.scales[k / 64 * 512 + k % 64 / 16]);
    }
};

template <>
struct Decoder<FP8_ROW> : Stored<8, 0, 0, false> {
    static NINFER_MEMBER float factor(const Part& part, i64 n) {
        return bf16_to_float(load2(part.scales + n * part.scale_stride));
    }
    static NINFER_MEMBER float code(const Row& row, i64 k) { return e4m3_to_float(row.codes[k]); }
};

template <>
struct Decoder<BF16> : Stored<16, 0, 0, false> {
    static NINFER_MEMBER float code(const Row& row, i64 k) { return bf16_to_float(load2(row.codes + 2 * k)); }
};

template <>
struct Decoder<FP32> : Stored<32, 0, 0, false> {
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
