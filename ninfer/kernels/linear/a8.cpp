// linear with activations quantised to 8 bits: see the contract in this folder, and a8.hpp for the arithmetic.
#include "linear/a8.hpp"

#include "linear/epilogue.hpp"
#include "linear/pieces.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr int64_t CLAIM_COLUMNS = 16;  // whose multiples are claimed, of few tokens

// Every token of x. Few are quantised by each worker for itself, which spares a barrier.
a8::Panel quantise(const LinearArgs& a, Worker& worker) {
    unsigned mask = 0;
    for (int64_t i = 0; i < a.count; ++i) mask |= a8::group_mask(a.outputs[i]);
    const size_t bytes = a8::Panel::bytes(a.tokens, a.columns, mask);
    const bool alone = a.tokens <= a8::TILE;
    const a8::Panel panel(alone ? worker.own<char>(bytes) : worker.shared<char>(bytes), a.tokens, a.columns, mask);
    const auto some = [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) panel.quantise(t, a.x + t * a.columns);
    };
    if (alone) {
        some(0, a.tokens);
    } else {
        worker.each(a.tokens, 4, some);
        worker.barrier();
    }
    return panel;
}

struct Scratch {
    char* block;
    float* products;  // [TOKENS][ROWS]
    float* up;        // the same
};

// At most ROWS columns of an output.
void multiply(const Output& o, int64_t column, int64_t count, const a8::Batch& batch, const Scratch& s) {
    a8::multiply(o, column, column + count, batch, s.block, s.products, a8::ROWS);
    if (o.epilogue == SWIGLU) {
        const int64_t row = o.rows / 2 + column;
        a8::multiply(o, row, row + count, batch, s.block, s.up, a8::ROWS);
    }
    for (int64_t i = 0; i < batch.count; ++i)
        finish(o, batch.first + i, column, count, s.products + i * a8::ROWS, s.up + i * a8::ROWS);
}

void linear_a8(const LinearArgs& a, Worker& worker) {
    const a8::Panel panel = quantise(a, worker);
    const Pieces pieces(a, worker.size, a8::TOKENS, a.tokens > a8::TILE ? a8::ROWS : CLAIM_COLUMNS);
    constexpr int64_t products = a8::TOKENS * a8::ROWS;
    const Scratch s{worker.own<char>(a8::SCRATCH_BYTES), worker.own<float>(products), worker.own<float>(products)};
    const auto some = [&](const Output& o, int64_t column, int64_t count, int64_t first, int64_t tokens) {
        multiply(o, column, count, {&panel, nullptr, first, tokens}, s);
    };
    worker.each(pieces.count(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) pieces.piece(i, a8::ROWS, some);
    });
}

}  // namespace

NINFER_KERNEL(linear_a8, LinearArgs)

// For kernels of other folders, which would else compile all of this again.
extern "C" __attribute__((visibility("default"))) void ninfer_a8_multiply(
    const Output& o, int64_t begin, int64_t end, const a8::Batch& batch, char* scratch, float* out, int64_t stride) {
    a8::multiply(o, begin, end, batch, scratch, out, stride);
}
