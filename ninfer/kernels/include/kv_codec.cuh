// How rows of keys or values are stored: encode and decode, to the bytes of kv_cache/codec.py.
//
// A row's place is (page * heads + head) * kPageTokens + column. Encoding a row: the greatest magnitude of its group (a
// maximum of kv_magnitude) gives the group's scale word, the word's value divides each number, and the quotient's code
// is stored. NaN among the numbers makes the scale NaN; of int8, whose maximum is fp16, as well.
#pragma once

#include "pairs.cuh"

namespace ninfer {

constexpr int kPageTokens = 64;
constexpr int kKvInt8Group = 64;
constexpr int kKvNvfp4Group = 16;

enum RowFormat : i32 { kRowFp32 = 0, kRowBf16 = 1, kRowInt8 = 2, kRowFp8 = 3, kRowNvfp4 = 4 };

// One side of a pool; the mirror is PlaneArgs in kv_cache/compiled_cpu.py.
struct KvPlane {
    i32 format;
    i32 unused;
    u8* codes;
    u8* scales;       // fp16 per 64 numbers, bf16 per row, or E4M3 per 16 numbers
    i64 code_bytes;   // of a row
    i64 scale_bytes;  // of a row
};

// ---- to codes -------------------------------------------------------------------------------------------

// bf16 bits, to nearest even; a NaN stays one.
NINFER_DEVICE u16 kv_bf16(float x) {
    const u32 bits = bits_as<u32>(x);
    const u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return static_cast<u16>(x == x ? rounded : bits >> 16 | 0x40u);
}

// fp16 bits, to nearest even, of a number in [0, 65504] or NaN.
NINFER_DEVICE u16 kv_half(float x) { return x == x ? float_to_half(x) : static_cast<u16>(0x7e00); }

// An E4M3FN code, to nearest even, of a number within +-448; a NaN becomes one.
NINFER_DEVICE u8 kv_e4m3(float x) {
    const u32 bits = bits_as<u32>(x), magnitude = bits & 0x7fffffffu;
    const u32 normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
    // Below 2^-6 codes count steps of 2^-9, the last place of 2^14 in fp32.
    const u32 small = bits_as<u32>(__fadd_rn(bits_as<float>(magnitude), 16384.0f)) - 0x46800000u;
    const u32 code = magnitude < 0x3c800000u ? small : normal;
    return static_cast<u8>((x == x ? code : 127u) | (bits >> 24 & 128u));
}

// An E2M1 code: the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with ties to the even code.
NINFER_DEVICE u32 kv_e2m1(float x) {
    const float m = fabsf(x);
    const u32 passed = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
    return passed | (bits_as<u32>(x) >> 28 & 8u);
}

// An int8 code of a quotient within +-127; 0 of a NaN.
NINFER_DEVICE i8 kv_int8(float x) { return static_cast<i8>(x == x ? __float2int_rn(x) : 0); }

// x / scale within +-limit; 0 where the scale is 0. A NaN stays one.
NINFER_DEVICE float kv_quotient(float x, float scale, float limit) {
    if (scale == 0.0f) return 0.0f;
    const float q = __fdiv_rn(x, scale);
    return q != q ? q : fminf(fmaxf(q, -limit), limit);
}

// As integers magnitudes are in their order, and NaN are beyond: so a maximum finds them.
NINFER_DEVICE u32 kv_magnitude(float x) { return bits_as<u32>(x) & 0x7fffffffu; }

// The scale words of groups whose greatest kv_magnitude is `top`.
NINFER_DEVICE u16 kv_int8_scale(u32 top) {
    const float exact = __fdiv_rn(bits_as<float>(top), 127.0f);
    return kv_half(exact > 65504.0f ? 65504.0f : exact);
}
NINFER_DEVICE u16 kv_fp8_scale(u32 top) { return kv_bf16(__fdiv_rn(bits_as<float>(top), 448.0f)); }
NINFER_DEVICE u8 kv_nvfp4_scale(u32 top) {
    const float exact = __fdiv_rn(bits_as<float>(top), 6.0f);
    return kv_e4m3(exact > 448.0f ? 448.0f : exact);
}

// ---- to numbers -----------------------------------------------------------------------------------------

// What a scale word stands for. Unlike a weight's, a scale of nvfp4 may be the code of NaN.
NINFER_DEVICE float kv_nvfp4_scale_value(u8 code) { return code == 127u ? kNan : e4m3_to_float(code); }

// Codes to pairs of bf16 without the scale, exact; neighbours in order, the first in the low half. The NaN codes of
// E4M3 read as +-480.
NINFER_DEVICE void int8x4_to_bf16(u32 codes, u32 (&out)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) out[i] = two_int8(select_bytes(codes, 0, 0x0100u + 0x0202u * i));
}
NINFER_DEVICE void e4m3x4_to_bf16(u32 codes, u32 (&out)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) out[i] = two_e4m3(select_bytes(codes, 0, 0x1000u + 0x2020u * i));
}
NINFER_DEVICE void e2m1x8_to_bf16(u32 codes, u32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[i] = two_e2m1((codes >> 8 * i & 0xffu) * 0x1001u, 0x7e807e80u);
    }
}

}  // namespace ninfer
