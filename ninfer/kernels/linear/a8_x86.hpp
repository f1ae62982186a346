// Octets on x86: eight groups side by side, so that products need no horizontal sums and scales apply as vectors.
//
// Layout: vectors v = 0, 1, ... of 32 bytes. The four bytes at 4i of vector v are lanes of group i, the same in weights
// and activations: of one-byte codes (q8) lanes 4v..4v+3; of two lanes to a byte (q4, q5, q6) the even (v = 2p) or odd
// (v = 2p + 1) ones of lanes 8p..8p+7; of four to a byte (t2) lanes 16p + f, 16p + f + 4, ... of v = 4p + f. In these
// orders the codes fall out of their planes.
//
// Weights are offset to unsigned bytes, for vpmaddubsw and vpdpbusd, and an octet of activations carries what undoes
// the offset. With AVX2, sums of products stay in 16 bits for as long as they fit (`chain` vectors). Operations for
// eight groups of one token and row, and the bound on MAC per cycle at four operations a cycle, two of them products:
//   q4  16 vpmaddubsw + 14 vpaddw + 2 (vpmaddwd + vpaddd) + 3 = 37, 55 MAC per cycle; q5 39, 52; q6 43, 43
//   t2  32 vpmaddubsw + 30 vpaddw + 2 (vpmaddwd + vpaddd) + 3 = 69, 59
//   q8  8 (vpxor + vpmaddubsw + vpmaddwd + vpaddd) + 4 = 36, 28: an offset would not fit, so it keeps its signs.
// vpmaddubsw from memory and vpaddw by themselves were measured to take 0.64 cycles on Zen 3 and not 0.5.
#pragma once

#include "linear/a8_octet.hpp"

namespace ninfer::a8 {

// Loops over registers, and functions whose arguments must be constants.
#define UNROLLED _Pragma("GCC unroll 16")
#define ALWAYS __attribute__((always_inline))

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
static inline bytes shift_right(bytes v, int bits) { return _mm256_srli_epi16(v, bits); }
static inline bytes shift_left(bytes v, int bits) { return _mm256_slli_epi16(v, bits); }

// The same, in a register. The compiler must not regroup sums across it, which would leave more products than
// registers, nor load one operand twice.
template <class V>
static inline V in_order(V v) {
    asm("" : "+x"(v));
    return v;
}

// 16 bytes of one group beside 16 of another.
static inline bytes beside(const void* low, const void* high) {
    const __m128i first = _mm_loadu_si128((const __m128i*)low);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), _mm_loadu_si128((const __m128i*)high), 1);
}

// Dword d of group i (4 + i in the upper half) of in[i] becomes dword i of out[d].
static inline void transpose(const bytes (&in)[4], bytes (&out)[4]) {
    const bytes a = _mm256_unpacklo_epi32(in[0], in[1]), b = _mm256_unpacklo_epi32(in[2], in[3]);
    const bytes c = _mm256_unpackhi_epi32(in[0], in[1]), d = _mm256_unpackhi_epi32(in[2], in[3]);
    out[0] = _mm256_unpacklo_epi64(a, b);
    out[1] = _mm256_unpackhi_epi64(a, b);
    out[2] = _mm256_unpacklo_epi64(c, d);
    out[3] = _mm256_unpackhi_epi64(c, d);
}

// ---- activations ----------------------------------------------------------------------------------------

// The greatest of G magnitudes, as its bits: they are ordered like the numbers, with NaN above infinity.
template <int G>
static inline int32_t greatest_magnitude(const float* x) {
    const bytes magnitude = _mm256_set1_epi32(0x7fffffff);
    bytes most = _mm256_setzero_si256();
    for (int i = 0; i < G; i += 8)
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_loadu_si256((const bytes*)(x + i)), magnitude));
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epi32(half, _mm_unpackhi_epi64(half, half));
    return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 1)));
}

