// kv_append: see the contract in this folder, and codec.py for the formats. One token's head is one worker's.
#include "kv_cache/encode.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr int64_t GRAIN = 8;

struct Args {
    const float* k;        // [T, heads, dim]
    const float* v;        // [T, heads, dim]
    const int64_t* slots;  // [T]
    Plane keys;
    Plane values;
    int64_t tokens;
    int64_t heads;
    int64_t dim;
};

void kv_append(const Args& a, Worker& worker) {
    worker.each(a.tokens * a.heads, GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t slot = a.slots[i / a.heads];
            const int64_t place = (slot / PAGE * a.heads + i % a.heads) * PAGE + slot % PAGE;
            encode_row(a.keys, place, a.k + i * a.dim, a.dim);
            encode_row(a.values, place, a.v + i * a.dim, a.dim);
        }
    });
}

}  // namespace

NINFER_KERNEL(kv_append, Args)
