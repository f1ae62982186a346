// Octets for machines without a body of their own: groups one after another, their lanes in order, weights signed.
#pragma once

#include "linear/a8_octet.hpp"

namespace ninfer::a8 {

// Loops that the compiler turns into vectors, once and not in every caller: that takes long.
#define APART __attribute__((noinline))

template <class V>
static inline V in_order(V v) {
    return v;
}

// The greatest of G magnitudes, as its bits: they are ordered like the numbers, with NaN above infinity.
template <int G>
static inline int32_t greatest_magnitude(const float* x) {
    int32_t most = 0;
    for (int i = 0; i < G; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most;
}

// 32 values times `by`, rounded to signed bytes. |x * by| < 127.5.
static inline void narrow(const float* x, float by, int8_t* out) {
    for (int i = 0; i < 32; i += LANES) {
        const i32 codes = round_even(loadf(x + i) * by);
        for (int j = 0; j < LANES; ++j) out[i + j] = static_cast<int8_t>(codes[j]);
    }
}

template <int G>
static inline void arrange(const int8_t* codes, Activations<G>& to) {
    std::memcpy(to.codes, codes, sizeof to.codes);
}

// Lane 2j in the low half of byte j.
static inline int nibble(const uint8_t* codes, int lane) { return codes[lane / 2] >> 4 * (lane & 1) & 15; }

APART static inline void unpack_codes(const uint8_t* codes, const uint8_t*, Weights<FormatQ4>& to) {
    for (int t = 0; t < OCTET * 64; ++t) to.codes[t] = static_cast<uint8_t>((nibble(codes, t) ^ 8) - 8);
}

APART static inline void unpack_codes(const uint8_t* codes, const uint8_t* high, Weights<FormatQ5>& to) {
    for (int t = 0; t < OCTET * 64; ++t) {
        const int bit = high[t / 8] >> (t & 7) & 1;
        to.codes[t] = static_cast<uint8_t>(((nibble(codes, t) | bit << 4) ^ 16) - 16);
    }
}

APART static inline void unpack_codes(const uint8_t* codes, const uint8_t* high, Weights<FormatQ6>& to) {
    for (int t = 0; t < OCTET * 64; ++t) {
        const int bits = high[t / 4] >> 2 * (t & 3) & 3;
        to.codes[t] = static_cast<uint8_t>(((nibble(codes, t) | bits << 4) ^ 32) - 32);
    }
}

APART static inline void unpack_codes(const uint8_t* codes, const uint8_t*, Weights<FormatQ8>& to) {
    std::memcpy(to.codes, codes, OCTET * 32);
}

APART static inline void unpack_codes(const uint8_t* codes, const uint8_t*, Weights<FormatT2>& to) {
    for (int t = 0; t < OCTET * 128; ++t) {
        const int word = codes[t / 4] >> 2 * (t & 3) & 3;
        to.codes[t] = static_cast<uint8_t>((word ^ 2) - 2);
    }
}

static inline lanesf stored_scales(const uint8_t* words) {
    lanesf scales;
    uint16_t word;
    for (int i = 0; i < OCTET; ++i) {
        std::memcpy(&word, words + 2 * i, 2);
        scales[i] = from_half(word);
    }
    return scales;
}

// Exact products of eight groups of G codes.
template <int G>
APART static inline lanes32 multiply_codes(const int8_t* weights, const int8_t* codes) {
    lanes32 products;
    for (int i = 0; i < OCTET; ++i) {
        int32_t total = 0;
        for (int k = i * G; k < (i + 1) * G; ++k) total += weights[k] * codes[k];
        products[i] = total;
    }
    return products;
}

// Exact products of the eight groups of an unpacked row with those of T tokens.
template <class F, int T>
static inline void multiply_octet(const Weights<F>& w, const Activations<F::group>* const (&x)[T], lanes32 (&out)[T]) {
    const int8_t* weights = reinterpret_cast<const int8_t*>(w.codes);
    for (int t = 0; t < T; ++t) out[t] = multiply_codes<F::group>(weights, x[t]->codes);
}

// The same for a row as it is stored.
template <class F, int T>
static inline void multiply_stored_octet(const uint8_t* stored, const uint8_t* high,
                                         const Activations<F::group>* const (&x)[T], lanes32 (&out)[T]) {
    Weights<F> unpacked;
    unpack_codes(stored, high, unpacked);
    multiply_octet<F, T>(unpacked, x, out);
}

// out[i] = `tree` of v[i], i < 4.
static inline void sum_lanes(const lanesf* v, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = tree(v[i]);
}

#undef APART

}  // namespace ninfer::a8
