// Rows of keys or values as they lie in a pool's pages, and what they represent. codec.py defines the formats.
//
// Python mirrors Plane in kv_cache/compiled_cpu.py. A row's place is (page * heads + head) * 64 + column.
#pragma once

#include "simd.hpp"

namespace ninfer {

constexpr int64_t PAGE = 64;        // columns of a page
constexpr int64_t INT8_GROUP = 64;  // numbers that share a scale
constexpr int64_t NVFP4_GROUP = 16;

enum RowFormat : int32_t { ROW_FP32 = 0, ROW_BF16 = 1, ROW_INT8 = 2, ROW_FP8 = 3, ROW_NVFP4 = 4 };

// One side of a pool.
struct Plane {
    int32_t format;
    int32_t unused;
    uint8_t* codes;
    uint8_t* scales;      // fp16 per 64 numbers, bf16 per row, or E4M3 per 16 numbers
    int64_t code_bytes;   // of a row
    int64_t scale_bytes;  // of a row
};

// What the 256 E4M3FN codes represent.
struct E4m3Values {
    float value[256] = {};
    constexpr E4m3Values() {
        for (int code = 0; code < 256; ++code) {
            const int exponent = code >> 3 & 15, mantissa = code & 7;
            float magnitude = exponent ? 8.0f + mantissa : static_cast<float>(2 * mantissa);
            for (int e = exponent; e < 10; ++e) magnitude *= 0.5f;  // the unit of exponent 10 is 1
            for (int e = 10; e < exponent; ++e) magnitude *= 2.0f;
            if ((code & 127) == 127) magnitude = __builtin_nanf("");
            value[code] = code & 128 ? -magnitude : magnitude;
        }
    }
};
static constexpr E4m3Values E4M3;

static inline uint16_t load_word(const uint8_t* from) {
    uint16_t word;
    std::memcpy(&word, from, 2);
    return word;
}

// LANES E4M3FN codes that are no NaN, times 2^-8.
static inline f32 from_e4m3_small(const uint8_t* codes) {
#if defined(NINFER_X86)
    // fp16 has the same fields with one more bit of exponent, whose bias of 15 for 7 makes the 2^-8.
#if defined(NINFER_X86_512)
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)codes));
    return (f32)_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16((short)0xbfff)));
#else
    const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)codes));
    return (f32)_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16((short)0xbfff)));
#endif
#else
    f32 v;
    for (int i = 0; i < LANES; ++i) v[i] = E4M3.value[codes[i]] * 0.00390625f;
    return v;
#endif
}

// 16 E2M1 codes, two in a byte with the first in the low bits, times scale.
static inline void decode_e2m1(const uint8_t* codes, float scale, float* out) {
    alignas(16) static constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int8_t doubled[16];
#if defined(NINFER_X86)
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)codes), low = _mm_set1_epi8(15);
    const __m128i nibbles =
        _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    store(doubled, _mm_shuffle_epi8(_mm_load_si128((const __m128i*)kDoubled), nibbles));
#else
    for (int i = 0; i < 16; ++i) doubled[i] = kDoubled[codes[i / 2] >> i % 2 * 4 & 15];
#endif
    for (int i = 0; i < 16; i += LANES) store(out + i, from_int8(doubled + i) * (0.5f * scale));
}

// The scale of one row's group that has `column`.
static inline float int8_scale(const Plane& plane, int64_t place, int64_t column) {
    return from_half(load_word(plane.scales + place * plane.scale_bytes + column / INT8_GROUP * 2));
}

// Numbers [column, column + columns) of one row, both multiples of 64, to out. The products with a scale are exact.
static inline void decode_row(const Plane& plane, int64_t place, int64_t column, int64_t columns, float* out) {
    const uint8_t* codes = plane.codes + place * plane.code_bytes;
    const uint8_t* scales = plane.scales + place * plane.scale_bytes;
    switch (plane.format) {
        case ROW_FP32:
            std::memcpy(out, codes + 4 * column, sizeof(float) * columns);
            break;
        case ROW_BF16:
            for (int64_t i = 0; i < columns; i += LANES)
                store(out + i, from_bf16(reinterpret_cast<const uint16_t*>(codes) + column + i));
            break;
        case ROW_INT8:
            for (int64_t begin = 0; begin < columns; begin += INT8_GROUP) {
                const float scale = int8_scale(plane, place, column + begin);
                for (int64_t i = begin; i < begin + INT8_GROUP; i += LANES)
                    store(out + i, from_int8(reinterpret_cast<const int8_t*>(codes) + column + i) * scale);
            }
            break;
        case ROW_FP8: {
            const float scale = from_bf16(load_word(scales)) * 256.0f;
            for (int64_t i = 0; i < columns; i += LANES) store(out + i, from_e4m3_small(codes + column + i) * scale);
            break;
        }
        default:
            for (int64_t i = 0; i < columns; i += NVFP4_GROUP)
                decode_e2m1(codes + (column + i) / 2, E4M3.value[scales[(column + i) / NVFP4_GROUP]], out + i);
    }
}

}  // namespace ninfer
