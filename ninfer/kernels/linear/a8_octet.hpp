// What 8-bit products know about formats, and how an octet is kept: eight consecutive groups, in whatever order of
// bytes the body wants them (a8_x86.hpp, a8_plain.hpp).
#pragma once

#include "linear/matrix.hpp"
#include "simd.hpp"

namespace ninfer::a8 {

constexpr int OCTET = 8;

// One number per group of an octet.
typedef int32_t lanes32 __attribute__((vector_size(32)));
typedef float lanesf __attribute__((vector_size(32)));

// A token's values in one octet of groups of G columns: value = scale * code.
template <int G>
struct alignas(64) Activations {
    static constexpr int offsets = G == 64 ? 3 : 1;
    static constexpr int first_offset = G == 32 ? 7 : G == 64 ? 3 : 1;

    int8_t codes[OCTET * G];
    float scale[OCTET];
    int32_t offset[offsets][OCTET];  // sums of the codes times -2^(first_offset + i), to undo that offset of weights
};

// group: columns to a scale. high: bytes of a group in the plane of high bits. offset: which of Activations::offset
// undoes the weights' offset; signs_apart: with AVX2 they have none. chain: how many times two offset weights by two
// codes fit into 16 bits, within half an octet: 8 * 2 * 15 * 127 < 2^15.
struct FormatQ4 {
    static constexpr int group = 64, high = 0, offset = 0, chain = 8;
    static constexpr bool signs_apart = false;
};
struct FormatQ5 {
    static constexpr int group = 64, high = 8, offset = 1, chain = 4;
    static constexpr bool signs_apart = false;
};
struct FormatQ6 {
    static constexpr int group = 64, high = 16, offset = 2, chain = 2;
    static constexpr bool signs_apart = false;
};
struct FormatQ8 {
    static constexpr int group = 32, high = 0, offset = 0, chain = 1;
    static constexpr bool signs_apart = true;
};
struct FormatT2 {
    static constexpr int group = 128, high = 0, offset = 0, chain = 16;
    static constexpr bool signs_apart = false;
};

// Calls body(FormatXX{}) for a part's format; nothing else is stored in groups.
template <class Body>
static inline void with_format(int32_t format, Body body) {
    switch (format) {
        case Q4: return body(FormatQ4{});
        case Q5: return body(FormatQ5{});
        case Q6: return body(FormatQ6{});
        case Q8: return body(FormatQ8{});
        default: return body(FormatT2{});
    }
}

// A row's weights in one octet, unpacked.
template <class F>
struct alignas(32) Weights {
    uint8_t codes[OCTET * F::group];
    float scale[OCTET];
};

// With AVX2 the codes are the signs: 0 or -1.
template <>
struct alignas(32) Weights<FormatQ8> {
    uint8_t codes[OCTET * 32];
    float scale[OCTET];
    uint8_t magnitude[OCTET * 32];
    int32_t negative[OCTET];  // sums of the magnitudes of negative weights
};

// a * b + c; the vectors of an octet have 8 lanes in every body.
static inline lanesf fused(lanesf a, lanesf b, lanesf c) {
#if NINFER_X86
    return (lanesf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)).
static inline float tree(lanesf v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

}  // namespace ninfer::a8
