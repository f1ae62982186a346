// swiglu: see the contract in this folder. Floor: 12 bytes per output.
#include "ninfer.cuh"

#include "silu.cuh"

using namespace ninfer;

struct SwigluArgs {
    const float* gate_up;  // f32[rows, 2 * columns]
    float* out;            // f32[rows, columns]
    i64 rows;
    i64 columns;
};

// A thread has four columns of a row.
NINFER_KERNEL(swiglu, SwigluArgs, 256) {
    const i64 steps = ceil_div(args.columns, 4);
    const i64 step = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (step >= args.rows * steps) return;
    const i64 row = step / steps, at = step % steps * 4;
    const float* const gate = args.gate_up + row * 2 * args.columns;
    float g[4], u[4], out[4];
    load_step<NINFER_WHOLE>(g, gate, at, args.columns);
    load_step<NINFER_WHOLE>(u, gate + args.columns, at, args.columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = silu_mul(g[i], u[i]);
    store_step<NINFER_WHOLE>(out, args.out + row * args.columns, at, args.columns);
}
