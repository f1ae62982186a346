// rmsnorm: see the contract in this folder. One block has one row, in registers from the first read to the write, so a
// row costs one read, and its weight is fetched while the squares are added up.
#include "ninfer.cuh"
#include "rows.cuh"

using namespace ninfer;

namespace {

struct Args {
    const float* x;
    const float* weight;
    float* out;  // may be x
    i64 columns;
    float eps;
    float shift;  // added to the weight: 1 with an offset, else 0
};

constexpr bool kWhole = NINFER_WHOLE;
constexpr int kThreads = NINFER_THREADS;
constexpr int kSteps = NINFER_STEPS;  // of four columns per thread

}  // namespace

NINFER_KERNEL(rmsnorm, Args, NINFER_THREADS) {
    __shared__ float sums[kWarp];
    const i64 row = blockIdx.x * args.columns;
    float x[kSteps][4], weight[kSteps][4];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const i64 at = 4 * (s * kThreads + static_cast<int>(threadIdx.x));
        read_step<kWhole>(x[s], args.x + row, at, args.columns);
        load_step<kWhole>(weight[s], args.weight, at, args.columns);
    }
    float squares = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
        for (int i = 0; i < 4; ++i) squares = fmaf(x[s][i], x[s][i], squares);
    const float mean = block_sum<kThreads>(squares, sums) / static_cast<float>(args.columns);
    const float scale = 1.0f / sqrtf(mean + args.eps);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        for (int i = 0; i < 4; ++i) x[s][i] = x[s][i] * scale * (weight[s][i] + args.shift);
        store_step<kWhole>(x[s], args.out + row, 4 * (s * kThreads + static_cast<int>(threadIdx.x)), args.columns);
    }
}
