// qk_norm_rope: see the contract in this folder. A warp owns one head of one token; a block's warps share the angles.
#include "ninfer.cuh"

using namespace ninfer;

constexpr int kDim = NINFER_DIM;
constexpr int kPairs = NINFER_PAIRS;
constexpr int kWarps = 4;
constexpr int kMostPairs = 128;
constexpr double kTurn = 6.283185307179586476925;

struct Side {
    const float* x;       // [T, heads, dim]
    const float* weight;  // [dim]
    float* out;           // [T, heads, dim], may be x
    i64 heads;
};

struct Args {
    Side sides[2];         // queries, keys
    const i32* positions;  // [3, T]
    i64 tokens;
    float eps;
    float unused;
    float frequencies[kMostPairs];
    u8 axes[kMostPairs];  // the row of positions that turns a pair
};

// Whole turns are taken off in fp64, so that a large angle keeps its sine.
NINFER_DEVICE void turn_of_token(const Args& args, i64 token, float* cosines, float* sines) {
    for (int r = threadIdx.x; r < kPairs; r += 32 * kWarps) {
        const i32 position = args.positions[args.axes[r] * args.tokens + token];
        const float angle = static_cast<float>(position) * args.frequencies[r];
        const double wide = static_cast<double>(angle);
        const float rest = static_cast<float>(wide - kTurn * rint(wide * (1.0 / kTurn)));
        cosines[r] = cosf(rest);
        sines[r] = sinf(rest);
    }
}

// Leaves the normed head in `row`, which the whole warp may read afterwards.
NINFER_DEVICE void norm(const float* x, const float* weight, float eps, float* row) {
    float squares = 0.0f;
    for (int i = lane(); i < kDim; i += 32) {
        row[i] = x[i];
        squares += row[i] * row[i];
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(kDim) + eps);
    for (int i = lane(); i < kDim; i += 32) row[i] = row[i] * scale * (weight[i] + 1.0f);
    __syncwarp();
}

NINFER_DEVICE float rotated(const float* row, int i, const float* cosines, const float* sines) {
    if (i < kPairs) return row[i] * cosines[i] - row[i + kPairs] * sines[i];
    if (i < 2 * kPairs) return row[i] * cosines[i - kPairs] + row[i - kPairs] * sines[i - kPairs];
    return row[i];
}

NINFER_KERNEL(qk_norm_rope, Args, 128) {
    __shared__ float cosines[kPairs], sines[kPairs], rows[kWarps][kDim];
    turn_of_token(args, blockIdx.x, cosines, sines);
    __syncthreads();
    const i64 index = static_cast<i64>(blockIdx.y) * kWarps + warp();
    const bool key = index >= args.sides[0].heads;
    const Side& side = args.sides[key];
    const i64 head = key ? index - args.sides[0].heads : index;
    if (head >= side.heads) return;
    const i64 first = (blockIdx.x * side.heads + head) * kDim;
    float* row = rows[warp()];
    norm(side.x + first, side.weight, args.eps, row);
    for (int i = lane(); i < kDim; i += 32) side.out[first + i] = rotated(row, i, cosines, sines);
}
