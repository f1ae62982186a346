// kv_append: see the contract in this folder, and codec.py for the formats. A warp owns one row: one side of one head
// of one token.
#include "ninfer.cuh"
#include "kv_cache/rows.cuh"

using namespace ninfer;

constexpr int kDim = NINFER_DIM;
constexpr int kWarps = 4;

struct Args {
    const float* k;    // [T, heads, dim]
    const float* v;    // [T, heads, dim]
    const i64* slots;  // [T]
    KvPlane keys;
    KvPlane values;
    i64 tokens;
    i64 heads;
};

NINFER_KERNEL(kv_append, Args, 128) {
    const i64 index = static_cast<i64>(blockIdx.x) * kWarps + warp();
    if (index >= 2 * args.tokens * args.heads) return;
    const i64 rows = args.tokens * args.heads, of_side = index % rows, slot = args.slots[of_side / args.heads];
    const i64 place = (slot / kPageTokens * args.heads + of_side % args.heads) * kPageTokens + slot % kPageTokens;
    if (index < rows)
        store_row<NINFER_KEYS>(load_row<kDim>(args.k + of_side * kDim), args.keys, place);
    else
        store_row<NINFER_VALUES>(load_row<kDim>(args.v + of_side * kDim), args.values, place);
}
