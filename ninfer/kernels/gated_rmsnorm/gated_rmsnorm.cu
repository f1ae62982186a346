// gated_rmsnorm: see the contract in this folder. One warp has one head of one token, in registers.
#include "ninfer.cuh"
#include "rows.cuh"

using namespace ninfer;

namespace {

struct Args {
    const float* x;
    const float* z;
    const float* weight;
    float* out;
    i64 rows;
    i64 width;
    float eps;
};

constexpr bool kWhole = NINFER_WHOLE;
constexpr int kSteps = NINFER_STEPS;  // of four columns per lane

}  // namespace

NINFER_KERNEL(gated_rmsnorm, Args, 128) {
    const i64 row = blockIdx.x * static_cast<i64>(blockDim.x / kWarp) + warp();
    if (row >= args.rows) return;
    const float* const from = args.x + row * args.width;
    const float* const gate = args.z + row * args.width;
    float x[kSteps][4], z[kSteps][4], weight[kSteps][4];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const i64 at = 4 * (s * kWarp + lane());
        read_step<kWhole>(x[s], from, at, args.width);
        read_step<kWhole>(z[s], gate, at, args.width);
        load_step<kWhole>(weight[s], args.weight, at, args.width);
    }
    float squares = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
        for (int i = 0; i < 4; ++i) squares = fmaf(x[s][i], x[s][i], squares);
    const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(args.width) + args.eps);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        for (int i = 0; i < 4; ++i) x[s][i] = x[s][i] * scale * weight[s][i] * silu(z[s][i]);
        store_step<kWhole>(x[s], args.out + row * args.width, 4 * (s * kWarp + lane()), args.width);
    }
}
