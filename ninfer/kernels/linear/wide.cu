// linear for many tokens: see the contract in this folder.
//
// A block has 128 rows (64 gate and 64 up rows where they are paired) and NINFER_TOKENS tokens. Units of its rows, as
// they are stored, and of its tokens, as octets of bf16, come through NINFER_STAGES stages of shared memory; every warp
// decodes its own 32 rows in registers. Sums are those of narrow.cu, segment by segment. Where there are too few blocks
// to fill the device, every segment of K is a block of its own, and linear_merge adds them in order.
//
// Floor: 2 T N K operations on tensor cores, or the weight's stored bytes at T below some 200.
#include "ninfer.cuh"

#include "args.cuh"
#include "mlp/silu.cuh"
#include "wide.cuh"

using namespace ninfer;

// Neighbouring tokens of the call.
struct CallTokens {
    const u16* from;  // where this thread's copies begin
    int width;        // columns from token to token
    int left;         // of the call's tokens, from the thread's first on

    NINFER_MEMBER CallTokens(const LinearArgs& args, int first) {
        const int own = first + threadIdx.x / 16;
        width = args.units * kUnit;
        left = args.tokens - own;
        from = args.octets + static_cast<i64>(own) * width + threadIdx.x % 16 * 8;
    }

    NINFER_MEMBER void stage(u8* stage, int unit) const {
        constexpr int at_once = kThreads / 16;
        u8* const to = stage + octet_place(threadIdx.x / 16, threadIdx.x % 16);
#pragma unroll
        for (int token = 0; token < kTokens; token += at_once) {
            cp_async16_zfill(to + token * 16 * kPiece, from + unit * kUnit + static_cast<i64>(token) * width, token < left);
        }
    }
};

// One product, finished.
template <int FORMAT>
NINFER_DEVICE float product(float total, const Part& part, int row, const float* residual) {
    return finish(total, Decoder<FORMAT>::factor(part, row), residual == nullptr ? 0.0f : *residual);
}

template <int FORMAT>
NINFER_DEVICE void store_value(const LinearArgs& args, const Output& to, int row, int token, float total) {
    if (row >= to.part.rows || token >= args.tokens) return;
    const i64 at = static_cast<i64>(token) * to.out_stride + row;
    to.out[at] = product<FORMAT>(total, to.part, row, to.residual == nullptr ? nullptr : to.residual + at);
}

template <int FORMAT>
NINFER_DEVICE void store_gated(
    const LinearArgs& args, const Output& to, const Part& up, int row, int token, float gate_total, float up_total) {
    if (row >= to.part.rows || token >= args.tokens) return;
    const float gate = product<FORMAT>(gate_total, to.part, row, nullptr);
    to.out[static_cast<i64>(token) * to.out_stride + row] =
        silu_mul(gate, product<FORMAT>(up_total, up, row, nullptr));
}

NINFER_DEVICE void store_partial(
    const LinearArgs& args, const Output& to, int segment, int row, int token, float sum) {
    if (row >= to.part.rows || token >= args.tokens) return;
    const i64 at = static_cast<i64>(segment) * args.tokens + token;
    args.partial[at * args.rows + to.first_row + row] = sum;
}

template <int FORMAT>
NINFER_DEVICE void run(const LinearArgs& args, const Tile& at, u8* shared) {
    const bool paired = args.paired != 0, segmented = args.partial != nullptr;
    const int second = at.output + (paired ? 1 : 0), row_warp = warp() % kRowWarps;
    const int first = (at.tile * kRowWarps + row_warp) * (paired ? kTileRows : 2 * kTileRows);
    const int next = paired ? first : first + kTileRows, first_token = blockIdx.x * kTokens;
    const StoredTile<FORMAT> tiles[2] = {
        {args.outputs[at.output].part, first, args.columns}, {args.outputs[second].part, next, args.columns}};
    const int begin = segmented ? blockIdx.z : 0, end = segmented ? begin + 1 : args.segments;
    Sums total;
    const Depth depth{args.columns, args.units, args.segments};
    multiply<FORMAT>(depth, tiles, CallTokens(args, first_token), begin, end, shared, total);
    const int g = lane() / 4, token0 = first_token + warp() / kRowWarps * kColumns * kTileTokens + lane() % 4 * 2;
    const Output to = args.outputs[at.output], other = args.outputs[second];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = first + g + i / 2 * 8, row2 = next + g + i / 2 * 8;
            const int token = token0 + n * kTileTokens + i % 2;
            if (segmented) {
                store_partial(args, to, begin, row, token, total[0][n][i]);
                store_partial(args, other, begin, row2, token, total[1][n][i]);
            } else if (paired) {
                store_gated<FORMAT>(args, to, other.part, row, token, total[0][n][i], total[1][n][i]);
            } else {
                store_value<FORMAT>(args, to, row, token, total[0][n][i]);
                store_value<FORMAT>(args, to, row2, token, total[1][n][i]);
            }
        }
    }
}

NINFER_KERNEL(linear_wide, LinearArgs, kThreads, 1) {
    NINFER_DYNAMIC_SHARED(u8, shared);
    const Tile at = find_tile(args, blockIdx.y);
    with_format(args.outputs[at.output].part.format, [&](auto tag) { run<decltype(tag)::value>(args, at, shared); });
}
