// argmax: see the contract in this folder. The greatest value of every block of columns, then the first place of the
// greatest of those.
#include "columns.hpp"

using namespace ninfer;

namespace {

struct Args {
    const float* logits;
    const uint32_t* mask;  // null: every column counts
    int64_t* out;          // -1 where a row has no answer
    int64_t rows;
    int64_t columns;
    int64_t mask_stride;  // words from row to row: 0 when all rows share one mask
};

Row row_of(const Args& a, int64_t row) {
    return {a.logits + row * a.columns, a.mask == nullptr ? nullptr : a.mask + row * a.mask_stride, a.columns};
}

int64_t answer(const Row& row, const float* blocks) {
    const float best = row_greatest(blocks, blocks_of(row.columns));
    return best > -INFINITE ? first_column(row, blocks, best) : -1;
}

void argmax(const Args& a, Worker& worker) {
    const int64_t blocks = blocks_of(a.columns);
    float* greatest_of = worker.shared<float>(a.rows * blocks);
    worker.each(a.rows * blocks, BLOCK_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) greatest_of[i] = block_greatest(row_of(a, i / blocks), i % blocks);
    });
    worker.barrier();
    worker.each(a.rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) a.out[row] = answer(row_of(a, row), greatest_of + row * blocks);
    });
}

}  // namespace

NINFER_KERNEL(argmax, Args)
