// Stored rows times tokens on tensor cores: what linears and experts are made of.
//
// K is taken in units of 128 columns. A unit of some rows is copied to shared memory as it is stored, and every lane
// decodes the words of its own two rows into the registers of an mma: weights are its A, 16 rows; tokens are its B, 8
// columns. Which column stands in which slot of an mma is free, and chosen so that a lane's codes are neighbours: in
// each slice of 64 columns (32 of q8), lane c of a quad owns two octets (one). One order serves every kernel here, hence
// the rule that all share:
//
//   A product is the sum of its segments, in order; segments split K by K alone (`segment_begin`). A segment is the sum
//   of its slices in order: chained mmas where the format has no groups, else chained mmas per slice, whose sum is
//   multiplied by the group's scale and added with fmaf. The result is multiplied by the row's factor (`finish`).
//
// So a token's product has the same bits in every kernel, tile and batch.
#pragma once

#include "ninfer.cuh"

#include "dequant.cuh"

namespace ninfer {

constexpr int kUnit = 128;       // columns
constexpr int kTileRows = 16;    // rows of an mma
constexpr int kTileTokens = 8;   // its tokens
constexpr int kPiece = 16;       // bytes of one copy to shared memory

// How a unit of a tile lies in shared memory: the codes of its 16 rows, then their high bits.
template <int FORMAT>
struct Staged {
    using D = Decoder<FORMAT>;
    static constexpr int kCodes = kUnit * D::kCodeBits / 8;  // bytes of a row
    static constexpr int kHigh = kUnit * D::kHighBits / 8;
    static constexpr int kBytes = kTileRows * (kCodes + kHigh);
    // A unit is multiplied in slices whose columns share a scale, where there are scales: of a slice, each lane of a quad
    // has kOctets octets side by side.
    static constexpr bool kScaled = D::kGroup > 0;
    static constexpr int kOctets = D::kGroup == 32 ? 1 : 2;
    static constexpr int kSlices = 4 / kOctets;
};

// ---- the split of K ---------------------------------------------------------------------------------------

NINFER_DEVICE int segment_begin(int segment, int segments, int units) {
    return static_cast<int>(static_cast<i64>(units) * segment / segments);
}

// ---- shared memory ----------------------------------------------------------------------------------------

// Where piece `piece` of the PIECES of a row lies: moved so that the rows and lanes that read together meet all banks.
template <int PIECES>
NINFER_DEVICE int place(int row, int piece) {
    int moved = piece;
    if (PIECES == 2) moved ^= row >> 2 & 1;
    if (PIECES == 4) moved ^= row & 2;
    if (PIECES == 8) moved ^= (row & 1) << 2 | (row & 2);
    if (PIECES == 16) moved ^= row & 1;
    return (row * PIECES + moved) * kPiece;
}

// Sixteen rows of a part. A tile may reach beyond the part's end: products with rows behind it are dropped. Offsets of rows within a tile fit 32 bits.
template <int FORMAT>
struct StoredTile {
    const u8* codes;  // of the tile's first row, as are all
    const u8* high;
    const u8* scales;
    u32 code_stride;  // bytes from row to row
    u32 high_stride;
    u32 scale_stride;
    u32 code_bytes;  // of a row
    int last;        // row of the tile
    bool aligned;    // rows begin at multiples of 16 bytes; only those of bf16 and fp8 may not

    NINFER_MEMBER StoredTile(const Part& part, int first, int columns) {
        using D = Decoder<FORMAT>;
        const i64 row = first < part.rows ? first : part.rows - 1;
        last = part.rows - 1 - row < kTileRows ? static_cast<int>(part.rows - 1 - row) : kTileRows - 1;
        codes = part.codes + row * part.code_stride;
        high = part.high + row * part.high_stride;
        code_stride = static_cast<u32>(part.code_stride);
        high_stride = static_cast<u32>(part.high_stride);
        code_bytes = D::kPadded ? code_stride : static_cast<u32>(columns) * D::kCodeBits / 8;
        aligned = (FORMAT != BF16 && FORMAT != FP8_ROW) || rows_aligned(part);
        if constexpr (FORMAT == NVFP4) {
            scales = part.scales + row / 128 * (columns / 64) * 512 + row % 32 * 16 + row % 128 / 32 * 4;
            scale_stride = 16;
        } else {
            scales = part.scales + row * part.scale_stride;
            scale_stride = static_cast<u32>(part.scale_stride);
        }
    }

