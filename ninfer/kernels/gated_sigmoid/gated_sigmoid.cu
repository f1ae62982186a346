// gated_sigmoid: see the contract in this folder. Every element is computed alike, so rows need not be told apart.
#include "ninfer.cuh"
#include "rows.cuh"

using namespace ninfer;

namespace {

struct Args {
    const float* x;
    const float* gate;
    float* out;  // may be x
    i64 count;
};

constexpr bool kWhole = NINFER_WHOLE;

}  // namespace

NINFER_KERNEL(gated_sigmoid, Args, 128) {
    const i64 at = 4 * (blockIdx.x * static_cast<i64>(blockDim.x) + threadIdx.x);
    float x[4], gate[4];
    read_step<kWhole>(x, args.x, at, args.count);
    read_step<kWhole>(gate, args.gate, at, args.count);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = x[i] / (1.0f + expf(-gate[i]));
    store_step<kWhole>(x, args.out, at, args.count);
}
