// Stored rows to fp32, a unit of columns at a time: one struct per format, all with the same functions.
//
// A weight is exact in fp32 up to a factor that the whole row shares: `factor` (1 unless stated) multiplies the
// finished sum. Rows of padded formats can be read to the next multiple of 64 columns; those of the others end where
// they end. Reads of whole words may take in bytes behind a plane, where every such format has another plane.
#pragma once

#include "linear/matrix.hpp"
#include "simd.hpp"

#define NINFER_INLINE __attribute__((always_inline)) inline

// Loops over vectors in registers must be unrolled. Where a vector is several registers, or conversions are many
// instructions, those that exist once per format (NINFER_UNROLL_FORMAT) would cost more to compile than they save.
#if defined(__clang__)
#define NINFER_UNROLL _Pragma("unroll")
#else
#define NINFER_UNROLL _Pragma("GCC unroll 16")
#endif
#if NINFER_X86
#define NINFER_UNROLL_FORMAT NINFER_UNROLL
#elif defined(__clang__)
#define NINFER_UNROLL_FORMAT _Pragma("nounroll")
#else
#define NINFER_UNROLL_FORMAT _Pragma("GCC unroll 1")
#endif

namespace ninfer::a16 {

// One stored row, from some unit on.
struct Row {
    const uint8_t* codes;
    const uint8_t* high;
    const uint8_t* scales;
};

// ---- bits to lanes --------------------------------------------------------------------------------------

// {0, step, 2 step, ..} over `period` lanes, then again.
static inline i32 ramp(int step, int period) {
    i32 v;
    for (int i = 0; i < LANES; ++i) v[i] = i % period * step;
    return v;
}

// The four bytes at `from` in every lane.
static inline i32 word(const uint8_t* from) {
    int32_t bits;
    std::memcpy(&bits, from, 4);
    return splati(bits);
}

// The bytes that hold LANES codes of four bits, four of them in every lane: the first for lanes 0 to 7, the next for
// the others. Lane i's code begins at bit 4 (i % 8).
static inline i32 nibbles(const uint8_t* from) {
#if NINFER_LANES == 8
    return word(from);
#else
    const i32 low = word(from), high = word(from + 4);
    return ramp(1, LANES) < 8 ? low : high;
#endif
}

// table[index % 4] in every lane; the table has period 4.
static inline f32 lookup4(f32 table, i32 index) {
#if defined(NINFER_X86_512)
    return (f32)_mm512_permutevar_ps((__m512)table, (__m512i)index);
#elif defined(NINFER_X86)
    return (f32)_mm256_permutevar_ps((__m256)table, (__m256i)index);
#else
    f32 v;
    for (int i = 0; i < LANES; ++i) v[i] = table[index[i] & 3];
    return v;
#endif
}

// table[index % 8] in every lane; the table has period 8.
static inline f32 lookup8(f32 table, i32 index) {
#if defined(NINFER_X86_512)
    return (f32)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
#elif defined(NINFER_X86)
    return (f32)_mm256_permutevar8x32_ps((__m256)table, (__m256i)index);
#else
    f32 v;
    for (int i = 0; i < LANES; ++i) v[i] = table[index[i] & 7];
    return v;
#endif
}

static inline f32 table4(float a, float b, float c, float d) {
    const float entries[4] = {a, b, c, d};
    f32 v;
    for (int i = 0; i < LANES; ++i) v[i] = entries[i % 4];
    return v;
}

static inline uint16_t half_word(const uint8_t* from) {
    uint16_t bits;
    std::memcpy(&bits, from, 2);
    return bits;
}

// An fp16 scale in every lane.
static inline f32 scale(const uint8_t* from) {
#if defined(NINFER_X86_512)
    return (f32)_mm512_cvtph_ps(_mm256_set1_epi16((short)half_word(from)));
#elif defined(NINFER_X86)
    return (f32)_mm256_cvtph_ps(_mm_set1_epi16((short)half_word(from)));
#else
    return splat(from_half(half_word(from)));
#endif
}

// LANES E4M3 codes times 2^-8: their bits are those of an fp16 number whose exponent is 8 too low.
static inline f32 from_e4m3(const uint8_t* from) {
#if defined(NINFER_X86_512)
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
    return (f32)_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80)));
#elif defined(NINFER_X86)
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)from));
    return (f32)_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80)));
#else
    f32 v;
    for (int i = 0; i < LANES; ++i) v[i] = from_half((uint16_t)((from[i] & 0x80) << 8 | (from[i] & 0x7f) << 7));
    return v;
#endif
}

// ---- formats --------------------------------------------------------------------------------------------

static inline Row row_of(const Part& p, int64_t row) {
    return {p.codes + row * p.code_stride, p.high + row * p.high_stride, p.scales + row * p.scale_stride};
}

struct Nothing {};

// What most formats have: bytes of codes to a unit, high bits to a unit, scales to a unit.
template <int COLUMNS, int CODES, int HIGH, int SCALES, bool PADDED = true>
struct Stored {
    static constexpr int columns = COLUMNS;
    static constexpr int codes = CODES;
    static constexpr int high = HIGH;
    static constexpr int scales = SCALES;
    static constexpr bool padded = PADDED;