    // Whether every row of a part begins at a multiple of 16 bytes.
    static NINFER_MEMBER bool rows_aligned(const Part& part) {
        return part.code_stride % kPiece == 0 && bits_as<u64>(part.codes) % kPiece == 0;
    }

};

// Sixteen bytes of a row that may begin and end anywhere, from `begin` on; zeros from its end on.
NINFER_DEVICE void copy_ragged(u8* to, const u8* row, u32 begin, u32 end) {
#pragma unroll 1
    for (u32 i = 0; i < kPiece; ++i) to[i] = begin + i < end ? row[begin + i] : u8(0);
}

// One warp copies unit `unit` of a tile to Staged::kBytes * 16 bytes of shared memory: by cp.async, or at once where
// rows are not aligned.
template <int FORMAT>
NINFER_DEVICE void stage_tile(u8* stage, const StoredTile<FORMAT>& tile, int unit) {
    using S = Staged<FORMAT>;
    constexpr int pieces = S::kCodes / kPiece, rows_at_once = pieces < kWarp ? kWarp / pieces : 1;
    const int first_row = lane() / pieces, piece = lane() % pieces;
    const u32 begin = unit * S::kCodes + piece * kPiece;
    const u8* const from = tile.codes + first_row * tile.code_stride + begin;
    u8* const to = stage + place<pieces>(first_row, piece);  // the move depends on nothing that a step changes
    if (tile.aligned) {
        const int rows = begin < tile.code_bytes ? tile.last + 1 : 0;
#pragma unroll
        for (int row = 0; row < kTileRows; row += rows_at_once) {
            cp_async16_zfill(to + row * S::kCodes, from + row * tile.code_stride, first_row + row < rows);
        }
    } else {
#pragma unroll 1
        for (int row = 0; row < kTileRows; row += rows_at_once) {
            const u32 end = first_row + row <= tile.last ? tile.code_bytes : 0;
            copy_ragged(to + row * S::kCodes, from + row * tile.code_stride - begin, begin, end);
        }
    }
    if constexpr (S::kHigh > 0) {
        constexpr int high_pieces = S::kHigh / kPiece;
        const int row = lane() / high_pieces, high_piece = lane() % high_pieces;
        const u8* const source = tile.high + row * tile.high_stride + unit * S::kHigh + high_piece * kPiece;
        if (row < kTileRows) {
            cp_async16_zfill(
                stage + kTileRows * S::kCodes + place<high_pieces>(row, high_piece), source, row <= tile.last);
        }
    }
}

// ---- from shared memory to fragments ----------------------------------------------------------------------

// The scales of one unit of one row, or of NVFP4 its blocks' scales.
template <int FORMAT>
struct Scales {
    u32 words[2];

    NINFER_MEMBER void load(const StoredTile<FORMAT>& tile, int row, int columns, int unit) {
        const u8* const from = tile.scales + (row < tile.last ? row : tile.last) * tile.scale_stride;
        if constexpr (FORMAT == NVFP4) {
            words[0] = load4(from + unit * 1024);
            words[1] = 2 * unit + 1 < columns / 64 ? load4(from + unit * 1024 + 512) : 0;
        } else if constexpr (FORMAT == Q8) {
            const uint2 two = load8(from + unit * 8);
            words[0] = two.x;
            words[1] = two.y;
        } else if constexpr (FORMAT == T2) {
            words[0] = load2(from + unit * 2) * 0x00010001u;
        } else if constexpr (Staged<FORMAT>::kScaled) {
            words[0] = load4(from + unit * 4);
        }
    }

    // NVFP4: of the four blocks of a slice.
    NINFER_MEMBER u32 blocks(int slice) const { return slice == 0 ? words[0] : words[1]; }

