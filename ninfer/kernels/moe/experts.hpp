// The experts of a block, and the slots of a call grouped by them.
#pragma once

#include "linear/a16.hpp"
#include "linear/a8.hpp"
#include "linear/hadamard.hpp"
#include "linear/matrix.hpp"
#include "team.hpp"

#include <algorithm>

namespace ninfer::moe {

// One weight of an expert. Of `output` only what is multiplied counts. Python mirrors this in experts.py.
struct Weight {
    Output output;
    const float* signs;  // of the Hadamard rotation of its input, or null
    int64_t a8;          // whether its input is quantised
};

struct Expert {
    Weight gate_up;
    Weight down;
};

// A slot is one of a row's chosen experts. Its place is where it stands once slots are sorted by expert: an expert's
// places are neighbours, and hold its slots in rising order.
struct Groups {
    int32_t* rows;     // [slots] by place: whose slot it is
    int32_t* places;   // [slots] by slot
    int32_t* experts;  // [active] those that some row chose, rising
    int32_t* begin;    // [active + 1] the first place of each
    int64_t active;
    int64_t slots;

    // Which of the active experts has this place.
    int64_t owner(int64_t place) const { return std::upper_bound(begin, begin + active, place) - begin - 1; }
};

// Every worker groups for itself, which costs less than to wait for one that does.
static inline Groups group(const int64_t* ids, int64_t rows, int64_t top_k, int64_t experts, Worker& worker) {
    const int64_t slots = rows * top_k;
    int32_t* next = worker.own<int32_t>(experts);
    Groups g{worker.own<int32_t>(slots), worker.own<int32_t>(slots), worker.own<int32_t>(experts),
             worker.own<int32_t>(experts + 1), 0, slots};
    std::memset(next, 0, experts * sizeof(int32_t));
    for (int64_t s = 0; s < slots; ++s) ++next[ids[s]];
    int32_t at = 0;
    for (int64_t e = 0; e < experts; ++e) {
        const int32_t count = next[e];
        if (count == 0) continue;
        g.experts[g.active] = static_cast<int32_t>(e);
        g.begin[g.active++] = next[e] = at;
        at += count;
    }
    g.begin[g.active] = at;
    for (int64_t row = 0, s = 0; row < rows; ++row)
        for (int64_t i = 0; i < top_k; ++i, ++s) {
            g.places[s] = next[ids[s]]++;
            g.rows[g.places[s]] = static_cast<int32_t>(row);
        }
    return g;
}

// Rows that weights are multiplied with: fp32, and quantised if some weight wants that.
struct Input {
    const float* rows;  // [.., columns]
    int64_t columns;
    a8::Panel panel;
};

// Most rows of a batch.
constexpr int64_t BATCH = std::min<int64_t>(a8::TOKENS, a16::TOKENS);

// Some rows of an input: those listed, or `count` from `first` on.
struct Batch {
    const Input* input;
    const int32_t* picks;
    int64_t first;
    int64_t count;
};

// Memory of one worker for products.
struct Scratch {
    char* a8;
    a16::Scratch a16;

    static Scratch of(Worker& worker) { return {worker.own<char>(a8::SCRATCH_BYTES), a16::Scratch::of(worker)}; }
};

// The products of linear's libraries, compiled there. Null where no expert needs them.
struct Products {
    void (*a8)(const Output&, int64_t, int64_t, const a8::Batch&, char*, float*, int64_t);
    void (*a16)(const Output&, int64_t, int64_t, const a16::Batch&, const a16::Scratch&, float*, int64_t);

    // out[i][n - begin] = row i of the batch times row n of the weight, begin <= n < end; rows `stride` apart.
    void multiply(const Weight& w, int64_t begin, int64_t end, const Batch& b, const Scratch& s, float* out,
                  int64_t stride) const {
        if (w.a8) return a8(w.output, begin, end, {&b.input->panel, b.picks, b.first, b.count}, s.a8, out, stride);
        const a16::Batch batch{b.input->rows, b.input->columns, b.picks, b.first, b.count};
        const int64_t most = a16::most_rows(b.count);
        for (; begin < end; begin += most, out += most)
            a16(w.output, begin, std::min(end, begin + most), batch, s.a16, out, stride);
    }
};

// What the chosen experts' weights need.
struct Needs {
    bool rotated[2] = {false, false};  // of gate_up, of down: whether some input is
    unsigned mask[2] = {0, 0};         // the groups that their inputs are quantised in

    void add(const Weight& w, int which) {
        rotated[which] |= w.signs != nullptr;
        if (w.a8) mask[which] |= a8::group_mask(w.output);
    }
};

}  // namespace ninfer::moe
