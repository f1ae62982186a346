// Rows of keys or values, encoded and decoded a row to a thread.
#include "ninfer.cuh"

using namespace ninfer;

struct Args {
    KvPlane plane;
    const float* rows;  // [count, dim]
    float* decoded;     // [count, dim]
    i64 count;
    i64 dim;
};

NINFER_DEVICE u32 top_of(const float* x, int count) {
    u32 top = 0;
    for (int i = 0; i < count; ++i) top = greater(top, kv_magnitude(x[i]));
    return top;
}

NINFER_DEVICE void encode_int8(const float* x, int dim, u8* codes, u16* scales) {
    for (int i = 0; i < dim; i += kKvInt8Group) {
        const u16 word = kv_int8_scale(top_of(x + i, kKvInt8Group));
        scales[i / kKvInt8Group] = word;
        for (int j = i; j < i + kKvInt8Group; ++j) {
            codes[j] = static_cast<u8>(kv_int8(kv_quotient(x[j], half_to_float(word), 127.0f)));
        }
    }
}

NINFER_DEVICE void encode_fp8(const float* x, int dim, u8* codes, u16* scale) {
    *scale = kv_fp8_scale(top_of(x, dim));
    for (int i = 0; i < dim; ++i) codes[i] = kv_e4m3(kv_quotient(x[i], bf16_to_float(*scale), 448.0f));
}

NINFER_DEVICE void encode_nvfp4(const float* x, int dim, u8* codes, u8* scales) {
    for (int i = 0; i < dim; i += kKvNvfp4Group) {
        const u8 code = kv_nvfp4_scale(top_of(x + i, kKvNvfp4Group));
        const float scale = kv_nvfp4_scale_value(code);
        scales[i / kKvNvfp4Group] = code;
        for (int j = i; j < i + kKvNvfp4Group; j += 2) {
            const u32 low = kv_e2m1(kv_quotient(x[j], scale, 6.0f)), high = kv_e2m1(kv_quotient(x[j + 1], scale, 6.0f));
            codes[j / 2] = static_cast<u8>(low | high << 4);
        }
    }
}

NINFER_DEVICE void encode_row(const Args& args, i64 place) {
    const float* x = args.rows + place * args.dim;
    const int dim = static_cast<int>(args.dim);
    u8* codes = args.plane.codes + place * args.plane.code_bytes;
    u8* scales = args.plane.scales + place * args.plane.scale_bytes;
    switch (args.plane.format) {
        case kRowFp32:
            for (int i = 0; i < dim; ++i) reinterpret_cast<float*>(codes)[i] = x[i];
            break;
        case kRowBf16:
            for (int i = 0; i < dim; ++i) reinterpret_cast<u16*>(codes)[i] = kv_bf16(x[i]);
            break;
        case kRowInt8:
            encode_int8(x, dim, codes, reinterpret_cast<u16*>(scales));
            break;
        case kRowFp8:
            encode_fp8(x, dim, codes, reinterpret_cast<u16*>(scales));
            break;
        default:
            encode_nvfp4(x, dim, codes, scales);
    }
}

// Column `column` of the row at `place`.
NINFER_DEVICE float decode_one(const KvPlane& plane, i64 place, int column) {
    const u8* codes = plane.codes + place * plane.code_bytes;
    const u8* scales = plane.scales + place * plane.scale_bytes;
    if (plane.format == kRowFp32) return reinterpret_cast<const float*>(codes)[column];
    if (plane.format == kRowBf16) return bf16_to_float(reinterpret_cast<const u16*>(codes)[column]);
    if (plane.format == kRowInt8) {
        const u16 scale = reinterpret_cast<const u16*>(scales)[column / kKvInt8Group];
        return static_cast<float>(static_cast<i8>(codes[column])) * half_to_float(scale);
    }
    if (plane.format == kRowFp8) {
        return e4m3_to_float(codes[column]) * bf16_to_float(*reinterpret_cast<const u16*>(scales));
    }
    const float code = e2m1_to_float(codes[column / 2] >> 4 * (column % 2));
    return code * kv_nvfp4_scale_value(scales[column / kKvNvfp4Group]);
}

NINFER_KERNEL(probe_kv_codec, Args, 64, 1) {
    const i64 place = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (place < args.count) {
        encode_row(args, place);
        for (int i = 0; i < static_cast<int>(args.dim); ++i) {
            args.decoded[place * args.dim + i] = decode_one(args.plane, place, i);
        }
    }
}
