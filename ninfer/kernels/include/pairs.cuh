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

#if defined(NINFER_EMULATED)

NINFER_DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) {
    const u64 bytes = static_cast<u64>(b) << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; ++i) out |= static_cast<u32>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}
NINFER_DEVICE u32 fma_bf16(u32 a, u32 b, u32 c) {
    const float2 x = unpack_bf16(a), y = unpack_bf16(b), z = unpack_bf16(c);
    return pack_bf16(x.x * y.x + z.x, x.y * y.y + z.y);
}

#else

// Byte i of the result is byte (nibble i of the selector) of a (0 to 3) and b (4 to 7).
NINFER_DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

// a * b + c of two bf16 each. Used where the result is exact; the emulator rounds twice.
NINFER_DEVICE u32 fma_bf16(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

#endif

constexpr u32 kOnes = 0x3f803f80u;       // 1, 1
constexpr u32 kMinusOnes = 0xbf80bf80u;  // -1, -1
constexpr u32 kMinusZeros = 0x80008000u;

// Unsigned codes u < 128 that lie in the low bits of both halves, as u - OFFSET: bf16 128 + u has the bits 0x4300 | u.
template <u32 OFFSET>
NINFER_DEVICE u32 centred(u32 codes) {
    constexpr u32 minus = 0xc300u + OFFSET;  // -(128 + OFFSET)
    return fma_bf16(codes | 0x43004300u, kOnes, minus << 16 | minus);
}

// ---- integer codes --------------------------------------------------------------------------------------

// `codes`: eight nibbles. Those of pair i lie 4 i bits up, 16 bits apart.
NINFER_DEVICE void q4_pairs(u32 codes, u32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = centred<8>((codes >> 4 * i & 0x000f000fu) ^ 0x00080008u);
}

// `high`: in its low byte, bit 4 of each code.
NINFER_DEVICE void q5_pairs(u32 codes, u32 high, u32 (&out)[4]) {
    const u32 spread = (high & 0xffu) * 0x00010010u;  // pair i has bits 4 + i and 20 + i
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[i] = centred<16>((codes >> 4 * i & 0x000f000fu) | ((spread >> i & 0x00100010u) ^ 0x00100010u));
    }
}

// `high`: in its low half, bits 4 and 5 of each code.
NINFER_DEVICE void q6_pairs(u32 codes, u32 high, u32 (&out)[4]) {
    const u32 spread = select_bytes(high, 0, 0x4140) << 4;  // pair i has bits 4 + 2 i and 20 + 2 i, and those above
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[i] = centred<32>((codes >> 4 * i & 0x000f000fu) | ((spread >> 2 * i & 0x00300030u) ^ 0x00200020u));
    }
}

// The signed bytes in bits 0 to 7 and 16 to 23. A byte without its sign is 128 + (its other bits) - 128, or - 256 with
// the sign.
NINFER_DEVICE u32 two_int8(u32 bytes) {
    return fma_bf16((bytes & 0x00800080u) | 0x43004300u, kMinusOnes, (bytes & 0x007f007fu) | 0x43004300u);
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
    for (int i = 0; i < 4; ++i) out[i] = centred<2>((spread >> 2 * i & 0x00030003u) ^ 0x00020002u);
}

// ---- floating-point codes -------------------------------------------------------------------------------

// An E4M3 scale times 2^119, in both halves.
NINFER_DEVICE u32 e4m3_scale_pair(u32 code) {
    const u32 high = bits_as<u32>(e4m3_to_float(static_cast<u8>(code)) * 0x1p119f);
    return high | high >> 16;
}

// The E2M1 codes in bits 0 to 3 and 16 to 19, times 2^-126 times `scales`: moved to where bf16 keeps its own, the bits of
// a code are that much smaller.
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

// Back to numbers in order.
NINFER_DEVICE void unpair(const u32 (&pairs)[4], float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = unpack_bf16(pairs[i]);
        out[i] = two.x;
        out[i + 4] = two.y;
    }
}

}  // namespace ninfer
