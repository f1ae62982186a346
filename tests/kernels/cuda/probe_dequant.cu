// Stored rows as the decoders see them, a kernel to a format.
#include "dequant.cuh"
#include "ninfer.cuh"

using namespace ninfer;

struct Args {
    Part part;
    i64 columns;
    i64 groups;      // of a row
    float* scales;   // [rows, groups]
    float* factors;  // [rows]
    float* values;   // [rows, columns]: what decode_one gives
};

// A block to a row.
template <int FORMAT>
NINFER_DEVICE void put_row(const Args& args) {
    using D = Decoder<FORMAT>;
    const i64 n = blockIdx.x;
    const Row row = D::row(args.part, n, args.columns);
    for (i64 g = lane(); g < args.groups; g += 32) args.scales[n * args.groups + g] = D::group_scale(row, g);
    if (lane() == 0) args.factors[n] = D::factor(args.part, n);
    for (i64 k = lane(); k < args.columns; k += 32) {
        args.values[n * args.columns + k] = decode_one<FORMAT>(args.part, n, k, args.columns);
    }
}

NINFER_KERNEL(probe_bf16, Args, 32) { put_row<BF16>(args); }
NINFER_KERNEL(probe_fp32, Args, 32) { put_row<FP32>(args); }
NINFER_KERNEL(probe_q4, Args, 32) { put_row<Q4>(args); }
NINFER_KERNEL(probe_q5, Args, 32) { put_row<Q5>(args); }
NINFER_KERNEL(probe_q6, Args, 32) { put_row<Q6>(args); }
NINFER_KERNEL(probe_q8, Args, 32) { put_row<Q8>(args); }
NINFER_KERNEL(probe_t2, Args, 32) { put_row<T2>(args); }
NINFER_KERNEL(probe_nvfp4, Args, 32) { put_row<NVFP4>(args); }
NINFER_KERNEL(probe_fp8_row, Args, 32) { put_row<FP8_ROW>(args); }