    // Others: of a slice.
    NINFER_MEMBER float of(int slice) const {
        const u32 word = FORMAT == Q8 && slice >= 2 ? words[1] : words[0];
        return half_to_float(static_cast<u16>(word >> 16 * (slice % 2)));
    }
};

// The first column of lane c's octets in a slice, within the unit.
template <int FORMAT>
NINFER_DEVICE int slice_column(int slice, int c) {
    return (slice * 4 + c) * Staged<FORMAT>::kOctets * 8;
}

// Lane c's octets of slice `slice` of row `row` of a staged tile, as words[octet][pair].
template <int FORMAT>
NINFER_DEVICE void read_octets(const u8* stage, int row, int slice, int c, const Scales<FORMAT>& scales,
                               u32 (&words)[Staged<FORMAT>::kOctets][4]) {
    using S = Staged<FORMAT>;
    constexpr int pieces = S::kCodes / kPiece, own = S::kCodes / 16 * S::kOctets;  // bytes of these octets' codes
    const int byte = (slice * 4 + c) * own;
    const auto at = [&](int more) { return stage + place<pieces>(row, (byte + more) / kPiece) + byte % kPiece; };
    const u8* const high = stage + kTileRows * S::kCodes;
    if constexpr (FORMAT == BF16) {
        bf16_pairs(read16(at(0)), words[0]);
        bf16_pairs(read16(at(kPiece)), words[1]);
    } else if constexpr (FORMAT == FP8_ROW) {
        const uint4 codes = read16(at(0));
        fp8_pairs(codes.x, codes.y, words[0]);
        fp8_pairs(codes.z, codes.w, words[1]);
    } else if constexpr (FORMAT == Q8) {
        const uint2 codes = read8(at(0));
        q8_pairs(codes.x, codes.y, words[0]);
    } else if constexpr (FORMAT == T2) {
        const u32 codes = read4(at(0));
        t2_pairs(codes, words[0]);
        t2_pairs(codes >> 16, words[1]);
    } else {
        const uint2 codes = read8(at(0));
        if constexpr (FORMAT == Q4) {
            q4_pairs(codes.x, words[0]);
            q4_pairs(codes.y, words[1]);
        } else if constexpr (FORMAT == Q5) {
            const u32 bits = *reinterpret_cast<const u16*>(high + row * kPiece + (slice * 4 + c) * 2);
            q5_pairs(codes.x, bits, words[0]);
            q5_pairs(codes.y, bits >> 8, words[1]);
        } else if constexpr (FORMAT == Q6) {
            const u32 bits = read4(high + place<2>(row, slice) + c * 4);
            q6_pairs(codes.x, bits, words[0]);
            q6_pairs(codes.y, bits >> 16, words[1]);
        } else {
            static_assert(FORMAT == NVFP4, "fp32 has no pairs");
            const u32 scale = e4m3_scale_pair(scales.blocks(slice) >> 8 * c & 0xffu);
            nvfp4_pairs(codes.x, scale, words[0]);
            nvfp4_pairs(codes.y, scale, words[1]);
        }
    }
}

// A slice of a tile: A of its mmas.
template <int FORMAT>
struct SliceTile {
    static constexpr int kOctets = Staged<FORMAT>::kOctets;
    u32 a[2 * kOctets][4];
    float scale[2];  // of rows g and g + 8

    // `scales`: of rows g and g + 8.
    NINFER_MEMBER void decode(const u8* stage, int slice, const Scales<FORMAT> (&scales)[2]) {
        const int g = lane() / 4, c = lane() % 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            u32 words[kOctets][4];
            read_octets<FORMAT>(stage, g + 8 * r, slice, c, scales[r], words);
#pragma unroll
            for (int i = 0; i < 2 * kOctets; ++i) {
                a[i][r] = words[i / 2][i % 2 * 2];
                a[i][2 + r] = words[i / 2][i % 2 * 2 + 1];
            }
            if constexpr (Staged<FORMAT>::kScaled) scale[r] = scales[r].of(slice);
        }
    }

    // sum (rows g, g + 8 by tokens 2c, 2c + 1) += the slice. `x`: lane c's octets of token g, in the order of pairs.
    NINFER_MEMBER void add_to(float (&sum)[4], const u32 (&x)[kOctets][4]) const {
        if constexpr (Staged<FORMAT>::kScaled) {
            float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            chain(part, x);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] = fmaf(part[i], scale[i / 2], sum[i]);
        } else {
            chain(sum, x);
        }
    }

    NINFER_MEMBER void chain(float (&sum)[4], const u32 (&x)[kOctets][4]) const {
#pragma unroll
        for (int i = 0; i < 2 * kOctets; ++i) {
            const u32 b[2] = {x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]};
            mma_bf16_16816(sum, a[i], b);
        }
    }
};

// The finished product of a row and a token. One fmaf, so that no compiler's contraction can change it.
NINFER_DEVICE float finish(float total, float factor, float residual) { return fmaf(total, factor, residual); }

}  // namespace ninfer
