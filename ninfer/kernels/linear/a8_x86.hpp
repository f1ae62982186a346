// Octets on x86: eight groups side by side, so that products need no horizontal sums and scales apply as vectors.
//
// Layout of an octet: vectors v = 0, 1, ... of 32 bytes. The four bytes at 4i of vector v are lanes of group i of the
// octet, in the same order in weights and activations: lanes 4v..4v+3 of q8; of two-lane bytes (q4, q5, q6) the even
// (v = 2p) or odd (v = 2p + 1) of lanes 8p..8p+7; of four-lane bytes (t2) lanes 16p+f, 16p+f+4, ... of v = 4p + f. These
// are the orders in which the codes fall out of their planes.
//
// Weights are offset to unsigned bytes, for vpmaddubsw and vpdpbusd; an octet of activations carries what the offset adds.
// With AVX2, sums of products stay in 16 bits for as long as they cannot overflow (`chain` vectors). Operations for
// 8 groups of one (token, row), at four per cycle, of which two multiply; MAC per cycle in brackets:
//   q4 16 vpmaddubsw + 14 vpaddw + 2 vpmaddwd + 1 vpaddd + 4 = 37 [55], q5 39 [52], q6 43 [43, by the multipliers],
//   t2 68 [60], q8 8 (vpsignb + vpmaddubsw + vpmaddwd + vpaddd) + 2 = 34 [30]: offset q8 would overflow 16 bits at once.
#pragma once

#include "linear/a8_octet.hpp"

namespace ninfer::a8 {

typedef __m256i bytes;

#if NINFER_X86_512
template <class F>
constexpr bool is_offset = true;
#else
template <class F>
constexpr bool is_offset = !F::signs_apart;
#endif

static inline bytes load_bytes(const void* from) { return _mm256_load_si256((const __m256i*)from); }
static inline void store_bytes(void* to, bytes v) { _mm256_store_si256((__m256i*)to, v); }
static inline bytes splat_byte(int b) { return _mm256_set1_epi8((char)b); }

// 16 bytes of one group beside 16 of another.
static inline bytes beside(const void* low, const void* high) {
    const __m128i first = _mm_loadu_si128((const __m128i*)low);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), _mm_loadu_si128((const __m128i*)high), 1);
}

// Dword d of group i (4 + i in the upper half) of in[i] becomes dword i of out[d].
static inline void transpose(const bytes in[4], bytes out[4]) {
    const bytes a = _mm256_unpacklo_epi32(in[0], in[1]), b = _mm256_unpacklo_epi32(in[2], in[3]);
    const bytes c = _mm256_unpackhi_epi32(in[0], in[1]), d = _mm256_unpackhi_epi32(in[2], in[3]);
    out[0] = _mm256_unpacklo_epi64(a, b);
    out[1] = _mm256_unpackhi_epi64(a, b);
    out[2] = _mm256_unpacklo_epi64(c, d);
    out[3] = _mm256_unpackhi_epi64(c, d);
}

// Bytes [16 half, 16 half + 16) of the eight groups, which are `stride` bytes apart, four vectors of the layout.
static inline void pieces(const uint8_t* groups, int stride, int half, bytes out[4]) {
    bytes in[4];
    for (int i = 0; i < 4; ++i) in[i] = beside(groups + i * stride + 16 * half, groups + (i + 4) * stride + 16 * half);
    transpose(in, out);
}

// ---- activations ----------------------------------------------------------------------------------------

// 32 values times `by`, rounded to signed bytes. |x * by| < 127.5.
static inline void narrow(const float* x, float by, int8_t* out) {
    __m256i w[4];
    for (int i = 0; i < 4; ++i) w[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(by)));
    const bytes mixed = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
    store_bytes(out, _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

// Sums of the codes of each group.
static inline bytes code_sums(const int8_t* codes, int vectors) {
    bytes sums = _mm256_setzero_si256();
    for (int v = 0; v < vectors; ++v)
        sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(splat_byte(1), load_bytes(codes + 32 * v)));
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

// The codes [8][G] of an octet in the order of the layout, and what offsets of the weights add to products.
template <int G>
static inline void arrange(const int8_t* codes, Activations<G>& to) {
    const __m128i order = G == 32    ? _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
                          : G == 64  ? _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
                                     : _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int half = 0; half < G / 16; ++half) {
        bytes in[4], out[4];
        for (int i = 0; i < 4; ++i)
            in[i] = _mm256_shuffle_epi8(beside(codes + i * G + 16 * half, codes + (i + 4) * G + 16 * half),
                                        _mm256_broadcastsi128_si256(order));
        transpose(in, out);
        for (int i = 0; i < 4; ++i) store_bytes(to.codes + 32 * (4 * half + i), out[i]);
    }
    const bytes sums = code_sums(to.codes, G / 4);
    for (int i = 0; i < Activations<G>::offsets; ++i)
        store_bytes(to.offset[i], _mm256_slli_epi32(sums, Activations<G>::first_offset + i));
}

