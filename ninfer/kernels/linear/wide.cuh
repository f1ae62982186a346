// Tiles of many rows by many tokens: what linear_wide and the experts' products are made of.
//
// A block has 128 rows, 32 to a warp, and NINFER_TOKENS tokens. Units of its rows, as they are stored, and of its tokens,
// as octets of bf16, come through NINFER_STAGES stages of shared memory; every warp decodes its own rows in registers.
// Sums are those of narrow.cuh, segment by segment.
#pragma once

#include "tile.cuh"

namespace ninfer {

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
                const uint4 words = read16(octets + octet_place(first_token + n * kTileTokens + g, index));
                x[octet][0] = words.x, x[octet][1] = words.y, x[octet][2] = words.z, x[octet][3] = words.w;
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

// How K lies.
struct Depth {
    int columns;
    int units;     // of 128 columns, the last may be ragged
    int segments;  // that K is split into
};

// total = the sum over segments [begin, end) of the warp's two tiles and its tokens. All threads of the block.
//
// tokens.stage(u8* to, int unit): the block copies this unit of its kTokens rows of octets, by cp.async; octet i of row t
// goes to octet_place(t, i).
template <int FORMAT, class Tokens>
NINFER_DEVICE void multiply(const Depth& depth, const StoredTile<FORMAT> (&tiles)[2], const Tokens& tokens, int begin,
                            int end, u8* shared, Sums& total) {
    constexpr int weight_bytes = 2 * kRowWarps * Staged<FORMAT>::kBytes, stage_bytes = weight_bytes + kOctetBytes;
    const int row_warp = warp() % kRowWarps, token_warp = warp() / kRowWarps, g = lane() / 4;
    const int own = row_warp * 2 * Staged<FORMAT>::kBytes;
    const int last = segment_begin(end, depth.segments, depth.units);
    const auto stage = [&](int unit, int slot) {
        u8* const to = shared + slot * stage_bytes;
        if (unit < last) {
            if (kTokenWarps == 1 || token_warp == 0) stage_tile(to + own, tiles[0], unit);
            if (kTokenWarps == 1 || token_warp == 1) stage_tile(to + own + Staged<FORMAT>::kBytes, tiles[1], unit);
            tokens.stage(to + weight_bytes, unit);
        }
        cp_async_commit();
    };
    Scales<FORMAT> scales[2][2], ahead[2][2];
    const auto load_scales = [&](int unit) {
#pragma unroll
        for (int i = 0; i < 4; ++i) ahead[i / 2][i % 2].load(tiles[i / 2], g + i % 2 * 8, depth.columns, unit);
    };
    int unit = segment_begin(begin, depth.segments, depth.units), slot = 0, free_slot = NINFER_STAGES - 1;
#pragma unroll 1
    for (int i = 0; i < NINFER_STAGES - 1; ++i) stage(unit + i, i);
    load_scales(unit);
    Sums sum = {};
#pragma unroll 1
    for (int segment = begin; segment < end; ++segment) {
        const int close = segment_begin(segment + 1, depth.segments, depth.units);
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

}  // namespace ninfer
