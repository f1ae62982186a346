// What this machine can do at most: reading memory, and fused products and sums in registers.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

struct Args {
    const float* data;
    float* out;  // one per worker
    int64_t count;  // of floats to read, or of rounds
};

constexpr int64_t CHUNK = 1 << 14;
constexpr int SUMS = 12;

void read_memory(const Args& a, Worker& worker) {
    worker.each(a.count, CHUNK, [&](int64_t begin, int64_t end) {
        u32 seen[4] = {};
        for (int64_t i = begin; i < end; i += 4 * LANES)
            for (int j = 0; j < 4; ++j) {
                const float* from = a.data + i + j * LANES;
                if (j % (16 / LANES) == 0) __builtin_prefetch(from + 1024, 0, 2);
                seen[j] ^= load<u32>(from);
            }
        const u32 all = seen[0] ^ seen[1] ^ seen[2] ^ seen[3];
        if (all[0] == 1) a.out[worker.rank] = 1.0f;
    });
}

void multiply_add(const Args& a, Worker& worker) {
    f32 sums[SUMS];
#pragma GCC unroll 16
    for (int j = 0; j < SUMS; ++j) sums[j] = splat(a.data[j]);  // from memory: equal sums would become one
    const f32 factor = splat(a.data[0]), term = splat(a.data[1]);
    for (int64_t i = 0; i < a.count; ++i) {
#pragma GCC unroll 16
        for (int j = 0; j < SUMS; ++j) sums[j] = fma(sums[j], factor, term);
    }
    f32 all = {};
#pragma GCC unroll 16
    for (int j = 0; j < SUMS; ++j) all += sums[j];
    a.out[worker.rank] = sum(all);
}

}  // namespace

NINFER_KERNEL(read_memory, Args)
NINFER_KERNEL(multiply_add, Args)
