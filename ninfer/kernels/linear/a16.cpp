// linear with fp32 activations: see the contract in this folder, and a16.hpp for the arithmetic.
#include "linear/a16.hpp"

#include "linear/epilogue.hpp"
#include "linear/pieces.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

struct Scratch {
    a16::Scratch product;
    float* products;  // [tokens][most rows], as many as those of a call
    float* up;        // the same
};

Scratch scratch(Worker& worker) {
    return {a16::Scratch::of(worker), worker.own<float>(a16::PRODUCTS), worker.own<float>(a16::PRODUCTS)};
}

// At most MOST columns of an output.
template <int MOST>
void multiply(const Output& o, int64_t column, int64_t count, const a16::Batch& batch, const Scratch& s) {
    a16::multiply(o, column, column + count, batch, s.product, s.products, MOST);
    if (o.epilogue == SWIGLU) {
        const int64_t row = o.rows / 2 + column;
        a16::multiply(o, row, row + count, batch, s.product, s.up, MOST);
    }
    for (int64_t i = 0; i < batch.count; ++i)
        finish(o, batch.first + i, column, count, s.products + i * MOST, s.up + i * MOST);
}

template <int MOST>
void multiply_all(const LinearArgs& a, Worker& worker) {
    const Pieces pieces(a, worker.size, a16::TOKENS, a16::ROWS);
    const Scratch s = scratch(worker);
    worker.each(pieces.count(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            pieces.piece(i, MOST, [&](const Output& o, int64_t column, int64_t count, int64_t first, int64_t tokens) {
                multiply<MOST>(o, column, count, {a.x, a.columns, nullptr, first, tokens}, s);
            });
    });
}

void linear_a16(const LinearArgs& a, Worker& worker) {
    if (a.tokens <= a16::STREAM_TOKENS) multiply_all<a16::STREAM_ROWS>(a, worker);
    else multiply_all<a16::ROWS>(a, worker);
}

}  // namespace

NINFER_KERNEL(linear_a16, LinearArgs)

// For kernels of other folders, which would else compile all of this again.
extern "C" __attribute__((visibility("default"))) void ninfer_a16_multiply(
    const Output& o, int64_t begin, int64_t end, const a16::Batch& batch, const a16::Scratch& s, float* out,
    int64_t stride) {
    a16::multiply(o, begin, end, batch, s, out, stride);
}
