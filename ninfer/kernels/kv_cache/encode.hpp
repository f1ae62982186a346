// The other direction of rows.hpp: fp32 rows to their stored bytes.
#pragma once

#include "kv_cache/rows.hpp"

namespace ninfer {

// bf16 words of LANES numbers, to nearest even; a NaN stays one.
static inline u32 to_bf16(f32 v) {
    const u32 bits = (u32)v;
    const u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return v == v ? rounded : bits >> 16 | 0x40u;
}

// E4M3FN codes of LANES numbers within +-448, to nearest even; a NaN becomes one.
static inline u32 to_e4m3(f32 v) {
    const u32 bits = (u32)v, magnitude = bits & 0x7fffffffu;
    const u32 normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
    // Below 2^-6 codes count steps of 2^-9, the last place of 2^14 in fp32.
    const u32 small = (u32)((f32)magnitude + 16384.0f) - 0x46800000u;
    const u32 code = magnitude < 0x3c800000u ? small : normal;
    return (v == v ? code : code * 0 + 127u) | (bits >> 24 & 128u);
}

// E2M1 codes of LANES numbers: the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with ties to the even code.
static inline u32 to_e2m1(f32 v) {
    const f32 m = vabs(v);
    const i32 passed = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
    return (u32)-passed | ((u32)v >> 28 & 8u);
}

// One fp16 word, to nearest even, of a number in [0, 65504] or NaN.
static inline uint16_t to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return 0x7e00;
    if (bits >= 0x38800000u) return static_cast<uint16_t>((bits + 0xfffu + (bits >> 13 & 1u) - (112u << 23)) >> 13);
    const float shifted = x + 0.5f;  // whose last place is 2^-24, the step of fp16's smallest numbers
    std::memcpy(&bits, &shifted, 4);
    return static_cast<uint16_t>(bits - 0x3f000000u);
}

// The greatest magnitude, or a NaN if there is one: as integers, magnitudes are in their order and NaN are beyond.
static inline float greatest_magnitude(const float* x, int64_t count) {
    i32 top = {};
    const int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        const i32 bits = (i32)vabs(loadf(x + i));
        top = bits > top ? bits : top;
    }
    int32_t best = 0;
    for (int i = 0; i < LANES; ++i) best = top[i] > best ? top[i] : best;
    float value;
    std::memcpy(&value, &best, 4);
    return value;
}

// x / scale within +-limit; 0 where the scale is 0.
static inline f32 quotient(f32 x, float scale, float limit) {
    if (scale == 0.0f) return f32{};
    const f32 q = x / scale;
    return q != q ? q : vmin(vmax(q, splat(-limit)), splat(limit));
}

static inline void store_bytes(uint8_t* to, u32 codes) {
    const u8 all = (u8)codes;
    for (int i = 0; i < LANES; ++i) to[i] = all[4 * i];
}

static inline void encode_int8(const float* x, int64_t count, uint8_t* codes, uint8_t* scales) {
    for (int64_t begin = 0; begin < count; begin += INT8_GROUP) {
        const float exact = greatest_magnitude(x + begin, INT8_GROUP) / 127.0f;
        const uint16_t word = to_half(exact > 65504.0f ? 65504.0f : exact);
        std::memcpy(scales + begin / INT8_GROUP * 2, &word, 2);
        const float scale = from_half(word);
        for (int64_t i = begin; i < begin + INT8_GROUP; i += LANES) {
            const f32 q = quotient(loadf(x + i), scale, 127.0f);
            store_bytes(codes + i, (u32)round_even(q == q ? q : f32{}));
        }
    }
}

static inline void encode_fp8(const float* x, int64_t count, uint8_t* codes, uint8_t* scales) {
    const uint16_t word = static_cast<uint16_t>(to_bf16(splat(greatest_magnitude(x, count) / 448.0f))[0]);
    std::memcpy(scales, &word, 2);
    for (int64_t i = 0; i < count; i += LANES)
        store_bytes(codes + i, to_e4m3(quotient(loadf(x + i), from_bf16(word), 448.0f)));
}

static inline void encode_nvfp4(const float* x, int64_t count, uint8_t* codes, uint8_t* scales) {
    for (int64_t begin = 0; begin < count; begin += NVFP4_GROUP) {
        const float exact = greatest_magnitude(x + begin, NVFP4_GROUP) / 6.0f;
        const uint8_t code = static_cast<uint8_t>(to_e4m3(splat(exact > 448.0f ? 448.0f : exact))[0]);
        scales[begin / NVFP4_GROUP] = code;
        uint8_t nibbles[NVFP4_GROUP];
        for (int64_t i = 0; i < NVFP4_GROUP; i += LANES)
            store_bytes(nibbles + i, to_e2m1(quotient(loadf(x + begin + i), E4M3.value[code], 6.0f)));
        for (int64_t i = 0; i < NVFP4_GROUP; i += 2)
            codes[(begin + i) / 2] = static_cast<uint8_t>(nibbles[i] | nibbles[i + 1] << 4);
    }
}

// Row x of `count` numbers, a multiple of 64, to `place` of the plane.
static inline void encode_row(const Plane& plane, int64_t place, const float* x, int64_t count) {
    uint8_t* codes = plane.codes + place * plane.code_bytes;
    uint8_t* scales = plane.scales + place * plane.scale_bytes;
    switch (plane.format) {
        case ROW_FP32:
            std::memcpy(codes, x, sizeof(float) * count);
            break;
        case ROW_BF16:
            for (int64_t i = 0; i < count; i += LANES) {
                const u16 words = (u16)to_bf16(loadf(x + i));
                uint16_t packed[LANES];
                for (int j = 0; j < LANES; ++j) packed[j] = words[2 * j];
                std::memcpy(codes + 2 * i, packed, sizeof packed);
            }
            break;
        case ROW_INT8:
            encode_int8(x, count, codes, scales);
            break;
        case ROW_FP8:
            encode_fp8(x, count, codes, scales);
            break;
        default:
            encode_nvfp4(x, count, codes, scales);
    }
}

}  // namespace ninfer
