// The products of experts with up to eight rows at a time: every warp streams its rows of an expert's weight, which is
// read once where an expert has up to eight slots. The sums are linear's, so a slot's products have the bits of linear.
//
// Floor: the stored bytes of the chosen experts' weights at the bandwidth of memory.
#include "ninfer.cuh"

#include "products.cuh"
#include "linear/args.cuh"
#include "linear/narrow.cuh"
#include "mlp/silu.cuh"

using namespace ninfer;

namespace {

constexpr int kTiles = 2;  // gate rows and up rows, or 32 rows
constexpr int kSegmentFloats = kTiles * kTileRows * kTileTokens;

// partial[token][row] of one segment.
NINFER_DEVICE void keep_sums(float* partial, const float (&sum)[kTiles][4]) {
    const int g = lane() / 4, c = lane() % 4;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            partial[(2 * c + i % 2) * kTiles * kTileRows + t * kTileRows + g + i / 2 * 8] = sum[t][i];
}

// The sum over K of row `row` of a team's tiles and a token.
NINFER_DEVICE float total_of(const ProductArgs& args, const float* partials, int row, int token) {
    const int at = token * kTiles * kTileRows + row;
    float sum = partials[at];
    for (int segment = 1; segment < args.segments; ++segment) sum += partials[segment * kSegmentFloats + at];
    return sum;
}

// What a block's warps do: teams of warps that share the segments of K, each with tiles of its own.
struct Team {
    int warps;   // of one
    int number;  // of this warp's
    int member;  // this warp among them

    NINFER_MEMBER explicit Team(const ProductArgs& args)
        : warps(args.team), number(warp() / args.team), member(warp() % args.team) {}
};

template <int FORMAT>
NINFER_DEVICE void store(const ProductArgs& args, const Item& item, const Part (&parts)[2], int first,
                         const float* partials, const Team& team) {
    const int rows = args.paired != 0 ? kTileRows : kTiles * kTileRows, threads = team.warps * kWarp;
    for (int i = team.member * kWarp + lane(); i < rows * item.count; i += threads) {
        const int row = i % rows, token = i / rows, n = first + row;
        if (n >= args.rows) continue;
        float product = finish(total_of(args, partials, row, token), Decoder<FORMAT>::factor(parts[0], n), 0.0f);
        if (args.paired != 0) {
            const float total = total_of(args, partials, kTileRows + row, token);
            product = silu_mul(product, finish(total, Decoder<FORMAT>::factor(parts[1], n), 0.0f));
        }
        args.out[static_cast<i64>(args.places[item.first + token]) * args.rows + n] = product;
    }
}

template <int FORMAT>
NINFER_DEVICE void run(const ProductArgs& args, const Item& item, const Part (&parts)[2], u8* shared) {
    constexpr int ring_bytes = ring_stages<FORMAT, kTiles>(NINFER_RING) * kTiles * Staged<FORMAT>::kBytes;
    const Team team(args);
    const int warps = static_cast<int>(blockDim.x) / kWarp, teams = warps / team.warps;
    float* const partials = reinterpret_cast<float*>(shared) + team.number * args.segments * kSegmentFloats;
    u8* const ring = shared + teams * args.segments * kSegmentFloats * sizeof(float) + warp() * ring_bytes;
    const int first = (static_cast<int>(blockIdx.x) * teams + team.number) * (args.paired != 0 ? 1 : 2) * kTileRows;
    const StoredTile<FORMAT> tiles[kTiles] = {
        {parts[0], first, args.columns}, {parts[1], args.paired != 0 ? first : first + kTileRows, args.columns}};
    const int token = lane() / 4;
    const float* const x_row = token < item.count ? input_row(args, item.first + token) : nullptr;
    for (int segment = team.member; segment < args.segments; segment += team.warps) {
        float sum[kTiles][4] = {};
        multiply_run<FORMAT, kTiles, NINFER_RING>(
            tiles, x_row, args.vector != 0, args.columns, segment_begin(segment, args.segments, args.units),
            segment_begin(segment + 1, args.segments, args.units), ring, sum);
        keep_sums(partials + segment * kSegmentFloats, sum);
    }
    __syncthreads();
    store<FORMAT>(args, item, parts, first, partials, team);
}

}  // namespace

// Grid: tiles of a weight's rows, and as many items as there can be.
NINFER_KERNEL(expert_narrow, ProductArgs, 256, 1) {
    NINFER_DYNAMIC_SHARED(u8, shared);
    if (static_cast<i32>(blockIdx.y) >= *args.total) return;
    const Item item = args.items[blockIdx.y];
    const Expert& expert = args.experts[item.expert];
    const Part parts[2] = {args.paired != 0 ? expert.gate : expert.down, args.paired != 0 ? expert.up : expert.down};
    with_format(parts[0].format, [&](auto tag) { run<decltype(tag)::value>(args, item, parts, shared); });
}
