// Wide rows, such as logits over a vocabulary, in blocks of columns: the greatest of each block, and the columns that
// reach a level.
//
// A bitset says which columns count: bit i % 32 of word i / 32 for column i. Bits past the last column are ignored.
#pragma once

#include <algorithm>
#include <limits>

#include "simd.hpp"
#include "team.hpp"

namespace ninfer {

constexpr int64_t BLOCK = 256;      // columns of which the greatest is kept
constexpr int64_t BLOCK_GRAIN = 16; // blocks that a worker claims at once
constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr uint32_t ALL_LANES = (uint32_t)((1ull << LANES) - 1);

static inline int64_t blocks_of(int64_t columns) { return (columns + BLOCK - 1) / BLOCK; }

// Bit i is the sign of lane i.
static inline uint32_t lane_bits(i32 lanes) {
#if defined(NINFER_X86_512)
    return _mm512_movepi32_mask((__m512i)lanes);
#elif defined(NINFER_X86)
    return (uint32_t)_mm256_movemask_ps((__m256)lanes);
#else
    uint32_t bits = 0;
    for (int i = 0; i < LANES; ++i) bits |= (uint32_t)(lanes[i] < 0) << i;
    return bits;
#endif
}

// Lane i of `value` where bit i is set, else -infinity.
static inline f32 where_set(uint32_t bits, f32 value) {
    i32 own;
    for (int i = 0; i < LANES; ++i) own[i] = 1 << i;
    return (splati((int32_t)bits) & own) != 0 ? value : splat(-INFINITE);
}

struct Row {
    const float* values;
    const uint32_t* allowed;  // null: every column counts
    int64_t columns;

    // Which of the 32 columns from `at` on count; `at` is a multiple of 32.
    uint32_t word(int64_t at) const {
        const uint32_t bits = allowed == nullptr ? ~0u : allowed[at / 32];
        return columns - at >= 32 ? bits : bits & ((1u << (columns - at)) - 1);
    }
};

// Calls body(at, bits, v) for vectors of columns at, at + 1, ... of [begin, end) that together hold all that count:
// bit i of `bits` says whether column at + i counts, and lane i of v is its value, or -infinity where it does not.
// `begin` is a multiple of 32; `end` too, unless it is the row's end.
template <class Body>
static inline void each_vector(const Row& row, int64_t begin, int64_t end, Body body) {
    for (int64_t word = begin; word < end; word += 32) {
        const uint32_t bits = row.word(word);
        if (bits == ~0u) {
            for (int64_t at = word; at < word + 32; at += LANES) body(at, ALL_LANES, loadf(row.values + at));
            continue;
        }
        for (int part = 0; part < 32; part += LANES) {
            const uint32_t some = bits >> part & ALL_LANES;
            if (some == 0) continue;
            const int64_t at = word + part;
            const int here = row.columns - at < LANES ? static_cast<int>(row.columns - at) : LANES;
            body(at, some, where_set(some, here == LANES ? loadf(row.values + at) : load_head(row.values + at, here)));
        }
    }
}

// The greatest value of a block: NaN if any is NaN, -infinity if none counts.
static inline float block_greatest(const Row& row, int64_t block) {
    f32 best = splat(-INFINITE);
    i32 strange = {};
    const int64_t begin = block * BLOCK, end = std::min(begin + BLOCK, row.columns);
    each_vector(row, begin, end, [&](int64_t, uint32_t, f32 v) {
        best = vmax(v, best);
        strange |= v != v;
    });
    return lane_bits(strange) == 0 ? greatest(best) : std::numeric_limits<float>::quiet_NaN();
}

// The greatest of a row's blocks: NaN if any is NaN.
static inline float row_greatest(const float* blocks, int64_t count) {
    float best = -INFINITE;
    for (int64_t i = 0; i < count; ++i) {
        if (blocks[i] != blocks[i]) return blocks[i];
        best = blocks[i] > best ? blocks[i] : best;
    }
    return best;
}

// The first column that counts and holds `value`, given the greatest of each block; -1 if there is none.
static inline int64_t first_column(const Row& row, const float* blocks, float value) {
    for (int64_t block = 0; block < blocks_of(row.columns); ++block) {
        if (blocks[block] != value) continue;
        int64_t found = -1;
        const int64_t begin = block * BLOCK, end = std::min(begin + BLOCK, row.columns);
        each_vector(row, begin, end, [&](int64_t at, uint32_t bits, f32 v) {
            const uint32_t hits = lane_bits(v == value) & bits;
            if (found < 0 && hits != 0) found = at + __builtin_ctz(hits);
        });
        return found;
    }
    return -1;
}

// What a worker takes of its own memory while this lives is given back when it ends: rows take turns with it.
struct Turn {
    Worker& worker;
    const size_t used;

    explicit Turn(Worker& of) : worker(of), used(of.scratch_used) {}
    ~Turn() { worker.scratch_used = used; }
};

// ---- the greatest columns -------------------------------------------------------------------------------

struct Scored {
    double score;
    int64_t column;
};

// By falling score, ties by rising column. No score is NaN.
static inline bool ranks_before(const Scored& a, const Scored& b) {
    return a.score > b.score || (a.score == b.score && a.column < b.column);
}

// A level that at least `wanted` columns reach, given the greatest of each block: as many blocks do. -infinity where
// there are fewer blocks. `scratch` holds as many floats as there are blocks.
static inline float level_of(const float* blocks, int64_t count, int64_t wanted, float* scratch) {
    if (wanted > count) return -INFINITE;
    for (int64_t i = 0; i < count; ++i) scratch[i] = blocks[i] == blocks[i] ? blocks[i] : -INFINITE;
    std::nth_element(scratch, scratch + wanted - 1, scratch + count, [](float a, float b) { return a > b; });
    return scratch[wanted - 1];
}

// No more columns than this reach the level.
static inline int64_t most_that_reach(const float* blocks, int64_t count, float level) {
    int64_t some = 0;
    for (int64_t i = 0; i < count; ++i) some += !(blocks[i] < level);
    return some * BLOCK;
}

// Appends the columns that count and lie in [low, high], in rising order; returns the end. NaN counts as -infinity, and
// lies in every range.
static inline Scored* reach(const Row& row, const float* blocks, float low, float high, Scored* out) {
    for (int64_t block = 0; block < blocks_of(row.columns); ++block) {
        if (blocks[block] < low) continue;
        const int64_t begin = block * BLOCK, end = std::min(begin + BLOCK, row.columns);
        each_vector(row, begin, end, [&](int64_t at, uint32_t bits, f32 v) {
            for (uint32_t hits = ~lane_bits((v < low) | (v > high)) & bits; hits != 0; hits &= hits - 1) {
                const int64_t column = at + __builtin_ctz(hits);
                const float value = row.values[column];
                *out++ = {value == value ? value : -INFINITE, column};
            }
        });
    }
    return out;
}

// Brings the `wanted` first of [begin, end) by rank to the front, in no order; returns their end.
static inline Scored* keep_first(Scored* begin, Scored* end, int64_t wanted) {
    if (end - begin <= wanted) return end;
    std::nth_element(begin, begin + wanted, end, ranks_before);
    return begin + wanted;
}

}  // namespace ninfer
