// Stored rows to fp32.
#pragma once

#include "linear/matrix.hpp"
#include "simd.hpp"

namespace ninfer {

static inline float from_e4m3(uint8_t code) {
    return from_half((uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7)) * 256.0f;
}

static inline float from_e2m1(int code) {
    static const float values[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

static inline float stored_value(const Part& p, int64_t row, int64_t k, int64_t columns) {
    const uint8_t* codes = p.codes + row * p.code_stride;
    const uint8_t* high = p.high + row * p.high_stride;
    const uint8_t* scales = p.scales + row * p.scale_stride;
    const int nibble = p.format == BF16 || p.format == FP32 || p.format == T2 ? 0 : codes[k / 2] >> 4 * (k & 1) & 15;
    uint16_t word;
    float value;
    const auto scale = [&](int64_t group) {
        std::memcpy(&word, scales + k / group * 2, 2);
        return from_half(word);
    };
    switch (p.format) {
        case BF16:
            std::memcpy(&word, codes + k * 2, 2);
            return from_bf16(word);
        case FP32:
            std::memcpy(&value, codes + k * 4, 4);
            return value;
        case Q4:
            return (float)((nibble ^ 8) - 8) * scale(64);
        case Q5:
            return (float)(((nibble | (high[k / 8] >> (k & 7) & 1) << 4) ^ 16) - 16) * scale(64);
        case Q6:
            return (float)(((nibble | (high[k / 4] >> 2 * (k & 3) & 3) << 4) ^ 32) - 32) * scale(64);
        case Q8:
            return (float)(int8_t)codes[k] * scale(32);
        case T2:
            return (float)(((codes[k / 4] >> 2 * (k & 3) & 3) ^ 2) - 2) * scale(128);
        case NVFP4: {
            const int64_t g = k / 16;
            const int64_t at = ((row / 128) * (columns / 64) + g / 4) * 512 + (row % 32) * 16 + (row % 128) / 32 * 4 + g % 4;
            return from_e2m1(nibble) * from_e4m3(p.scales[at]) / p.divisor;
        }
        default:
            std::memcpy(&word, scales, 2);
            return from_e4m3(codes[k]) * from_bf16(word);
    }
}

static inline void decode_row(const Output& o, int64_t row, int64_t columns, float* out) {
    const Part* p = o.parts;
    while (row >= p->rows) row -= p++->rows;
    for (int64_t k = 0; k < columns; ++k) out[k] = stored_value(*p, row, k, columns);
}

}  // namespace ninfer