// 32 values times `by`, rounded to signed bytes. |x * by| < 127.5.
static inline void narrow(const float* x, float by, int8_t* out) {
    bytes w[4];
    for (int i = 0; i < 4; ++i)
        w[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(by)));
    const bytes mixed = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
    store_bytes(out, _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

// Sums of the codes of each group, from the layout.
static inline bytes code_sums(const int8_t* codes, int vectors) {
    bytes sums = _mm256_setzero_si256();
    for (int v = 0; v < vectors; ++v)
        sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(splat_byte(1), load_bytes(codes + 32 * v)));
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

// The codes [8][G] of an octet into the order of the layout, and what undoes the offsets of weights.
template <int G>
static inline void arrange(const int8_t* codes, Activations<G>& to) {
    const __m128i order = G == 32   ? _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
                          : G == 64 ? _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
                                    : _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const bytes both = _mm256_broadcastsi128_si256(order);
    for (int part = 0; part < G / 16; ++part) {
        const int8_t* from = codes + 16 * part;
        bytes in[4], out[4];
        for (int i = 0; i < 4; ++i) in[i] = _mm256_shuffle_epi8(beside(from + i * G, from + (i + 4) * G), both);
        transpose(in, out);
        for (int i = 0; i < 4; ++i) store_bytes(to.codes + 32 * (4 * part + i), out[i]);
    }
    const bytes negative = _mm256_sub_epi32(_mm256_setzero_si256(), code_sums(to.codes, G / 4));
    for (int i = 0; i < Activations<G>::offsets; ++i)
        store_bytes(to.offset[i], _mm256_slli_epi32(negative, Activations<G>::first_offset + i));
}

// ---- weights --------------------------------------------------------------------------------------------

// The planes of an octet. `vectors` calls use(v, weights) for half of the vectors of the layout: bytes 16 half to
// 16 half + 15 of each group.
template <class F>
struct Planes;

// Piece p of a half: its bytes 4p..4p+3.
static inline void pieces(const uint8_t* codes, int half, bytes (&out)[4]) {
    const uint8_t* from = codes + 16 * half;
    bytes in[4];
    for (int i = 0; i < 4; ++i) in[i] = beside(from + 32 * i, from + 32 * (i + 4));
    transpose(in, out);
}

// Even and odd lanes, whose upper bits are given.
template <class Use>
ALWAYS static inline void use_nibbles(int v, bytes packed, bytes even, bytes odd, Use use) {
    const bytes nibble = splat_byte(15);
    use(v, _mm256_or_si256(_mm256_and_si256(packed, nibble), even));
    use(v + 1, _mm256_or_si256(_mm256_and_si256(shift_right(packed, 4), nibble), odd));
}

template <>
struct Planes<FormatQ4> {
    const uint8_t* codes;

    Planes(const uint8_t* codes, const uint8_t*) : codes(codes) {}

    template <class Use>
    ALWAYS void vectors(int half, Use use) const {
        bytes piece[4];
        pieces(codes, half, piece);
        const bytes none = _mm256_setzero_si256();
        UNROLLED for (int p = 0; p < 4; ++p)
            use_nibbles(8 * half + 2 * p, _mm256_xor_si256(piece[p], splat_byte(0x88)), none, none, use);
    }
};

// Looks up the low half of each byte, whose other bits are 0.
static inline bytes look_up(__m128i table, bytes v) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), v);
}

// The halves of each byte, the lower first; from the lower and the upper 8 bytes of each 16.
static inline void split(bytes packed, bytes (&out)[2]) {
    const bytes nibble = splat_byte(15);
    const bytes low = _mm256_and_si256(packed, nibble), high = _mm256_and_si256(shift_right(packed, 4), nibble);
    out[0] = _mm256_unpacklo_epi8(low, high);
    out[1] = _mm256_unpackhi_epi8(low, high);
}

// The fifth bits of lanes 8p..8p+7 of a group are its byte p. The offset turns them.
template <>
struct Planes<FormatQ5> {
    const uint8_t* codes;
    bytes high[2];  // bytes 4 half .. 4 half + 3 of the groups: four groups' byte p, four groups' byte p + 1, ...

    Planes(const uint8_t* codes, const uint8_t* plane) : codes(codes) {
        const bytes first = beside(plane, plane + 32), second = beside(plane + 16, plane + 48);
        const bytes even = _mm256_unpacklo_epi8(first, second), odd = _mm256_unpackhi_epi8(first, second);
        high[0] = _mm256_unpacklo_epi8(even, odd);
        high[1] = _mm256_unpackhi_epi8(even, odd);
    }

    template <class Use>
    ALWAYS void vectors(int half, Use use) const {
        // Lanes 2j and 2j + 1 have two bits of a nibble, the lower two if j is even: 0..3 or 0, 4, 8, 12.
        const __m128i even = _mm_setr_epi8(16, 0, 16, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0);
        const __m128i odd = _mm_setr_epi8(16, 16, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        const __m128i order = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        const bytes own = _mm256_set1_epi16(0x0c03);
        bytes nibbles[2], piece[4];  // nibbles of pieces 0 and 1, of 2 and 3
        split(high[half], nibbles);
        pieces(codes, half, piece);
        UNROLLED for (int p = 0; p < 4; ++p) {
            const bytes from = _mm256_add_epi8(_mm256_broadcastsi128_si256(order), splat_byte(p & 1 ? 8 : 0));
            const bytes bits = _mm256_and_si256(_mm256_shuffle_epi8(nibbles[p / 2], from), own);
            use_nibbles(8 * half + 2 * p, piece[p], look_up(even, bits), look_up(odd, bits), use);
        }
    }
};

// The upper bits of lanes 2j and 2j + 1 of a group are nibble j of its 16 bytes. The offset turns the sixth bits.
template <>
struct Planes<FormatQ6> {
    const uint8_t* codes;
    bytes high[4];  // group i, and 4 + i in the upper half

