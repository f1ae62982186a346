// qk_norm_rope: see the contract in this folder. A warp owns one head of one token; a block's warps share the angles.
#include "ninfer.cuh"
#include "qk_norm_rope/rotate.cuh"

using namespace ninfer;

constexpr int kDim = NINFER_DIM;
constexpr int kPairs = NINFER_PAIRS;
constexpr int kWarps = 4;

struct Args {
    Side sides[2];  // queries, keys
    Turns turns;
    float eps;
    float unused;
};

NINFER_KERNEL(qk_norm_rope, Args, 128) {
    __shared__ float cosines[kPairs], sines[kPairs], rows[kWarps][kDim];
    turn_of_token<kPairs>(args.turns, blockIdx.x, cosines, sines);
    __syncthreads();
    const i64 index = static_cast<i64>(blockIdx.y) * kWarps + warp();
    const bool key = index >= args.sides[0].heads;
    const Side& side = args.sides[key];
    const i64 head = key ? index - args.sides[0].heads : index;
    if (head >= side.heads) return;
    const i64 first = (blockIdx.x * side.heads + head) * kDim;
    float* row = rows[warp()];
    norm<kDim>(side.x + first, side.weight, args.eps, row);
    for (int i = lane(); i < kDim; i += kWarp) side.out[first + i] = rotated<kPairs>(row, i, cosines, sines);
}
