// argmax: see the contract in this folder. The greatest allowed column of every span, then of the spans.
#include "ninfer.cuh"
#include "columns.cuh"

using namespace ninfer;

namespace {

struct Args {
    const float* logits;
    const u32* mask;  // null: every column counts
    i64* out;         // -1 where a row has no answer
    u64* peaks;       // [rows, spans]
    i64 mask_stride;  // words from row to row: 0 when all rows share one mask
    i32 columns;
    i32 spans;
};

constexpr int kThreads = 256;
constexpr float kLeast = -kInf;

}  // namespace

// Grid: rows, and as many blocks as give every span a warp.
NINFER_KERNEL(argmax_spans, Args, kThreads) {
    const i64 row = blockIdx.x;
    const i32 span = static_cast<i32>(blockIdx.y) * (kThreads / kWarp) + warp();
    const u32* allowed = args.mask == nullptr ? nullptr : args.mask + row * args.mask_stride;
    const u64 peak = span_peak(read_span({args.logits + row * args.columns, allowed, args.columns}, span));
    if (lane() == 0 && span < args.spans) args.peaks[row * args.spans + span] = peak;
}

// Grid: rows.
NINFER_KERNEL(argmax_rows, Args, kThreads) {
    __shared__ u64 shared[32];
    const i64 row = blockIdx.x;
    const u64 peak = row_peak<kThreads>(args.peaks + row * args.spans, args.spans, shared);
    if (threadIdx.x == 0) args.out[row] = peak_value(peak) > kLeast ? peak_column(peak) : -1;
}