    Planes(const uint8_t* codes, const uint8_t* plane) : codes(codes) {
        for (int i = 0; i < 4; ++i) high[i] = beside(plane + 16 * i, plane + 16 * (i + 4));
    }

    template <class Use>
    ALWAYS void vectors(int half, Use use) const {
        const __m128i even = _mm_setr_epi8(32, 48, 0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48, 0, 16);
        const __m128i odd = _mm_setr_epi8(32, 32, 32, 32, 48, 48, 48, 48, 0, 0, 0, 0, 16, 16, 16, 16);
        // Words 4 half .. 4 half + 3 of the groups; one word belongs to one piece.
        const bytes a = half ? _mm256_unpackhi_epi16(high[0], high[1]) : _mm256_unpacklo_epi16(high[0], high[1]);
        const bytes b = half ? _mm256_unpackhi_epi16(high[2], high[3]) : _mm256_unpacklo_epi16(high[2], high[3]);
        bytes nibbles[2][2], piece[4];
        split(_mm256_unpacklo_epi32(a, b), nibbles[0]);
        split(_mm256_unpackhi_epi32(a, b), nibbles[1]);
        pieces(codes, half, piece);
        UNROLLED for (int p = 0; p < 4; ++p) {
            const bytes bits = nibbles[p / 2][p & 1];
            use_nibbles(8 * half + 2 * p, piece[p], look_up(even, bits), look_up(odd, bits), use);
        }
    }
};

template <>
struct Planes<FormatQ8> {
    const uint8_t* codes;

    Planes(const uint8_t* codes, const uint8_t*) : codes(codes) {}

    template <class Use>
    ALWAYS void vectors(int half, Use use) const {
        bytes piece[4];
        pieces(codes, half, piece);
        UNROLLED for (int p = 0; p < 4; ++p)
            use(4 * half + p, is_offset<FormatQ8> ? _mm256_xor_si256(piece[p], splat_byte(0x80)) : piece[p]);
    }
};

template <>
struct Planes<FormatT2> {
    const uint8_t* codes;

    Planes(const uint8_t* codes, const uint8_t*) : codes(codes) {}

    template <class Use>
    ALWAYS void vectors(int half, Use use) const {
        bytes piece[4];
        pieces(codes, half, piece);
        UNROLLED for (int p = 0; p < 4; ++p) {
            const bytes packed = _mm256_xor_si256(piece[p], splat_byte(0xaa));
            UNROLLED for (int f = 0; f < 4; ++f)
                use(16 * half + 4 * p + f, _mm256_and_si256(shift_right(packed, 2 * f), splat_byte(3)));
        }
    }
};

// Weights whose signs are apart. An activation's code ^ sign is the code or -code - 1, so that the product with the
// magnitudes lacks those of the negative weights. It still fits into 16 bits: 2 * 127 * 128 < 2^15.
struct Signed {
    bytes sign;
    bytes magnitude;

    explicit Signed(bytes codes)
        : sign(_mm256_cmpgt_epi8(_mm256_setzero_si256(), codes)), magnitude(_mm256_abs_epi8(codes)) {}

    // Minus the magnitudes of the negative weights; sums of two, in 16 bits.
    bytes negative() const { return _mm256_maddubs_epi16(magnitude, sign); }
};

static inline bytes sum_pairs(bytes words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

template <class F>
static inline void unpack_codes(const uint8_t* codes, const uint8_t* high, Weights<F>& to) {
    const Planes<F> planes(codes, high);
    UNROLLED for (int half = 0; half < 2; ++half)
        planes.vectors(half, [&](int v, bytes w) ALWAYS { store_bytes(to.codes + 32 * v, w); });
    if constexpr (!is_offset<F>) {
        bytes negative = _mm256_setzero_si256();
        for (int at = 0; at < OCTET * F::group; at += 32) {
            const Signed w(load_bytes(to.codes + at));
            store_bytes(to.codes + at, w.sign);
            store_bytes(to.magnitude + at, w.magnitude);
            negative = _mm256_sub_epi16(negative, w.negative());
        }
        store_bytes(to.negative, sum_pairs(negative));
    }
}

static inline lanesf stored_scales(const uint8_t* words) {
    return (lanesf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)words));
}