// ---- weights --------------------------------------------------------------------------------------------

// Splits bytes of two lanes.
static inline void store_nibbles(bytes packed, bytes even_high, bytes odd_high, uint8_t* to) {
    const bytes nibble = splat_byte(15);
    store_bytes(to, _mm256_or_si256(_mm256_and_si256(packed, nibble), even_high));
    store_bytes(to + 32, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble), odd_high));
}

static inline void unpack_codes(FormatQ4, const uint8_t* codes, const uint8_t*, uint8_t* to) {
    const bytes none = _mm256_setzero_si256();
    for (int half = 0; half < 2; ++half) {
        bytes piece[4];
        pieces(codes, 32, half, piece);
        for (int p = 0; p < 4; ++p)
            store_nibbles(_mm256_xor_si256(piece[p], splat_byte(0x88)), none, none, to + 64 * (4 * half + p));
    }
}

// The fifth bits of lanes 8p..8p+7 are byte p of a group.
static inline void unpack_codes(FormatQ5, const uint8_t* codes, const uint8_t* high, uint8_t* to) {
    // The bytes p = 0..3, then 4..7, of groups 0..3 | 4..7.
    const bytes first = beside(high, high + 32), second = beside(high + 16, high + 48);
    const bytes even = _mm256_unpacklo_epi8(first, second), odd = _mm256_unpackhi_epi8(first, second);
    const bytes planes[2] = {_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd)};
    const bytes spread = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
    const bytes even_bits = _mm256_set1_epi32(0x40100401), odd_bits = _mm256_set1_epi32((int)0x80200802);
    const bytes zero = _mm256_setzero_si256(), sixteen = splat_byte(16);
    for (int half = 0; half < 2; ++half) {
        bytes piece[4];
        pieces(codes, 32, half, piece);
        for (int p = 0; p < 4; ++p) {
            const bytes bits = _mm256_shuffle_epi8(planes[half], _mm256_add_epi8(spread, splat_byte(4 * p)));
            // The offset makes the fifth bit 1 where it was 0.
            const bytes e = _mm256_cmpeq_epi8(_mm256_and_si256(bits, even_bits), zero);
            const bytes o = _mm256_cmpeq_epi8(_mm256_and_si256(bits, odd_bits), zero);
            store_nibbles(piece[p], _mm256_and_si256(e, sixteen), _mm256_and_si256(o, sixteen), to + 64 * (4 * half + p));
        }
    }
}

// The upper two bits of lanes 2j, 2j+1 are nibble j of a group's 16 bytes.
static inline void unpack_codes(FormatQ6, const uint8_t* codes, const uint8_t* high, uint8_t* to) {
    bytes g[4];
    for (int i = 0; i < 4; ++i) g[i] = _mm256_xor_si256(beside(high + 16 * i, high + 16 * i + 64), splat_byte(0xaa));
    const bytes mask = splat_byte(0x30), zero = _mm256_setzero_si256();
    for (int half = 0; half < 2; ++half) {
        bytes piece[4];
        pieces(codes, 32, half, piece);
        // Words 4 half .. 4 half + 3 of the groups; a word belongs to a piece.
        const bytes a = half ? _mm256_unpackhi_epi16(g[0], g[1]) : _mm256_unpacklo_epi16(g[0], g[1]);
        const bytes b = half ? _mm256_unpackhi_epi16(g[2], g[3]) : _mm256_unpacklo_epi16(g[2], g[3]);
        const bytes words[2] = {_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)};
        for (int p = 0; p < 4; ++p) {
            const bytes wide = p & 1 ? _mm256_unpackhi_epi8(words[p / 2], zero) : _mm256_unpacklo_epi8(words[p / 2], zero);
            const bytes nibbles = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));  // in the low half of each byte
            store_nibbles(piece[p], _mm256_and_si256(_mm256_slli_epi16(nibbles, 4), mask),
                          _mm256_and_si256(_mm256_slli_epi16(nibbles, 2), mask), to + 64 * (4 * half + p));
        }
    }
}

