// The products of experts with many rows: linear's tiles, whose tokens are gathered. The sums are linear's, so a slot's
// products have the bits of linear and of narrow.cu.
//
// Floor: 2 N K operations on tensor cores per slot; an item of fewer than NINFER_TOKENS slots costs as much as a full one.
#include "ninfer.cuh"

#include "products.cuh"
#include "linear/args.cuh"
#include "linear/wide.cuh"
#include "mlp/silu.cuh"

using namespace ninfer;

namespace {

// The rows of octets that an item's places take.
struct PlaceTokens {
    const u16* octets;
    const i32* rows;  // [kTokens] in shared memory; -1: zeros
    int width;        // columns of a row

    NINFER_MEMBER void stage(u8* stage, int unit) const {
        constexpr int at_once = kThreads / 16;
        const int octet = threadIdx.x % 16, own = threadIdx.x / 16;
        u8* const to = stage + octet_place(own, octet);
#pragma unroll
        for (int token = 0; token < kTokens; token += at_once) {
            const i32 row = rows[own + token];
            const u16* const from = octets + static_cast<i64>(row < 0 ? 0 : row) * width + unit * kUnit + octet * 8;
            cp_async16_zfill(to + token * 16 * kPiece, from, row >= 0);
        }
    }
};

template <int FORMAT>
NINFER_DEVICE void run(const ProductArgs& args, const Item& item, const Part (&parts)[2], const i32* rows, u8* shared) {
    const bool paired = args.paired != 0;
    const int first = (static_cast<int>(blockIdx.x) * kRowWarps + warp() % kRowWarps) * kTileRows * (paired ? 1 : 2);
    const int next = paired ? first : first + kTileRows;
    const StoredTile<FORMAT> tiles[2] = {{parts[0], first, args.columns}, {parts[1], next, args.columns}};
    const Depth depth{args.columns, args.units, args.segments};
    Sums total;
    multiply<FORMAT>(depth, tiles, PlaceTokens{args.octets, rows, args.units * kUnit}, 0, args.segments, shared, total);
    const int g = lane() / 4, token0 = warp() / kRowWarps * kColumns * kTileTokens + lane() % 4 * 2;
    const auto product = [&](int tile, int row, float sum) {
        return finish(sum, Decoder<FORMAT>::factor(parts[tile], row), 0.0f);
    };
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = first + g + i / 2 * 8, row2 = next + g + i / 2 * 8, token = token0 + n * kTileTokens + i % 2;
            if (token >= item.count) continue;
            float* const out = args.out + static_cast<i64>(args.places[item.first + token]) * args.rows;
            if (paired) {
                if (row < args.rows)
                    out[row] = silu_mul(product(0, row, total[0][n][i]), product(1, row, total[1][n][i]));
            } else {
                if (row < args.rows) out[row] = product(0, row, total[0][n][i]);
                if (row2 < args.rows) out[row2] = product(1, row2, total[1][n][i]);
            }
        }
    }
}

}  // namespace

// Grid: tiles of a weight's rows, and as many items as there can be.
NINFER_KERNEL(expert_wide, ProductArgs, kThreads) {
    NINFER_DYNAMIC_SHARED(u8, shared);
    __shared__ i32 rows[kTokens];
    if (static_cast<i32>(blockIdx.y) >= *args.total) return;
    const Item item = args.items[blockIdx.y];
    for (int token = static_cast<int>(threadIdx.x); token < kTokens; token += kThreads)
        rows[token] = token < item.count ? static_cast<i32>(input_index(args, item.first + token)) : -1;
    __syncthreads();
    const Expert& expert = args.experts[item.expert];
    const Part parts[2] = {args.paired != 0 ? expert.gate : expert.down, args.paired != 0 ? expert.up : expert.down};
    with_format(parts[0].format, [&](auto tag) { run<decltype(tag)::value>(args, item, parts, rows, shared); });
}