// ---- products -------------------------------------------------------------------------------------------

// The products of an octet of one row with those of T tokens, vector by vector.
template <class F, int T>
struct Products {
    bytes total[T];
    bytes part[T];

    explicit Products(const Activations<F::group>* const (&x)[T]) {
        UNROLLED for (int t = 0; t < T; ++t)
            total[t] = is_offset<F> ? load_bytes(x[t]->offset[F::offset]) : _mm256_setzero_si256();
    }

    // The vectors v of weights and codes. They come in order, from a multiple of `chain` on.
    ALWAYS void add(int v, bytes weights, const Activations<F::group>* const (&x)[T], int at) {
        UNROLLED for (int t = 0; t < T; ++t) {
            const bytes codes = load_bytes(x[t]->codes + at);
#if NINFER_X86_512
            (void)v;
            total[t] = _mm256_dpbusd_epi32(total[t], weights, codes);
#else
            const bytes products = _mm256_maddubs_epi16(weights, codes);
            part[t] = v % F::chain == 0 ? products : in_order(_mm256_add_epi16(part[t], products));
            if (v % F::chain == F::chain - 1) total[t] = in_order(_mm256_add_epi32(total[t], sum_pairs(part[t])));
#endif
        }
    }

    // The same with signs apart; the sums of `Signed::negative` are still to be subtracted.
    ALWAYS void add_signed(bytes sign, bytes magnitude, const Activations<F::group>* const (&x)[T], int at) {
        UNROLLED for (int t = 0; t < T; ++t) {
            const bytes codes = _mm256_xor_si256(sign, load_bytes(x[t]->codes + at));
            total[t] = in_order(_mm256_add_epi32(total[t], sum_pairs(_mm256_maddubs_epi16(magnitude, codes))));
        }
    }

    void store_to(lanes32 (&out)[T], bytes negative) const {
        UNROLLED for (int t = 0; t < T; ++t) out[t] = (lanes32)_mm256_add_epi32(total[t], negative);
    }
};

// Exact products of the eight groups of an unpacked row with those of T tokens.
template <class F, int T>
static inline void multiply_octet(const Weights<F>& w, const Activations<F::group>* const (&x)[T], lanes32 (&out)[T]) {
    Products<F, T> products(x);
    if constexpr (is_offset<F>) {
#pragma GCC unroll 1
        for (int begin = 0; begin < F::group / 4; begin += F::chain)
            UNROLLED for (int i = 0; i < F::chain; ++i) {
                const int at = 32 * (begin + i);
                products.add(i, in_order(load_bytes(w.codes + at)), x, at);
            }
        products.store_to(out, _mm256_setzero_si256());
    } else {
        UNROLLED for (int at = 0; at < OCTET * F::group; at += 32)
            products.add_signed(in_order(load_bytes(w.codes + at)), in_order(load_bytes(w.magnitude + at)), x, at);
        products.store_to(out, load_bytes(w.negative));
    }
}

// The same for a row as it is stored.
template <class F, int T>
static inline void multiply_stored_octet(const uint8_t* stored, const uint8_t* high,
                                         const Activations<F::group>* const (&x)[T], lanes32 (&out)[T]) {
    const Planes<F> planes(stored, high);
    Products<F, T> products(x);
    bytes negative = _mm256_setzero_si256();
    UNROLLED for (int half = 0; half < 2; ++half)
        planes.vectors(half, [&](int v, bytes codes) ALWAYS {
            if constexpr (is_offset<F>) {
                products.add(v, codes, x, 32 * v);
            } else {
                const Signed w(codes);
                products.add_signed(w.sign, w.magnitude, x, 32 * v);
                negative = _mm256_sub_epi16(negative, w.negative());
            }
        });
    products.store_to(out, is_offset<F> ? negative : sum_pairs(negative));
}

// out[i] = `tree` of v[i], i < 4.
static inline void sum_lanes(const lanesf* v, float* out) {
    __m128 half[4];
    for (int i = 0; i < 4; ++i)
        half[i] = _mm_add_ps(_mm256_castps256_ps128((__m256)v[i]), _mm256_extractf128_ps((__m256)v[i], 1));
    const __m128 a = _mm_add_ps(_mm_unpacklo_ps(half[0], half[1]), _mm_unpackhi_ps(half[0], half[1]));
    const __m128 b = _mm_add_ps(_mm_unpacklo_ps(half[2], half[3]), _mm_unpackhi_ps(half[2], half[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a)));
}

#undef UNROLLED
#undef ALWAYS

}  // namespace ninfer::a8