// Offset bytes with VNNI, else the signed codes followed by their magnitudes.
static inline void unpack_codes(FormatQ8, const uint8_t* codes, const uint8_t*, uint8_t* to) {
    for (int half = 0; half < 2; ++half) {
        bytes piece[4];
        pieces(codes, 32, half, piece);
        for (int p = 0; p < 4; ++p) {
            uint8_t* at = to + 32 * (4 * half + p);
#if NINFER_X86_512
            store_bytes(at, _mm256_xor_si256(piece[p], splat_byte(0x80)));
#else
            store_bytes(at, piece[p]);
            store_bytes(at + 256, _mm256_abs_epi8(piece[p]));
#endif
        }
    }
}

static inline void unpack_codes(FormatT2, const uint8_t* codes, const uint8_t*, uint8_t* to) {
    const bytes mask = splat_byte(3);
    for (int half = 0; half < 2; ++half) {
        bytes piece[4];
        pieces(codes, 32, half, piece);
        for (int p = 0; p < 4; ++p) {
            const bytes packed = _mm256_xor_si256(piece[p], splat_byte(0xaa));
            uint8_t* at = to + 128 * (4 * half + p);
            store_bytes(at, _mm256_and_si256(packed, mask));
            store_bytes(at + 32, _mm256_and_si256(_mm256_srli_epi16(packed, 2), mask));
            store_bytes(at + 64, _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask));
            store_bytes(at + 96, _mm256_and_si256(_mm256_srli_epi16(packed, 6), mask));
        }
    }
}

static inline void unpack_scales(const uint8_t* words, float* to) {
    _mm256_store_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)words)));
}

// ---- products -------------------------------------------------------------------------------------------

#if !NINFER_X86_512
// 16 sums of two products each. A code takes the weight's sign where the weight has one: 2 * 127 * 127 < 2^15.
template <class F>
static inline bytes two_products(const uint8_t* weights, bytes codes) {
    if (!F::signs_apart) return _mm256_maddubs_epi16(load_bytes(weights), codes);
    return _mm256_maddubs_epi16(load_bytes(weights + 256), _mm256_sign_epi8(codes, load_bytes(weights)));
}
#endif

// Exact products of the eight groups of R rows with those of T tokens.
template <class F, int R, int T>
static inline void dots(const Weights<F>* const (&w)[R], const Activations<F::group>* const (&x)[T], lanes32 (&out)[R][T]) {
    bytes total[R][T];
#if NINFER_X86_512
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) total[r][t] = _mm256_setzero_si256();
#pragma GCC unroll 32
    for (int v = 0; v < F::group / 4; ++v)
        for (int t = 0; t < T; ++t) {
            const bytes codes = load_bytes(x[t]->codes + 32 * v);
            for (int r = 0; r < R; ++r)
                total[r][t] = _mm256_dpbusd_epi32(total[r][t], load_bytes(w[r]->codes + 32 * v), codes);
        }
#else
    const bytes ones = _mm256_set1_epi16(1);
#pragma GCC unroll 32
    for (int begin = 0; begin < F::group / 4; begin += F::chain) {
        bytes part[R][T];
#pragma GCC unroll 32
        for (int v = begin; v < begin + F::chain; ++v)
            for (int t = 0; t < T; ++t) {
                const bytes codes = load_bytes(x[t]->codes + 32 * v);
                for (int r = 0; r < R; ++r) {
                    const bytes product = two_products<F>(w[r]->codes + 32 * v, codes);
                    part[r][t] = v == begin ? product : _mm256_add_epi16(part[r][t], product);
                }
            }
        for (int r = 0; r < R; ++r)
            for (int t = 0; t < T; ++t) {
                const bytes wide = _mm256_madd_epi16(part[r][t], ones);
                total[r][t] = begin == 0 ? wide : _mm256_add_epi32(total[r][t], wide);
            }
    }
#endif
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) {
            const bytes offset = is_offset<F> ? load_bytes(x[t]->offset[F::offset]) : _mm256_setzero_si256();
            out[r][t] = (lanes32)_mm256_sub_epi32(total[r][t], offset);
        }
}

// `tree` of each vector.
template <int T>
static inline void sum_lanes(const lanesf (&v)[T], float (&out)[T]) {
    __m128 half[4] = {};
    for (int t = 0; t < T; ++t)
        half[t] = _mm_add_ps(_mm256_castps256_ps128((__m256)v[t]), _mm256_extractf128_ps((__m256)v[t], 1));
    const __m128 a = _mm_add_ps(_mm_unpacklo_ps(half[0], half[1]), _mm_unpackhi_ps(half[0], half[1]));
    const __m128 b = _mm_add_ps(_mm_unpacklo_ps(half[2], half[3]), _mm_unpackhi_ps(half[2], half[3]));
    float sums[4];
    _mm_storeu_ps(sums, _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a)));
    std::memcpy(out, sums, sizeof out);
}

}  // namespace ninfer::a8
