// linear with weights stored as fp32, in fp32: no model of note has any, tests and small parameters do.
//
// A warp has one row and up to eight tokens; lane l adds columns 4l..4l+3 of every 128, in order, then the lanes' sums
// are added as warp_sum does. So a token's bits are its own. Floor: 4 N K bytes for every eight tokens.
#define NINFER_FORMATS 2
#include "ninfer.cuh"

#include "args.cuh"
#include "rows.cuh"

using namespace ninfer;

constexpr int kWarps = 4;

template <bool WHOLE>
NINFER_DEVICE void add_columns(float (&sum)[kTileTokens], const LinearArgs& args, const float* row, int first) {
    const int columns = args.columns;
    for (int at = 4 * lane(); at < columns; at += 4 * kWarp) {
        float w[4];
        load_step<WHOLE>(w, row, at, columns);
#pragma unroll
        for (int token = 0; token < kTileTokens; ++token) {
            if (first + token >= args.tokens) continue;
            float x[4];
            load_step<WHOLE>(x, args.x + static_cast<i64>(first + token) * columns, at, columns);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[token] = fmaf(w[i], x[i], sum[token]);
        }
    }
}

NINFER_KERNEL(linear_fp32, LinearArgs, kWarps * kWarp, 1) {
    const Tile tile = find_tile(args, blockIdx.x);
    const Output to = args.outputs[tile.output];
    const i64 n = static_cast<i64>(tile.tile) * kWarps + warp();
    if (n >= to.part.rows) return;
    const int first = blockIdx.y * kTileTokens;
    const float* row = reinterpret_cast<const float*>(to.part.codes + n * to.part.code_stride);
    float sum[kTileTokens] = {};
    if (args.vector != 0 && StoredTile<FP32>::rows_aligned(to.part)) {
        add_columns<true>(sum, args, row, first);
    } else {
        add_columns<false>(sum, args, row, first);
    }
#pragma unroll
    for (int token = 0; token < kTileTokens; ++token) {
        const float total = warp_sum(sum[token]);
        if (lane() != token || first + token >= args.tokens) continue;
        const i64 at = static_cast<i64>(first + token) * to.out_stride + n;
        to.out[at] = finish(total, 1.0f, to.residual == nullptr ? 0.0f : to.residual[at]);
    }
}
