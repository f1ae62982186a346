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

using namespace ninfer;

constexpr int kTokens = NINFER_TOKENS;
constexpr int kTokenWarps = kTokens == 128 ? 2 : 1;
constexpr int kRowWarps = 4;
constexpr int kThreads = kRowWarps * kTokenWarps * kWarp;
constexpr int kColumns = kTokens / kTokenWarps / kTileTokens;  // mmas side by side in a warp
constexpr int kOctetBytes = kTokens * kUnit * 2;

// Sums of a warp: tile by tokens.
using Sums = float[2][kColumns][4];

// Units of the block's tokens: rows of 16 octets, moved so that the lanes of a read meet all banks.
NINFER_DEVICE int octet_place(int token, int octet) { return (token * 16 + (octet ^ (token & 1) * 5)) * kPiece; }

NINFER_DEVICE void stage_tokens(u8* stage, const LinearArgs& args, int first, int unit) {
    constexpr int at_once = kThreads / 16;
    const int octet = threadIdx.x % 16, own = threadIdx.x / 16, width = args.units * kUnit;
    const u16* const from = args.octets + static_cast<i64>(first + own) * width + unit * kUnit + octet * 8;
    u8* const to = stage + octet_place(own, octet);
#pragma unroll
    for (int token = 0; token < kTokens; token += at_once) {
        cp_async16_zfill(to + token * 16 * kPiece, from + static_cast<i64>(token) * width, first + own + token < args.tokens);
    }
}

// sum += one staged unit.
template <int FORMAT>
NINFER_DEVICE void add_unit(
    Sums& sum, const u8* weights, const u8* octets, const Scales<FORMAT> (&scales)[2][2], int first_token) {
    const int g = lane() / 4, c = lane() % 4;
#pragma unroll 1
    for (int slice = 0; slice < Staged<FORMAT>::kSlices; ++slice) {
        SliceTile<FORMAT> tiles[2];
        tiles[0].decode(weights, slice, scales[0]);
        tiles[1].decode(weights + Staged<FORMAT>::kBytes, slice, scales[1]);
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
            u32 x[Staged<FORMAT>::kOctets][4];
#pragma unroll
            for (int octet = 0; octet < Staged<FORMAT>::kOctets; ++octet) {
                const int index = slice_column<FORMAT>(slice, c) / 8 + octet;
                put(x[octet], read16(octets + octet_place(first_token + n * kTileTokens + g, index)));
            }
            tiles[0].add_to(sum[0][n], x);
            tiles[1].add_to(sum[1][n], x);
        }
    }
}

// A segment's sum joins the total, and the next begins.
NINFER_DEVICE void close_segment(Sums& total, Sums& sum, bool first) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                total[t][n][i] = first ? sum[t][n][i] : total[t][n][i] + sum[t][n][i];
                sum[t][n][i] = 0.0f;
            }
        }
    }
}

// total = the sum over segments [begin, end) of the warp's two tiles and its tokens.
template <int FORMAT>
NINFER_DEVICE void multiply(const LinearArgs& args, const StoredTile<FORMAT> (&tiles)[2], int first_token, int begin,
                            int end, u8* shared, Sums& total) {
    constexpr int weight_bytes = 2 * kRowWarps * Staged<FORMAT>::kBytes, stage_bytes = weight_bytes + kOctetBytes;
    const int row_warp = warp() % kRowWarps, token_warp = warp() / kRowWarps, g = lane() / 4;
    const int own = row_warp * 2 * Staged<FORMAT>::kBytes;
    const int last = segment_begin(end, args.segments, args.units);
    const auto stage = [&](int unit, int slot) {
        u8* const to = shared + slot * stage_bytes;
        if (unit < last) {
            if (kTokenWarps == 1 || token_warp == 0) stage_tile(to + own, tiles[0], unit);
            if (kTokenWarps == 1 || token_warp == 1) stage_tile(to + own + Staged<FORMAT>::kBytes, tiles[1], unit);
            stage_tokens(to + weight_bytes, args, first_token, unit);
        }
        cp_async_commit();
    };
    Scales<FORMAT> scales[2][2], ahead[2][2];
    const auto load_scales = [&](int unit) {
#pragma unroll
        for (int i = 0; i < 4; ++i) ahead[i / 2][i % 2].load(tiles[i / 2], g + i % 2 * 8, args.columns, unit);
    };
    int unit = segment_begin(begin, args.segments, args.units), slot = 0, free_slot = NINFER_STAGES - 1;
#pragma unroll 1
    for (int i = 0; i < NINFER_STAGES - 1; ++i) stage(unit + i, i);
    load_scales(unit);
    Sums sum = {};
#pragma unroll 1
    for (int segment = begin; segment < end; ++segment) {
        const int close = segment_begin(segment + 1, args.segments, args.units);
#pragma unroll 1
        for (; unit < close; ++unit) {
            cp_async_wait<NINFER_STAGES - 2>();
            __syncthreads();
            stage(unit + NINFER_STAGES - 1, free_slot);
#pragma unroll
            for (int i = 0; i < 4; ++i) scales[i / 2][i % 2] = ahead[i / 2][i % 2];
            load_scales(unit + 1 < last ? unit + 1 : unit);
            const u8* const here = shared + slot * stage_bytes;
            add_unit<FORMAT>(sum, here + own, here + weight_bytes, scales, token_warp * kColumns * kTileTokens);
            slot = slot + 1 == NINFER_STAGES ? 0 : slot + 1;
            free_slot = free_slot + 1 == NINFER_STAGES ? 0 : free_slot + 1;
        }
        close_segment(total, sum, segment == begin);
    }
}

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
    multiply<FORMAT>(args, tiles, first_token, begin, end, shared, total);
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
