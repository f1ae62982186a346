// The signed Walsh-Hadamard transform of rows.
#include "linear/hadamard.hpp"

#include "team.hpp"

using namespace ninfer;

namespace {

struct Args {
    const float* x;
    const float* signs;
    float* out;
    int64_t rows;
    int64_t columns;
};

void hadamard(const Args& a, Worker& worker) {
    const int64_t blocks = a.columns / HADAMARD_BLOCK;
    worker.each(a.rows * blocks, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            rotate_block(a.x + i * HADAMARD_BLOCK, a.signs + i % blocks * HADAMARD_BLOCK, a.out + i * HADAMARD_BLOCK);
    });
}

}  // namespace

NINFER_KERNEL(hadamard, Args)
