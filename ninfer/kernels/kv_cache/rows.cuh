// Rows of keys or values as a warp encodes them: every lane holds four neighbours, and those 128 columns further on.
#pragma once

#include "ninfer.cuh"

namespace ninfer {

template <int DIM>
constexpr int kRowSteps = (DIM + 127) / 128;

// Lanes past the row hold zeros and store nothing.
template <int DIM>
struct Row {
    float x[kRowSteps<DIM>][4];
};

NINFER_DEVICE int row_column(int step) { return 128 * step + 4 * lane(); }

template <int DIM>
NINFER_DEVICE Row<DIM> load_row(const float* from) {
    Row<DIM> row;
#pragma unroll
    for (int step = 0; step < kRowSteps<DIM>; ++step) {
        const int column = row_column(step);
        const float4 v = column < DIM ? load_float4(from + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        row.x[step][0] = v.x, row.x[step][1] = v.y, row.x[step][2] = v.z, row.x[step][3] = v.w;
    }
    return row;
}

NINFER_DEVICE u32 greatest_of(const float (&x)[4]) {
    return max(max(kv_magnitude(x[0]), kv_magnitude(x[1])), max(kv_magnitude(x[2]), kv_magnitude(x[3])));
}

// The greatest magnitude among groups of LANES lanes.
template <int LANES>
NINFER_DEVICE u32 greatest(u32 top) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) top = max(top, shuffle_xor(top, mask));
    return top;
}

template <int DIM>
NINFER_DEVICE void store_fp32(const Row<DIM>& row, u8* codes) {
#pragma unroll
    for (int step = 0; step < kRowSteps<DIM>; ++step)
        if (row_column(step) < DIM)
            store_float4(reinterpret_cast<float*>(codes) + row_column(step),
                         make_float4(row.x[step][0], row.x[step][1], row.x[step][2], row.x[step][3]));
}

template <int DIM>
NINFER_DEVICE void store_bf16(const Row<DIM>& row, u8* codes) {
#pragma unroll
    for (int step = 0; step < kRowSteps<DIM>; ++step) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = kv_bf16(row.x[step][i]);
        const uint2 packed = make_uint2(words[0] | words[1] << 16, words[2] | words[3] << 16);
        if (row_column(step) < DIM) store8(codes + 2 * row_column(step), packed);
    }
}

template <int DIM>
NINFER_DEVICE void store_int8(const Row<DIM>& row, u8* codes, u8* scales) {
#pragma unroll
    for (int step = 0; step < kRowSteps<DIM>; ++step) {
        const u16 word = kv_int8_scale(greatest<16>(greatest_of(row.x[step])));
        const float scale = half_to_float(word);
        u32 packed = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            packed |= (kv_int8(kv_quotient(row.x[step][i], scale, 127.0f)) & 255u) << 8 * i;
        if (row_column(step) >= DIM) continue;
        store4(codes + row_column(step), packed);
        if (lane() % 16 == 0) reinterpret_cast<u16*>(scales)[row_column(step) / 64] = word;
    }
}

template <int DIM>
NINFER_DEVICE void store_fp8(const Row<DIM>& row, u8* codes, u8* scales) {
    u32 top = 0;
#pragma unroll
    for (int step = 0; step < kRowSteps<DIM>; ++step) top = max(top, greatest_of(row.x[step]));
    const u16 word = kv_fp8_scale(greatest<32>(top));
    const float scale = bf16_to_float(word);
#pragma unroll
    for (int step = 0; step < kRowSteps<DIM>; ++step) {
        u32 packed = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            packed |= static_cast<u32>(kv_e4m3(kv_quotient(row.x[step][i], scale, 448.0f))) << 8 * i;
        if (row_column(step) < DIM) store4(codes + row_column(step), packed);
    }
    if (lane() == 0) *reinterpret_cast<u16*>(scales) = word;
}

template <int DIM>
NINFER_DEVICE void store_nvfp4(const Row<DIM>& row, u8* codes, u8* scales) {
#pragma unroll
    for (int step = 0; step < kRowSteps<DIM>; ++step) {
        const u8 code = kv_nvfp4_scale(greatest<4>(greatest_of(row.x[step])));
        const float scale = kv_nvfp4_scale_value(code);
        u32 packed = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) packed |= kv_e2m1(kv_quotient(row.x[step][i], scale, 6.0f)) << 4 * i;
        if (row_column(step) >= DIM) continue;
        reinterpret_cast<u16*>(codes)[row_column(step) / 4] = static_cast<u16>(packed);
        if (lane() % 4 == 0) scales[row_column(step) / 16] = code;
    }
}

template <int FORMAT, int DIM>
NINFER_DEVICE void store_row(const Row<DIM>& row, const KvPlane& plane, i64 place) {
    u8* codes = plane.codes + place * plane.code_bytes;
    u8* scales = plane.scales + place * plane.scale_bytes;
    if constexpr (FORMAT == kRowFp32) store_fp32(row, codes);
    if constexpr (FORMAT == kRowBf16) store_bf16(row, codes);
    if constexpr (FORMAT == kRowInt8) store_int8(row, codes, scales);
    if constexpr (FORMAT == kRowFp8) store_fp8(row, codes, scales);
    if constexpr (FORMAT == kRowNvfp4) store_nvfp4(row, codes, scales);
}

}  // namespace ninfer
