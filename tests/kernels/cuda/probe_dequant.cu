// Stored rows as the decoders see them, a kernel to a format.
#include "dequant.cuh"
#include "ninfer.cuh"

using namespace ninfer;

struct Args {
    Part part;
    i64 columns;
    i64 width;      // columns rounded up to whole chunks
    float* codes;    // [rows, width]: what pairs (or floats) give
    float* scales;   // [rows, groups]
    float* factors;  // [rows]
    float* values;   // [rows, columns]: what decode_one gives
};

template <int FORMAT>
NINFER_DEVICE void put_chunk(const Chunk& chunk, float* out) {
    using D = Decoder<FORMAT>;
    if constexpr (FORMAT == FP32) {
        float values[4];
        D::floats(chunk, values);
        for (int i = 0; i < 4; ++i) out[i] = values[i];
    } else {
#pragma unroll
        for (int octet = 0; octet < D::kOctets; ++octet) {
            u32 pairs[4];
            D::pairs(chunk, octet, pairs);
            float values[8];
            unpair(pairs, values);
#pragma unroll
            for (int i = 0; i < 8; ++i) out[8 * octet + i] = values[i];
        }
    }
}

// A block to a row.
template <int FORMAT>
NINFER_DEVICE void put_row(const Args& args) {
    using D = Decoder<FORMAT>;
    const i64 n = blockIdx.x;
    const Row row = D::row(args.part, n, args.columns);
    for (i64 k = lane() * D::kChunk; k < args.width; k += 32 * D::kChunk) {
        put_chunk<FORMAT>(D::load(row, k), args.codes + n * args.width + k);
    }
    if constexpr (D::kGroup != 0) {
        const i64 groups = args.width / D::kGroup;
        for (i64 g = lane(); g < groups; g += 32) args.scales[n * groups + g] = D::group_scale(row, g);
    }
    if (lane() == 0) args.factors[n] = D::factor(args.part, n);
    for (i64 k = lane(); k < args.columns; k += 32) {
        args.values[n * args.columns + k] = decode_one<FORMAT>(args.part, n, k, args.columns);
    }
}

NINFER_KERNEL(probe_bf16, Args, 32, 1) { put_row<BF16>(args); }
NINFER_KERNEL(probe_fp32, Args, 32, 1) { put_row<FP32>(args); }
NINFER_KERNEL(probe_q4, Args, 32, 1) { put_row<Q4>(args); }
NINFER_KERNEL(probe_q5, Args, 32, 1) { put_row<Q5>(args); }
NINFER_KERNEL(probe_q6, Args, 32, 1) { put_row<Q6>(args); }
NINFER_KERNEL(probe_q8, Args, 32, 1) { put_row<Q8>(args); }
NINFER_KERNEL(probe_t2, Args, 32, 1) { put_row<T2>(args); }
NINFER_KERNEL(probe_nvfp4, Args, 32, 1) { put_row<NVFP4>(args); }
NINFER_KERNEL(probe_fp8_row, Args, 32, 1) { put_row<FP8_ROW>(args); }
