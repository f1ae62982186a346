// Packed codes to pairs of bf16 in registers: what tensor cores multiply, and sums in fp32 unpack.
//
// Codes are taken in octets, eight neighbours along K. An octet becomes four words: word i holds k = i in its low half
// and k = i + 4 in its high half. This order is the same for every format, and is what comes cheapest out of packed
// codes; a sum over K does not care, as long as x is in the same order (fp32_pairs).
//
// Every value is exact. How codes are packed: artifact v3, section 4.
#pragma once

#include "numbers.cuh"

namespace ninfer {

// Byte i of the result is byte (nibble i of the selector) of a (0 to 3) and b (4 to 7).
NINFER_DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

// (word & mask) ^ with. One instruction, where a compiler makes two if both are constants.
NINFER_DEVICE u32 masked(u32 word, u32 mask, u32 with) {
#if defined(NINFER_EMULATED)
    return (word & mask) ^ with;
#else
    u32 out;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(out) : "r"(word), "r"(mask), "r"(with));
    return out;
#endif
}

// a * b + c of two bf16 each, where bf16 holds the result: the emulator rounds twice.
NINFER_DEVICE u32 fma_bf16(u32 a, u32 b, u32 c) {
#if defined(NINFER_EMULATED)
    const float2 x = unpack_bf16(a), y = unpack_bf16(b), z = unpack_bf16(c);
    return pack_bf16(x.x * y.x + z.x, x.y * y.y + z.y);
#else
    u32 out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
#endif
}

constexpr u32 kOnes = 0x3f803f80u;       // 1, 1
constexpr u32 kMinusOnes = 0xbf80bf80u;  // -1, -1
constexpr u32 kMinusZeros = 0x80008000u;

// bf16 128 + u has the bits 0x4300 | u for u < 128. So a two's-complement code in the low bits of either half, its sign
// bit being SIGN, is `biased` with the sign flipped, less 128 + SIGN.
template <u32 SIGN>
constexpr u32 kBiased = (0x4300u + SIGN) * 0x00010001u;

template <u32 SIGN>
NINFER_DEVICE u32 centred(u32 biased) {
    return fma_bf16(biased, kOnes, (0xc300u + SIGN) * 0x00010001u);
}

// ---- integer codes --------------------------------------------------------------------------------------

// `codes`: eight nibbles. Those of pair i lie 4 i bits up, 16 bits apart.
NINFER_DEVICE void q4_pairs(u32 codes, u32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = centred<8>(masked(codes >> 4 * i, 0x000f000fu, kBiased<8>));
}

// `high`: in its low byte, bit 4 of each code.
NINFER_DEVICE void q5_pairs(u32 codes, u32 high, u32 (&out)[4]) {
    const u32 spread = (high & 0xffu) * 0x00010010u;  // pair i has bits 4 + i and 20 + i
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 top = masked(spread >> i, 0x00100010u, kBiased<16>);
        out[i] = centred<16>(masked(codes >> 4 * i, 0x000f000fu, top));
    }
}

// `high`: in its low half, bits 4 and 5 of each code.
NINFER_DEVICE void q6_pairs(u32 codes, u32 high, u32 (&out)[4]) {
    const u32 spread = select_bytes(high, 0, 0x4140) << 4;  // pair i has bits 4 + 2 i and 20 + 2 i, and those above
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 top = masked(spread >> 2 * i, 0x00300030u, kBiased<32>);
        out[i] = centred<32>(masked(codes >> 4 * i, 0x000f000fu, top));
    }
}

// The signed bytes in bits 0 to 7 and 16 to 23. A byte without its sign is 128 + (its other bits) - 128, or - 256 with
// the sign.
NINFER_DEVICE u32 two_int8(u32 bytes) {
    const u32 less = masked(bytes, 0x00800080u, kBiased<0>);
    return fma_bf16(less, kMinusOnes, masked(bytes, 0x007f007fu, kBiased<0>));
}

// `low` and `high`: four bytes each.
NINFER_DEVICE void q8_pairs(u32 low, u32 high, u32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = two_int8(select_bytes(low, high, 0x0400u + 0x0101u * i));
}

// `codes`: in its low half, eight codes of two bits.
NINFER_DEVICE void t2_pairs(u32 codes, u32 (&out)[4]) {
    const u32 spread = select_bytes(codes, 0, 0x4140);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = centred<2>(masked(spread >> 2 * i, 0x00030003u, kBiased<2>));
}

// ---- floating-point codes -------------------------------------------------------------------------------

// An E4M3 scale times 2^119, in both halves.
NINFER_DEVICE u32 e4m3_scale_pair(u32 code) {
    const u32 high = bits_as<u32>(e4m3_to_float(static_cast<u8>(code)) * 0x1p119f);
    return high | high >> 16;
}

// The E2M1 codes in bits 0 to 3 and 16 to 19, times 2^-126 times `scales`: moved to where bf16 keeps its own, the bits
// of a code are that much smaller.
NINFER_DEVICE u32 two_e2m1(u32 nibbles, u32 scales) {
    return fma_bf16((nibbles & 0x00080008u) << 12 | (nibbles & 0x00070007u) << 6, scales, kMinusZeros);
}

// `codes`: eight nibbles. E2M1 codes times their block's scale times 2^-7.
NINFER_DEVICE void nvfp4_pairs(u32 codes, u32 scale_pair, u32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = two_e2m1(codes >> 4 * i, scale_pair);
}

// The E4M3 codes in bits 8 to 15 and 24 to 31: moved likewise, they are times 2^-120.
NINFER_DEVICE u32 two_e4m3(u32 bytes) {
    return fma_bf16((bytes & 0x80008000u) | (bytes >> 4 & 0x07f007f0u), 0x7b807b80u, kMinusZeros);
}

// `low` and `high`: four bytes each.
NINFER_DEVICE void fp8_pairs(u32 low, u32 high, u32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = two_e4m3(select_bytes(low, high, 0x4000u + 0x1010u * i));
}

// Eight bf16 in order.
NINFER_DEVICE void bf16_pairs(uint4 words, u32 (&out)[4]) {
    out[0] = select_bytes(words.x, words.z, 0x5410);
    out[1] = select_bytes(words.x, words.z, 0x7632);
    out[2] = select_bytes(words.y, words.w, 0x5410);
    out[3] = select_bytes(words.y, words.w, 0x7632);
}

// Eight numbers in order, rounded to the nearest bf16.
NINFER_DEVICE void fp32_pairs(const float (&values)[8], u32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = pack_bf16(values[i], values[i + 4]);
}

}  // namespace ninfer
