// The segments of K that linear_wide left in memory, added in order and finished.
//
// A thread has one row and one token (of paired outputs, one gate row and its up row). Floor: 4 bytes per segment and
// product, read, and 4 written.
#include "ninfer.cuh"

#include "args.cuh"
#include "mlp/silu.cuh"

using namespace ninfer;

NINFER_DEVICE float finished(const LinearArgs& args, const Output& from, int row, int token, float residual) {
    const i64 step = static_cast<i64>(args.tokens) * args.rows;
    const float* at = args.partial + static_cast<i64>(token) * args.rows + from.first_row + row;
    float total = *at;
    for (int segment = 1; segment < args.segments; ++segment) total += at[segment * step];
    float factor = 1.0f;
    with_format(from.part.format, [&](auto tag) { factor = Decoder<decltype(tag)::value>::factor(from.part, row); });
    return finish(total, factor, residual);
}

NINFER_KERNEL(linear_merge, LinearArgs, 256) {
    const int token = blockIdx.y, step = args.paired ? 2 : 1;
    int row = blockIdx.x * blockDim.x + threadIdx.x, output = 0;
    while (output < args.count && row >= args.outputs[output].part.rows) {
        row -= static_cast<int>(args.outputs[output].part.rows);
        output += step;
    }
    if (output >= args.count) return;
    const Output to = args.outputs[output];
    const i64 at = static_cast<i64>(token) * to.out_stride + row;
    const float own = finished(args, to, row, token, to.residual == nullptr ? 0.0f : to.residual[at]);
    to.out[at] = args.paired ? silu_mul(own, finished(args, args.outputs[output + 1], row, token, 0.0f)) : own;
}
