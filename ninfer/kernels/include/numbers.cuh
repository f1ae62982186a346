// Small floating-point numbers: bits to fp32 and back.
#pragma once

#include "types.cuh"

namespace ninfer {

// Both to nearest even; `low` becomes the low half.
NINFER_DEVICE u32 pack_bf16(float low, float high) { return bits_as<u32>(__floats2bfloat162_rn(low, high)); }
NINFER_DEVICE u32 pack_half(float low, float high) { return bits_as<u32>(__floats2half2_rn(low, high)); }
NINFER_DEVICE u16 float_to_bf16(float value) { return bits_as<u16>(__float2bfloat16_rn(value)); }
NINFER_DEVICE u16 float_to_half(float value) { return bits_as<u16>(__float2half_rn(value)); }

NINFER_DEVICE float bf16_to_float(u16 bits) { return bits_as<float>(static_cast<u32>(bits) << 16); }
NINFER_DEVICE float half_to_float(u16 bits) { return __half2float(bits_as<__half>(bits)); }
NINFER_DEVICE float2 unpack_bf16(u32 pair) {
    return make_float2(bits_as<float>(pair << 16), bits_as<float>(pair & 0xffff0000u));
}
NINFER_DEVICE float2 unpack_half(u32 pair) { return __half22float2(bits_as<__half2>(pair)); }

// E4M3FN. The bits of exponent and fraction are moved to where fp32 keeps its own, whose bias is greater by 120.
// The two NaN codes read as +-480.
NINFER_DEVICE float e4m3_to_float(u8 code) {
    const u32 bits = (code & 0x80u) << 24 | (code & 0x7fu) << 20;
    return bits_as<float>(bits) * 0x1p120f;
}

// E2M1 in the low four bits; fp32's bias is greater by 126.
NINFER_DEVICE float e2m1_to_float(u32 code) {
    const u32 bits = (code & 8u) << 28 | (code & 7u) << 22;
    return bits_as<float>(bits) * 0x1p126f;
}

}  // namespace ninfer
