// linear for one to eight tokens: see narrow.cuh and the contract in this folder.
//
// A block has 16 * NINFER_TILES rows (or half as many gate and as many up rows), and its warps split K by segments. So a
// weight is read once, by one warp, which has some NINFER_RING bytes of it on their way at any time. x is small, shared
// by all blocks, and comes out of L2 and L1.
//
// Floor at T <= 8: the stored bytes of the weight (N K bits / 8) at the bandwidth of memory. x costs the L2 another
// 4 T K bytes for every 16 * NINFER_TILES rows.
#include "ninfer.cuh"

#include "args.cuh"
#include "mlp/silu.cuh"
#include "narrow.cuh"

using namespace ninfer;

constexpr int kTiles = NINFER_TILES;
constexpr int kSegmentFloats = kTiles * kTileRows * kTileTokens;

// partial[token][row] of one segment.
NINFER_DEVICE void keep_sums(float* partial, const float (&sum)[kTiles][4]) {
    const int g = lane() / 4, c = lane() % 4;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            partial[(2 * c + i % 2) * kTiles * kTileRows + t * kTileRows + g + i / 2 * 8] = sum[t][i];
        }
    }
}

// The warp's segments, each from a sum of zero.
template <int FORMAT>
NINFER_DEVICE void sum_segments(
    const LinearArgs& args, const StoredTile<FORMAT> (&tiles)[kTiles], u8* rings, float* partials) {
    constexpr int ring_bytes = ring_stages<FORMAT, kTiles>(NINFER_RING) * kTiles * Staged<FORMAT>::kBytes;
    const int token = lane() / 4, warps = static_cast<int>(blockDim.x) / kWarp;
    const float* x_row = token < args.tokens ? args.x + static_cast<i64>(token) * args.columns : nullptr;
    for (int segment = warp(); segment < args.segments; segment += warps) {
        float sum[kTiles][4] = {};
        multiply_run<FORMAT, kTiles, NINFER_RING>(
            tiles, x_row, args.vector != 0, args.columns, segment_begin(segment, args.segments, args.units),
            segment_begin(segment + 1, args.segments, args.units), rings + warp() * ring_bytes, sum);
        keep_sums(partials + segment * kSegmentFloats, sum);
    }
}

// The sum over K of row `row` of the block's tiles and a token.
NINFER_DEVICE float total(const LinearArgs& args, const float* partials, int row, int token) {
    const int at = token * kTiles * kTileRows + row;
    float sum = partials[at];
    for (int segment = 1; segment < args.segments; ++segment) sum += partials[segment * kSegmentFloats + at];
    return sum;
}

template <int FORMAT>
NINFER_DEVICE void store_products(const LinearArgs& args, const Output& to, int first, const float* partials) {
    constexpr int rows = kTiles * kTileRows;
    for (int i = threadIdx.x; i < rows * args.tokens; i += blockDim.x) {
        const int row = i % rows, token = i / rows, n = first + row;
        if (n >= to.part.rows) continue;
        const i64 at = static_cast<i64>(token) * to.out_stride + n;
        const float added = to.residual == nullptr ? 0.0f : to.residual[at];
        to.out[at] = finish(total(args, partials, row, token), Decoder<FORMAT>::factor(to.part, n), added);
    }
}

// Of a block with a tile of gate rows and one of up rows.
template <int FORMAT>
NINFER_DEVICE void store_gated(
    const LinearArgs& args, const Output& to, const Part& up_part, int first, const float* partials) {
    for (int i = threadIdx.x; i < kTileRows * args.tokens; i += blockDim.x) {
        const int row = i % kTileRows, token = i / kTileRows, n = first + row;
        if (n >= to.part.rows) continue;
        const float gate = finish(total(args, partials, row, token), Decoder<FORMAT>::factor(to.part, n), 0.0f);
        const float up =
            finish(total(args, partials, kTileRows + row, token), Decoder<FORMAT>::factor(up_part, n), 0.0f);
        to.out[static_cast<i64>(token) * to.out_stride + n] = silu_mul(gate, up);
    }
}

template <int FORMAT>
NINFER_DEVICE void run(const LinearArgs& args, const Tile& at, u8* shared) {
    float* const partials = reinterpret_cast<float*>(shared);
    u8* const rings = shared + args.segments * kSegmentFloats * sizeof(float);
    const Output to = args.outputs[at.output];
    const bool paired = kTiles == 2 && args.paired != 0;
    const Part second = args.outputs[at.output + (paired ? 1 : 0)].part;
    const int first = at.tile * kTileRows * (paired ? 1 : kTiles);
    if constexpr (kTiles == 1) {
        const StoredTile<FORMAT> tiles[1] = {{to.part, first, args.columns}};
        sum_segments(args, tiles, rings, partials);
    } else {
        const StoredTile<FORMAT> tiles[2] = {
            {to.part, first, args.columns}, {second, paired ? first : first + kTileRows, args.columns}};
        sum_segments(args, tiles, rings, partials);
    }
    __syncthreads();
    if (paired) {
        store_gated<FORMAT>(args, to, second, first, partials);
    } else {
        store_products<FORMAT>(args, to, first, partials);
    }
}

NINFER_KERNEL(linear_narrow, LinearArgs, 256, NINFER_TILES == 1 ? 2 : 1) {
    NINFER_DYNAMIC_SHARED(u8, shared);
    const Tile at = find_tile(args, blockIdx.x);
    with_format(args.outputs[at.output].part.format, [&](auto tag) { run<decltype(tag)::value>(args, at, shared); });
}
