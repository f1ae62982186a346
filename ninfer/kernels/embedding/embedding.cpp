// embedding: see the contract in this folder. A row is decoded as it lies; formats: artifact v3, sections 3 and 4.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

enum Storage : int32_t { BF16 = 0, FP32 = 1, GROUPED = 2, FP8_ROW = 3, NVFP4 = 4 };

struct Args {
    const int64_t* token_ids;
    const uint8_t* codes;   // of the first row, as are all planes; values of a direct format
    const uint8_t* high;    // high bits of grouped codes, where there are any
    const uint8_t* scales;  // fp16 per group, bf16 per row, or NVFP4's swizzled E4M3
    const float* divisor;   // NVFP4
    float* out;
    int64_t tokens;
    int64_t columns;
    int64_t code_stride;  // bytes from row to row
    int64_t high_stride;
    int64_t scale_stride;
    int32_t storage;
    int32_t base_bits;  // of a grouped code, in the plane of codes
    int32_t high_bits;  // of a grouped code, in the plane of high bits
    int32_t group;      // columns that share a scale
};

constexpr int UNIT = 128;  // columns decoded at a time; a stored row of a grouped format is padded to a multiple

struct E4m3Table {
    float values[256];

    constexpr E4m3Table() : values() {
        for (int code = 0; code < 256; ++code) {
            const int exponent = code >> 3 & 15, mantissa = code & 7;
            float value = static_cast<float>(exponent == 0 ? mantissa : mantissa + 8) / 512.0f;
            for (int e = 1; e < exponent; ++e) value *= 2.0f;
            if ((code & 127) == 127) value = __builtin_nanf("");
            values[code] = code & 128 ? -value : value;
        }
    }
};

constexpr E4m3Table E4M3;
constexpr float E2M1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

uint16_t word16(const uint8_t* from) {
    uint16_t word;
    std::memcpy(&word, from, 2);
    return word;
}

// ---- direct formats -------------------------------------------------------------------------------------

void decode_bf16(const uint8_t* values, int64_t columns, float* out) {
    const uint16_t* words = reinterpret_cast<const uint16_t*>(values);
    const int64_t whole = columns / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) store(out + i, from_bf16(words + i));
    for (int64_t i = whole; i < columns; ++i) out[i] = from_bf16(words[i]);
}

// ---- grouped formats ------------------------------------------------------------------------------------

void unpack_nibbles(const uint8_t* from, uint8_t* lanes) {
    for (int i = 0; i < UNIT / 2; ++i) {
        lanes[2 * i] = from[i] & 15;
        lanes[2 * i + 1] = from[i] >> 4;
    }
}

void unpack_pairs(const uint8_t* from, uint8_t* lanes) {
    for (int i = 0; i < UNIT / 4; ++i) {
        const uint32_t byte = from[i], spread = (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u;
        std::memcpy(lanes + 4 * i, &spread, 4);
    }
}

void unpack_bits(const uint8_t* from, uint8_t* lanes) {
    for (int i = 0; i < UNIT / 8; ++i) {
        const uint64_t own = from[i] * 0x0101010101010101u & 0x8040201008040201u;  // byte j keeps bit j
        const uint64_t spread = (own + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
        std::memcpy(lanes + 8 * i, &spread, 8);
    }
}

// The UNIT codes of a row from column `at` on, in two's complement of base_bits + high_bits bits.
void unpack(const Args& a, const uint8_t* codes, const uint8_t* high, int64_t at, int8_t* out) {
    const uint8_t* base = codes + at * a.base_bits / 8;
    if (a.base_bits == 8) {
        std::memcpy(out, base, UNIT);
        return;
    }
    alignas(64) uint8_t lanes[UNIT], top[UNIT] = {};
    if (a.base_bits == 4) unpack_nibbles(base, lanes);
    else unpack_pairs(base, lanes);
    if (a.high_bits == 1) unpack_bits(high + at / 8, top);
    if (a.high_bits == 2) unpack_pairs(high + at / 4, top);
    const uint8_t sign = static_cast<uint8_t>(1 << (a.base_bits + a.high_bits - 1));
    for (int i = 0; i < UNIT; ++i)
        out[i] = static_cast<int8_t>(static_cast<uint8_t>(((lanes[i] | top[i] << 4) ^ sign) - sign));
}

// UNIT values from column `at` on, which may reach into the padding.
void decode_unit(const Args& a, const uint8_t* codes, const uint8_t* high, const uint8_t* scales, int64_t at, float* out) {
    alignas(64) int8_t lanes[UNIT];
    unpack(a, codes, high, at, lanes);
    for (int i = 0; i < UNIT; i += a.group) {
        const float scale = from_half(word16(scales + (at + i) / a.group * 2));
        for (int j = i; j < i + a.group; j += LANES) store(out + j, from_int8(lanes + j) * scale);
    }
}

void decode_grouped(const Args& a, int64_t row, float* out) {
    const uint8_t* codes = a.codes + row * a.code_stride;
    const uint8_t* high = a.high + row * a.high_stride;
    const uint8_t* scales = a.scales + row * a.scale_stride;
    const int64_t whole = a.columns / UNIT * UNIT;
    for (int64_t at = 0; at < whole; at += UNIT) decode_unit(a, codes, high, scales, at, out + at);
    if (whole == a.columns) return;
    alignas(64) float last[UNIT];
    decode_unit(a, codes, high, scales, whole, last);
    std::memcpy(out + whole, last, sizeof(float) * (a.columns - whole));
}

// ---- float codes ----------------------------------------------------------------------------------------

void decode_fp8_row(const Args& a, int64_t row, float* out) {
    const uint8_t* codes = a.codes + row * a.code_stride;
    const float scale = from_bf16(word16(a.scales + row * a.scale_stride));
    for (int64_t i = 0; i < a.columns; ++i) out[i] = E4M3.values[codes[i]] * scale;
}

// Scales lie in tiles of 128 rows by 4 groups: row r of a tile at r % 32 * 16 + r / 32 * 4.
void decode_nvfp4(const Args& a, int64_t row, float* out) {
    const int64_t groups = a.columns / 16;
    const uint8_t* codes = a.codes + row * a.code_stride;
    const uint8_t* scales = a.scales + row / 128 * groups * 128 + row % 32 * 16 + row % 128 / 32 * 4;
    for (int64_t group = 0; group < groups; ++group) {
        const float scale = E4M3.values[scales[group / 4 * 512 + group % 4]];
        alignas(64) float values[16];  // of this group's codes
        for (int code = 0; code < 16; ++code) values[code] = E2M1[code] * scale / *a.divisor;
        for (int i = 0; i < 8; ++i) {
            const uint8_t pair = codes[group * 8 + i];
            out[group * 16 + 2 * i] = values[pair & 15];
            out[group * 16 + 2 * i + 1] = values[pair >> 4];
        }
    }
}

void decode_row(const Args& a, int64_t row, float* out) {
    switch (a.storage) {
        case BF16: return decode_bf16(a.codes + row * a.code_stride, a.columns, out);
        case FP32: std::memcpy(out, a.codes + row * a.code_stride, sizeof(float) * a.columns); return;
        case GROUPED: return decode_grouped(a, row, out);
        case FP8_ROW: return decode_fp8_row(a, row, out);
        default: return decode_nvfp4(a, row, out);
    }
}

void embedding(const Args& a, Worker& worker) {
    worker.each(a.tokens, 8, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) decode_row(a, a.token_ids[t], a.out + t * a.columns);
    });
}

}  // namespace

NINFER_KERNEL(embedding, Args)
