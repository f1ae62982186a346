// log_softmax_gather and top_logprobs: see the contract in this folder.
//
// Logits are read from memory once. A span of columns gives its greatest value m and the sum of exp(x - m): fp32 within
// a block, fp64 over its blocks. A row's spans are merged in order, in fp64.
#include "columns.hpp"

using namespace ninfer;

namespace {

struct GatherArgs {
    const float* logits;
    const int64_t* targets;
    float* out;
    int64_t rows;
    int64_t columns;
};

struct TopArgs {
    const float* logits;
    int64_t* ids;
    float* values;
    int64_t rows;
    int64_t columns;
    int64_t k;
};

constexpr int64_t SPAN = 16;  // blocks, which stay in the first-level cache between the two looks at them

float sum_of_exponentials(const Row& row, int64_t block, float peak) {
    f32 total = {};
    const int64_t begin = block * BLOCK, end = std::min(begin + BLOCK, row.columns);
    each_vector(row, begin, end, [&](int64_t, uint32_t, f32 v) { total += vexp(v - peak); });
    return sum(total);
}

// What is known of one row: the greatest of each block, and of each span the sum relative to the span's greatest.
struct Summary {
    float* blocks;
    double* spans;
};

struct Summaries {
    double* spans;
    float* blocks;
    int64_t columns;

    Summary of(int64_t row) const {
        const int64_t count = blocks_of(columns);
        return {blocks + row * count, spans + row * spans_of(columns)};
    }

    static int64_t spans_of(int64_t columns) { return (blocks_of(columns) + SPAN - 1) / SPAN; }
};

void summarise(const Row& row, int64_t span, const Summary& summary) {
    const int64_t first = span * SPAN, last = std::min(first + SPAN, blocks_of(row.columns));
    for (int64_t block = first; block < last; ++block) summary.blocks[block] = block_greatest(row, block);
    const float peak = row_greatest(summary.blocks + first, last - first);
    double total = 0;
    if (peak != -INFINITE)
        for (int64_t block = first; block < last; ++block) total += sum_of_exponentials(row, block, peak);
    summary.spans[span] = total;
}

// Every worker calls this; all summaries are there when it returns.
Summaries summarise_all(const float* logits, int64_t rows, int64_t columns, Worker& worker) {
    const int64_t spans = Summaries::spans_of(columns);
    char* memory = worker.shared<char>(rows * (spans * sizeof(double) + blocks_of(columns) * sizeof(float)));
    double* sums = reinterpret_cast<double*>(memory);
    const Summaries all{sums, reinterpret_cast<float*>(sums + rows * spans), columns};
    worker.each(rows * spans, 1, [&](int64_t begin, int64_t) {
        const int64_t row = begin / spans;
        summarise({logits + row * columns, nullptr, columns}, begin % spans, all.of(row));
    });
    worker.barrier();
    return all;
}

// max x + log(sum of exp(x - max x)), in fp64.
double log_sum(const Summary& summary, int64_t columns) {
    const int64_t blocks = blocks_of(columns);
    const double peak = row_greatest(summary.blocks, blocks);
    double total = 0;
    for (int64_t span = 0; span < Summaries::spans_of(columns); ++span) {
        const int64_t first = span * SPAN;
        const double own = row_greatest(summary.blocks + first, std::min(SPAN, blocks - first));
        if (own != -INFINITE) total += summary.spans[span] * std::exp(own - peak);
    }
    return peak + std::log(total);
}

void log_softmax_gather(const GatherArgs& a, Worker& worker) {
    const Summaries all = summarise_all(a.logits, a.rows, a.columns, worker);
    worker.each(a.rows, 1, [&](int64_t row, int64_t) {
        const double chosen = a.logits[row * a.columns + a.targets[row]];
        a.out[row] = static_cast<float>(chosen - log_sum(all.of(row), a.columns));
    });
}

void top_of(const Row& row, const Summary& summary, const TopArgs& a, Worker& worker, int64_t* ids, float* values) {
    const Turn turn(worker);
    const int64_t blocks = blocks_of(row.columns);
    const float level = level_of(summary.blocks, blocks, a.k, worker.own<float>(blocks));
    Scored* begin = worker.own<Scored>(most_that_reach(summary.blocks, blocks, level));
    Scored* end = keep_first(begin, reach(row, summary.blocks, level, INFINITE, begin), a.k);
    std::sort(begin, end, ranks_before);
    const double norm = log_sum(summary, row.columns);
    for (int64_t i = 0; i < a.k; ++i) {
        ids[i] = begin[i].column;
        values[i] = static_cast<float>(begin[i].score - norm);
    }
}

void top_logprobs(const TopArgs& a, Worker& worker) {
    const Summaries all = summarise_all(a.logits, a.rows, a.columns, worker);
    worker.each(a.rows, 1, [&](int64_t row, int64_t) {
        const Row of{a.logits + row * a.columns, nullptr, a.columns};
        top_of(of, all.of(row), a, worker, a.ids + row * a.k, a.values + row * a.k);
    });
}

}  // namespace

NINFER_KERNEL(log_softmax_gather, GatherArgs)
NINFER_KERNEL(top_logprobs, TopArgs)
