// The products of experts weight by weight, for what tensor cores do not take: weights stored as fp32, and gate and up
// rows of different formats. No model of note has either.
//
// A warp has one row (or a gate row and its up row) and the rows of an item; lane l adds columns 4l..4l+3 of every 128,
// in order, then the lanes' sums are added as warp_sum does. x is rounded to bf16 unless the weight is fp32, as in
// linear. Floor: the chosen experts' stored bytes; it is bound by decoding.
#include "ninfer.cuh"

#include "products.cuh"
#include "mlp/silu.cuh"

using namespace ninfer;

namespace {

constexpr int kWarps = 4;

NINFER_DEVICE float weight_at(const Part& part, i64 n, i64 k, i64 columns) {
    switch (part.format) {
        case BF16: return decode_one<BF16>(part, n, k, columns);
        case Q4: return decode_one<Q4>(part, n, k, columns);
        case Q5: return decode_one<Q5>(part, n, k, columns);
        case Q6: return decode_one<Q6>(part, n, k, columns);
        case Q8: return decode_one<Q8>(part, n, k, columns);
        case T2: return decode_one<T2>(part, n, k, columns);
        case NVFP4: return decode_one<NVFP4>(part, n, k, columns);
        case FP8_ROW: return decode_one<FP8_ROW>(part, n, k, columns);
        default: return decode_one<FP32>(part, n, k, columns);
    }
}

NINFER_DEVICE float product(const Part& part, i32 n, const float* x, i32 columns) {
    const bool rounds = part.format != FP32;
    float sum = 0.0f;
    for (i32 at = 4 * lane(); at < columns; at += 4 * kWarp) {
        for (i32 k = at; k < at + 4 && k < columns; ++k) {
            const float value = rounds ? bf16_to_float(float_to_bf16(x[k])) : x[k];
            sum = fmaf(weight_at(part, n, k, columns), value, sum);
        }
    }
    return warp_sum(sum);
}

}  // namespace

// Grid: groups of kWarps rows, and as many items as there can be.
NINFER_KERNEL(expert_plain, ProductArgs, kWarps * kWarp) {
    if (static_cast<i32>(blockIdx.y) >= *args.total) return;
    const Item item = args.items[blockIdx.y];
    const Expert& expert = args.experts[item.expert];
    const i32 n = static_cast<i32>(blockIdx.x) * kWarps + warp();
    if (n >= args.rows) return;
    for (i32 place = item.first; place < item.first + item.count; ++place) {
        const float* const x = input_row(args, place);
        float result = product(args.paired != 0 ? expert.gate : expert.down, n, x, args.columns);
        if (args.paired != 0) result = silu_mul(result, product(expert.up, n, x, args.columns));
        if (lane() == 0) args.out[static_cast<i64>(args.places[place]) * args.rows + n] = result;
    }
}