    static Row row(const Part& p, int64_t row, int64_t) { return row_of(p, row); }
    static float factor(const Part&, int64_t) { return 1.0f; }
};

struct Bf16 : Stored<32, 64, 0, 0, false> {
    using Shared = Nothing;
    NINFER_INLINE static Shared shared(const Row&) { return {}; }
    NINFER_INLINE static f32 vector(const Row& row, Shared, int i) {
        return from_bf16((const uint16_t*)row.codes + i * LANES);
    }
};

struct Fp32 : Stored<32, 128, 0, 0, false> {
    using Shared = Nothing;
    NINFER_INLINE static Shared shared(const Row&) { return {}; }
    NINFER_INLINE static f32 vector(const Row& row, Shared, int i) { return load<f32>(row.codes + i * LANES * 4); }
};

struct Q8Codes : Stored<32, 32, 0, 2> {
    using Shared = f32;
    NINFER_INLINE static Shared shared(const Row& row) { return scale(row.scales); }
    NINFER_INLINE static f32 vector(const Row& row, f32 s, int i) {
        return from_int8((const int8_t*)row.codes + i * LANES) * s;
    }
};

struct Q4Codes : Stored<64, 32, 0, 2> {
    using Shared = f32;
    NINFER_INLINE static Shared shared(const Row& row) { return scale(row.scales) * 0x1p-28f; }
    NINFER_INLINE static f32 vector(const Row& row, f32 s, int i) {
        return to_f32(nibbles(row.codes + i * LANES / 2) << (28 - ramp(4, 8)) & splati(0xf0000000)) * s;
    }
};

// Base nibbles, and BITS high bits that select what they are added to.
template <int BITS>
struct NibblesAndHigh : Stored<64, 32, 8 * BITS, 2> {
    struct Shared {
        f32 scale;
        f32 base;
    };
    NINFER_INLINE static Shared shared(const Row& row) {
        const f32 s = scale(row.scales);
        return {s, s * (BITS == 1 ? table4(0, -16, 0, -16) : table4(0, 16, -32, -16))};
    }
    NINFER_INLINE static f32 vector(const Row& row, const Shared& s, int i) {
        const f32 low = to_f32((i32)((u32)nibbles(row.codes + i * LANES / 2) >> (u32)ramp(4, 8)) & 15);
        return fma(low, s.scale, lookup4(s.base, word(row.high + i * LANES * BITS / 8) >> ramp(BITS, LANES)));
    }
};

struct T2Codes : Stored<64, 16, 0, 1> {
    using Shared = f32;
    NINFER_INLINE static Shared shared(const Row& row) { return scale(row.scales) * table4(0, 1, -2, -1); }
    NINFER_INLINE static f32 vector(const Row& row, f32 values, int i) {
        return lookup4(values, word(row.codes + i * LANES / 4) >> ramp(2, LANES));
    }
};

// The factor holds the divisor, and 2^8 because the scales come times 2^-8.
struct Nvfp4Codes : Stored<64, 32, 0, 512> {
    struct Shared {
        float scales[LANES];
    };
    static Row row(const Part& p, int64_t row, int64_t columns) {
        Row r = row_of(p, row);
        r.scales = p.scales + row / 128 * (columns / 64) * 512 + row % 32 * 16 + row % 128 / 32 * 4;
        return r;
    }
    static float factor(const Part& p, int64_t) { return 256.0f / p.divisor; }
    NINFER_INLINE static Shared shared(const Row& row) {
        Shared s;
        uint8_t stored[LANES] = {};
        std::memcpy(stored, row.scales, 4);
        store(s.scales, from_e4m3(stored));
        return s;
    }
    NINFER_INLINE static f32 vector(const Row& row, const Shared& s, int i) {
        f32 magnitudes;
        const float entries[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
        for (int j = 0; j < LANES; ++j) magnitudes[j] = entries[j % 8];
        const i32 codes = nibbles(row.codes + i * LANES / 2);
        const i32 magnitude = (i32)lookup8(magnitudes * s.scales[i * LANES / 16], codes >> ramp(4, 8));
        return (f32)(magnitude ^ (codes << (28 - ramp(4, 8)) & INT32_MIN));
    }
};

// The factor is the row's scale, and 2^8 because the codes come times 2^-8.
struct Fp8Codes : Stored<64, 64, 0, 0, false> {
    using Shared = Nothing;
    static float factor(const Part& p, int64_t row) {
        return from_bf16(half_word(p.scales + row * p.scale_stride)) * 256.0f;
    }
    NINFER_INLINE static Shared shared(const Row&) { return {}; }
    NINFER_INLINE static f32 vector(const Row& row, Shared, int i) { return from_e4m3(row.codes + i * LANES); }
};

// Calls body(F{}) with the format's struct.
template <class Body>
static inline void with_format(int32_t format, Body body) {
    switch (format) {
        case BF16: return body(Bf16{});
        case FP32: return body(Fp32{});
        case Q4: return body(Q4Codes{});
        case Q5: return body(NibblesAndHigh<1>{});
        case Q6: return body(NibblesAndHigh<2>{});
        case Q8: return body(Q8Codes{});
        case T2: return body(T2Codes{});
        case NVFP4: return body(Nvfp4Codes{});
        default: return body(Fp8Codes{});
    }
}

}  // namespace ninfer::a16
