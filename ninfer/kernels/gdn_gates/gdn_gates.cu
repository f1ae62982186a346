// gdn_gates: see the contract in this folder. Few numbers, so one thread has one of each and accurate functions serve.
#include "ninfer.cuh"
#include "rows.cuh"

using namespace ninfer;

namespace {

struct Args {
    const float* a;
    const float* b;
    const float* a_log;
    const float* dt_bias;
    float* g;
    float* beta;
    i64 count;
    i64 heads;
};

// log(1 + e^y), without overflow.
NINFER_DEVICE float softplus(float y) { return log1pf(expf(-fabsf(y))) + (y > 0.0f ? y : 0.0f); }

}  // namespace

NINFER_KERNEL(gdn_gates, Args, 128) {
    const i64 i = blockIdx.x * static_cast<i64>(blockDim.x) + threadIdx.x;
    if (i >= args.count) return;
    const i64 head = i % args.heads;
    args.g[i] = -expf(args.a_log[head]) * softplus(args.a[i] + args.dt_bias[head]);
    args.beta[i] = sigmoid(args.b[i]);
}
