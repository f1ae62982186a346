// Up to eight tokens: a warp streams its rows through a ring in shared memory of its own.
#pragma once

#include "tile.cuh"

namespace ninfer {

// Units that a ring holds: as many as fit `bytes`, between two and eight.
template <int FORMAT, int TILES>
NINFER_DEVICE constexpr int ring_stages(int bytes) {
    const int fit = bytes / (TILES * Staged<FORMAT>::kBytes);
    return fit < 2 ? 2 : fit > 8 ? 8 : fit;
}

// Eight floats of a row of x; zeros from its end on, and where there is no row.
NINFER_DEVICE void load_octet(float (&to)[8], const float* row, int column, int columns, bool vector) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const bool whole = row != nullptr && vector && column + i < columns;
        const float4 four = whole ? load_float4(row + column + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
    if (row == nullptr || vector) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = column + i < columns ? row[column + i] : 0.0f;
}

// x as it is: each lane loads the octets of its own token, one slice ahead, and rounds them.
template <int FORMAT>
struct LoadedTokens {
    static constexpr int kOctets = Staged<FORMAT>::kOctets;
    const float* row;  // of token lane / 4, f32[columns], or nullptr for zeros
    int columns;
    bool vector;  // rows begin at multiples of 16 bytes, columns is a multiple of 4
    float ahead[kOctets][8];

    // What comes first.
    NINFER_MEMBER void begin(int unit) { load(unit, 0); }

    // The octets of a slice, and after it those of slice `next_slice` of unit `next`.
    NINFER_MEMBER void take(u32 (&x)[kOctets][4], int, int, int next, int next_slice) {
#pragma unroll
        for (int octet = 0; octet < kOctets; ++octet) fp32_pairs(ahead[octet], x[octet]);
        load(next, next_slice);
    }

    NINFER_MEMBER void load(int unit, int slice) {
#pragma unroll
        for (int octet = 0; octet < kOctets; ++octet) {
            const int column = unit * kUnit + slice_column<FORMAT>(slice, lane() % 4) + octet * 8;
            load_octet(ahead[octet], row, column, columns, vector);
        }
    }
};

// sum[t] += the products of units [begin, end) of tile t and eight tokens, by one warp: an mma's D, rows g and g + 8 by
// tokens 2c and 2c + 1, where g = lane / 4 and c = lane % 4.
//
// tokens: where x comes from, as LoadedTokens. ring: RING bytes of shared memory or two units, of this warp alone.
template <int FORMAT, int TILES, int RING, class Tokens>
NINFER_DEVICE void multiply_run(const StoredTile<FORMAT> (&tiles)[TILES], Tokens& tokens, int columns, int begin, int end,
                                u8* ring, float (&sum)[TILES][4]) {
    constexpr int stages = ring_stages<FORMAT, TILES>(RING), tile_bytes = Staged<FORMAT>::kBytes;
    constexpr int octets = Staged<FORMAT>::kOctets, slices = Staged<FORMAT>::kSlices;
    const int g = lane() / 4;
    const auto stage = [&](int unit, int slot) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            if (unit < end) stage_tile(ring + (slot * TILES + t) * tile_bytes, tiles[t], unit);
        }
        cp_async_commit();
    };
    const auto load_scales = [&](Scales<FORMAT>(&scales)[TILES][2], int unit) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
            for (int r = 0; r < 2; ++r) scales[t][r].load(tiles[t], g + 8 * r, columns, unit);
        }
    };
#pragma unroll 1
    for (int i = 0; i < stages - 1; ++i) stage(begin + i, i);
    Scales<FORMAT> scales[TILES][2], scales_ahead[TILES][2];
    load_scales(scales, begin);
    tokens.begin(begin);
    int slot = 0, free_slot = stages - 1;
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
        cp_async_wait<stages - 2>();
        __syncwarp();
        stage(unit + stages - 1, free_slot);
        const int next = unit + 1 < end ? unit + 1 : unit;
        load_scales(scales_ahead, next);
        const u8* const here = ring + slot * TILES * tile_bytes;
#pragma unroll
        for (int slice = 0; slice < slices; ++slice) {
            u32 x[octets][4];
            tokens.take(x, unit, slice, slice + 1 < slices ? unit : next, (slice + 1) % slices);
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                SliceTile<FORMAT> tile;
                tile.decode(here + t * tile_bytes, slice, scales[t]);
                tile.add_to(sum[t], x);
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
            for (int r = 0; r < 2; ++r) scales[t][r] = scales_ahead[t][r];
        }
        slot = slot + 1 == stages ? 0 : slot + 1;
        free_slot = free_slot + 1 == stages ? 0 : free_slot + 1;
    }
    __syncwarp();
}

// The same with tokens as they are. x_row, vector: see LoadedTokens.
template <int FORMAT, int TILES, int RING>
NINFER_DEVICE void multiply_run(const StoredTile<FORMAT> (&tiles)[TILES], const float* x_row, bool vector, int columns,
                                int begin, int end, u8* ring, float (&sum)[TILES][4]) {
    LoadedTokens<FORMAT> tokens{x_row, columns, vector, {}};
    multiply_run<FORMAT, TILES, RING>(tiles, tokens, columns, begin, end, ring, sum);
}

}  // namespace ninfer
