// Slots grouped by expert, and the weighted sum of a row's experts: what comes before and after the experts' products.
//
// Floors: 8 T k bytes of ids read by every expert's block; 4 T H (k + 1) bytes for the sum.
#include "ninfer.cuh"

#include "experts.cuh"

using namespace ninfer;

namespace {

struct GroupArgs {
    const i64* ids;  // [slots]
    i32* places;     // [slots] by place: its slot
    Item* items;     // of at most `tile` places each
    i32* total;      // number of items
    i32 slots;
    i32 experts;
    i32 tile;
    i32 unused;
};

struct SumArgs {
    const float* results;  // [rows, top_k, columns]
    const float* weights;  // [rows, top_k]
    float* out;            // [rows, columns]
    i64 columns;
    i32 rows;
    i32 top_k;
};

constexpr int kThreads = 256;

// How many places and items the experts before `expert` have, and how many places it has itself. All threads get them.
struct Before {
    i32 places;
    i32 items;
    i32 own;
};

NINFER_DEVICE Before before(const GroupArgs& args, i32 expert, i32* counts, i32* sums) {
    const i32 t = static_cast<i32>(threadIdx.x);
    for (i32 i = t; i < args.experts; i += kThreads) counts[i] = 0;
    if (t < 2) sums[t] = 0;
    __syncthreads();
    for (i32 slot = t; slot < args.slots; slot += kThreads) {
        const i64 id = args.ids[slot];
        if (id >= 0 && id < args.experts) atomicAdd(counts + id, 1);
    }
    __syncthreads();
    i32 places = 0, items = 0;
    for (i32 i = t; i < expert; i += kThreads) {
        places += counts[i];
        items += static_cast<i32>(ceil_div(counts[i], args.tile));
    }
    places = warp_sum(places);
    items = warp_sum(items);
    if (lane() == 0) {
        atomicAdd(sums, places);
        atomicAdd(sums + 1, items);
    }
    __syncthreads();
    return {sums[0], sums[1], counts[expert]};
}

}  // namespace

// Grid: experts. Every block counts all slots, so that none waits for another; shared memory: one i32 per expert.
NINFER_KERNEL(moe_group, GroupArgs, kThreads) {
    NINFER_DYNAMIC_SHARED(i32, counts);
    __shared__ i32 sums[2];
    __shared__ i32 warps[kThreads / kWarp];
    const i32 expert = static_cast<i32>(blockIdx.x), t = static_cast<i32>(threadIdx.x);
    const Before from = before(args, expert, counts, sums);
    const i32 items = static_cast<i32>(ceil_div(from.own, args.tile));
    for (i32 i = t; i < items; i += kThreads) {
        const i32 first = i * args.tile, left = from.own - first;
        args.items[from.items + i] = {expert, from.places + first, left < args.tile ? left : args.tile, 0};
    }
    if (expert + 1 == args.experts && t == 0) *args.total = from.items + items;
    i32 next = from.places;
    for (i32 begin = 0; begin < args.slots; begin += kThreads) {
        const bool mine = begin + t < args.slots && args.ids[begin + t] == expert;
        const u32 votes = warp_ballot(mine);
        if (lane() == 0) warps[warp()] = __popc(votes);
        __syncthreads();
        i32 place = next + __popc(votes & ((1u << lane()) - 1));
        for (int i = 0; i < kThreads / kWarp; ++i) {
            if (i < warp()) place += warps[i];
            next += warps[i];
        }
        if (mine) args.places[place] = begin + t;
        __syncthreads();
    }
}

// out[row] = sum over slots s, rising, of weights[row][s] * results[row][s]. Grid: rows, and parts of them.
NINFER_KERNEL(moe_sum, SumArgs, kThreads) {
    const i64 row = blockIdx.x, at = static_cast<i64>(blockIdx.y) * kThreads + threadIdx.x;
    if (at >= args.columns) return;
    const float* from = args.results + row * args.top_k * args.columns + at;
    const float* weights = args.weights + row * args.top_k;
    float total = __fmul_rn(weights[0], from[0]);
    for (i32 s = 1; s < args.top_k; ++s)
        total = __fadd_rn(total, __fmul_rn(weights[s], from[static_cast<i64>(s) * args.columns]));
    args.out[row * args.columns + at] = total;
}
