// linear for one to eight tokens: see narrow.cuh and the contract in this folder.
//
// A block has 16 * NINFER_TILES rows (or half as many gate and as many up rows), and its warps split K by segments. So a
// weight is read once, by one warp, which has some NINFER_RING bytes of it on their way at any time. x comes out of L2:
// where it is small, NINFER_STAGED_X, a block rounds it once into shared memory while the first weights travel; else
// every warp loads and rounds the columns of its segment.
//
// Floor at T <= 8: the stored bytes of the weight (N K bits / 8) at the bandwidth of memory. x costs the L2 another
// 4 T K bytes for every 16 * NINFER_TILES rows.
#include "ninfer.cuh"

#include "args.cuh"
#include "mlp/silu.cuh"
#include "narrow.cuh"

using namespace ninfer;

constexpr int kTiles = NINFER_TILES;
// Registers for two blocks to a multiprocessor, where they suffice.
constexpr bool kLight = (NINFER_FORMATS & (NINFER_FORMATS - 1)) == 0 && (NINFER_FORMATS & (1 << Q5 | 1 << Q6)) == 0;
constexpr int kBlocks = kTiles == 1 || (kLight && NINFER_STAGED_X != 0) ? 2 : 1;
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

// x of the whole block in shared memory, as octets. Every warp begins its first segment, and so comes by the barrier, once.
template <int FORMAT>
struct StagedTokens {
    static constexpr int kOctets = Staged<FORMAT>::kOctets;
    const LinearArgs& args;
    u8* shared;  // tokens by units by 16 octets
    bool staged;

    // Octets are moved so that the tokens of a read meet all banks.
    NINFER_MEMBER u8* place(int token, int unit, int octet) const {
        return shared + ((token * args.units + unit) * 16 + (octet ^ (token & 1) * 5)) * kPiece;
    }

    NINFER_MEMBER void begin(int) {
        if (staged) return;
        const int width = args.units * 16;
        for (int i = threadIdx.x; i < args.tokens * width; i += blockDim.x) {
            const int token = i / width, octet = i % width;
            float values[8];
            u32 pairs[4];
            load_octet(values, args.x + static_cast<i64>(token) * args.columns, octet * 8, args.columns, args.vector != 0);
            fp32_pairs(values, pairs);
            store16(place(token, octet / 16, octet % 16), make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
        }
        __syncthreads();
        staged = true;
    }

    NINFER_MEMBER void take(u32 (&x)[kOctets][4], int unit, int slice, int, int) const {
        const int token = lane() / 4, first = slice_column<FORMAT>(slice, lane() % 4) / 8;
#pragma unroll
        for (int octet = 0; octet < kOctets; ++octet) {
            const bool known = token < args.tokens;
            put(x[octet], known ? read16(place(token, unit, first + octet)) : make_uint4(0, 0, 0, 0));
        }
    }
};

// The warp's segments, each from a sum of zero.
template <int FORMAT, class Tokens>
NINFER_DEVICE void sum_segments(
    const LinearArgs& args, const StoredTile<FORMAT> (&tiles)[kTiles], Tokens tokens, u8* rings, float* partials) {
    constexpr int ring_bytes = ring_stages<FORMAT, kTiles>(NINFER_RING) * kTiles * Staged<FORMAT>::kBytes;
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    for (int segment = warp(); segment < args.segments; segment += warps) {
        float sum[kTiles][4] = {};
        multiply_run<FORMAT, kTiles, NINFER_RING>(
            tiles, tokens, args.columns, segment_begin(segment, args.segments, args.units),
            segment_begin(segment + 1, args.segments, args.units), rings + warp() * ring_bytes, sum);
        keep_sums(partials + segment * kSegmentFloats, sum);
    }
}

template <int FORMAT>
NINFER_DEVICE void sum_products(
    const LinearArgs& args, const StoredTile<FORMAT> (&tiles)[kTiles], u8* shared, float* partials) {
    if constexpr (NINFER_STAGED_X != 0) {
        u8* const rings = shared + args.tokens * args.units * 16 * kPiece;
        sum_segments(args, tiles, StagedTokens<FORMAT>{args, shared, false}, rings, partials);
    } else {
        const int token = lane() / 4;
        const float* row = token < args.tokens ? args.x + static_cast<i64>(token) * args.columns : nullptr;
        sum_segments(args, tiles, LoadedTokens<FORMAT>{row, args.columns, args.vector != 0, {}}, shared, partials);
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
    u8* const rest = shared + args.segments * kSegmentFloats * sizeof(float);
    const Output to = args.outputs[at.output];
    const bool paired = kTiles == 2 && args.paired != 0;
    const Part second = args.outputs[at.output + (paired ? 1 : 0)].part;
    const int first = at.tile * kTileRows * (paired ? 1 : kTiles);
    if constexpr (kTiles == 1) {
        const StoredTile<FORMAT> tiles[1] = {{to.part, first, args.columns}};
        sum_products(args, tiles, rest, partials);
    } else {
        const StoredTile<FORMAT> tiles[2] = {
            {to.part, first, args.columns}, {second, paired ? first : first + kTileRows, args.columns}};
        sum_products(args, tiles, rest, partials);
    }
    __syncthreads();
    if (paired) {
        store_gated<FORMAT>(args, to, second, first, partials);
    } else {
        store_products<FORMAT>(args, to, first, partials);
    }
}

NINFER_KERNEL(linear_narrow, LinearArgs, 256, kBlocks) {
    NINFER_DYNAMIC_SHARED(u8, shared);
    const Tile at = find_tile(args, blockIdx.x);
    with_format(args.outputs[at.output].part.format, [&](auto tag) { run<decltype(tag)::value>(args, at, shared); });
}
