// moe_route and moe_shared_add: see the contract in this folder.
//
// Floors: 4 T E bytes for moe_route, 16 T H bytes for moe_shared_add; a decode round is bound by the launch.
#include "ninfer.cuh"
#include "columns.cuh"
#include "rows.cuh"

using namespace ninfer;

namespace {

struct RouteArgs {
    const float* logits;  // [rows, experts]
    i64* ids;             // [rows, top_k]
    float* weights;       // [rows, top_k]
    i64 rows;
    i32 experts;
    i32 top_k;
};

struct SharedAddArgs {
    const float* shared;    // [rows, columns]
    const float* score;     // [rows]
    const float* routed;    // [rows, columns]
    const float* residual;  // [rows, columns]
    float* out;             // [rows, columns]
    i64 rows;
    i64 columns;
};

constexpr int kThreads = 128;
constexpr int kHeld = NINFER_HELD;  // experts per lane, all in registers

}  // namespace

// A warp has one row. A peak holds the logit and the expert, so that all differ, and the next expert is the greatest
// peak below the one before: rows with NaN get experts that exist, too.
NINFER_KERNEL(moe_route, RouteArgs, kThreads) {
    const i64 row = static_cast<i64>(blockIdx.x) * (kThreads / kWarp) + warp();
    if (row >= args.rows) return;
    const float* logits = args.logits + row * args.experts;
    u64 peaks[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const i32 expert = i * kWarp + lane();
        peaks[i] = expert < args.experts ? peak_of(logits[expert], expert) : 0;
    }
    u64 last = ~0ull;
    float first = 0.0f, total = 0.0f;
    for (i32 s = 0; s < args.top_k; ++s) {
        u64 best = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i)
            if (peaks[i] < last) best = greater(best, peaks[i]);
        last = warp_max(best);
        const i32 expert = peak_column(last);
        const float logit = peak_value(last);
        first = s == 0 ? logit : first;
        const float weight = expf(logit - first);
        total += weight;  // in the order of the list
        if (lane() == 0) {
            args.ids[row * args.top_k + s] = expert;
            args.weights[row * args.top_k + s] = weight;
        }
    }
    __syncwarp();
    for (i32 s = lane(); s < args.top_k; s += kWarp) args.weights[row * args.top_k + s] /= total;
}

// A block has one row, or a part of it.
NINFER_KERNEL(moe_shared_add, SharedAddArgs, kThreads) {
    const i64 row = blockIdx.x, at = static_cast<i64>(blockIdx.y) * kThreads + threadIdx.x;
    if (at >= args.columns) return;
    const i64 i = row * args.columns + at;
    const float share = args.shared[i] * sigmoid(args.score[row]);
    args.out[i] = args.residual[i] + (args.routed[i] + share);
}
