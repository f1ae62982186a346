// gdn, gdn_fold: see the contract in this folder.
//
// The rows of a head's state do not depend on one another, so a unit of work is a block of them, small enough to stay in
// the L1 cache, over all tokens of one sequence. Per token it makes two passes over the block: S k for all rows, then
// S <- e^g S + u k'^T and S q. Norms and decays of all tokens are computed before.
#include "gdn/sums.hpp"
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr float kEps = 1e-6f;
constexpr int64_t kBlockElements = 4096;  // of the state: 16 KB
constexpr int kMaxRows = 64;
constexpr int kWritten = LANES / 2;  // rows whose sums stay in registers together with their corrections

struct Args {
    const float* qkv;
    const float* g;
    const float* beta;
    float* state;
    float* out;
    const int32_t* slots;     // [2, batch]: source or -1, target
    const int32_t* segments;  // [3, batch]: first token, count, start
    int64_t batch;
    int64_t tokens;
    int64_t width;
    int64_t value_heads;
    int64_t dv;
    int64_t dk;

    int64_t key_heads() const { return (width - value_heads * dv) / (2 * dk); }
};

// What tokens have in common over their heads' blocks, each [T, heads].
struct Factors {
    float* key;    // 1 / sqrt(sum k^2 + eps)
    float* query;  // 1 / sqrt(sum q^2 + eps) / sqrt(dk)
    float* decay;  // e^g
};

// The first `count` elements of a row at column c, LANES or fewer.
inline f32 load_part(const float* from, int count) { return count == LANES ? loadf(from) : load_head(from, count); }
inline void store_part(float* to, f32 v, int count) { count == LANES ? store(to, v) : store_head(to, v, count); }

float inverse_norm(const float* x, int64_t dk) {
    f32 squares = {};
    const int64_t whole = dk / LANES * LANES;
    for (int64_t c = 0; c < whole; c += LANES) squares = fma(loadf(x + c), loadf(x + c), squares);
    const f32 tail = load_head(x + whole, static_cast<int>(dk - whole));
    return 1.0f / std::sqrt(sum(fma(tail, tail, squares)) + kEps);
}

template <bool READ>
void prepare(const Args& a, const Factors& f, Worker& worker) {
    const int64_t heads = a.key_heads(), group = a.value_heads / heads;
    const float root = std::sqrt(static_cast<float>(a.dk));
    worker.each(a.tokens * heads, 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const float* query = a.qkv + i / heads * a.width + i % heads * a.dk;
            f.key[i] = inverse_norm(query + heads * a.dk, a.dk);
            if (READ) f.query[i] = inverse_norm(query, a.dk) / root;
            for (int64_t j = i * group; j < (i + 1) * group; ++j) f.decay[j] = std::exp(a.g[j]);
        }
    });
}

// Lanes of the sums over k of rows[r][k] * key[k], for R rows.
template <int R>
inline void read_columns(const float* rows, int64_t dk, const float* key, int64_t c, int count, f32 (&sums)[R]) {
    const f32 keys = load_part(key + c, count);
    for (int r = 0; r < R; ++r) sums[r] = fma(load_part(rows + r * dk + c, count), keys, sums[r]);
}

template <int R>
inline void read_rows(const float* rows, int64_t dk, const float* key, f32 (&sums)[R]) {
    const int64_t whole = dk / LANES * LANES;
    for (int r = 0; r < R; ++r) sums[r] = f32{};
    for (int64_t c = 0; c < whole; c += LANES) read_columns<R>(rows, dk, key, c, LANES, sums);
    if (whole < dk) read_columns<R>(rows, dk, key, whole, static_cast<int>(dk - whole), sums);
}

struct Step {
    const float* from;
    float* to;
    const float* key;
    const float* query;
    int64_t dk;
    float decay;
};

// to = decay * from + correction * key for R rows, at one column of vectors; adds to the lanes of the sums over k of
// to[r][k] * query[k]. Everything comes by value: the compiler would load it again after every store.
template <int R, bool READ>
inline void write_columns(
    Step s, f32 decay, const f32 (&corrections)[R], int64_t c, int count, f32 (&sums)[R]) {
    const f32 keys = load_part(s.key + c, count);
    const f32 queries = READ ? load_part(s.query + c, count) : f32{};
    for (int r = 0; r < R; ++r) {
        const int64_t at = r * s.dk + c;
        const f32 value = fma(corrections[r], keys, load_part(s.from + at, count) * decay);
        store_part(s.to + at, value, count);
        if (READ) sums[r] = fma(value, queries, sums[r]);
    }
}

template <int R, bool READ>
inline void write_rows(Step s, int64_t row, const float* corrections, f32* sums) {
    const int64_t whole = s.dk / LANES * LANES;
    const f32 decay = splat(s.decay);
    f32 factors[R], totals[R];
    for (int r = 0; r < R; ++r) factors[r] = splat(corrections[row + r]);
    for (int r = 0; r < R; ++r) totals[r] = f32{};
    s.from += row * s.dk;
    s.to += row * s.dk;
    for (int64_t c = 0; c < whole; c += LANES) write_columns<R, READ>(s, decay, factors, c, LANES, totals);
    if (whole < s.dk) write_columns<R, READ>(s, decay, factors, whole, static_cast<int>(s.dk - whole), totals);
    for (int r = 0; r < R; ++r) sums[r] = totals[r];
}

// One token over a block of `rows` rows. `value` and `out` are the block's parts of the token's.
template <bool READ>
void advance(const Step& s, int rows, const float* value, float beta, float key_norm, float query_norm, float* out) {
    float corrections[kMaxRows];  // times the key's inverse norm, so that the key itself can be the other factor
    const float read_factor = s.decay * key_norm, write_factor = beta * key_norm;
    int row = 0;
    for (; row + LANES <= rows; row += LANES) {
        f32 lanes[LANES];
        read_rows<LANES>(s.from + row * s.dk, s.dk, s.key, lanes);
        store(corrections + row, (loadf(value + row) - sums(lanes) * read_factor) * write_factor);
    }
    for (; row < rows; ++row) {
        f32 lanes[1];
        read_rows<1>(s.from + row * s.dk, s.dk, s.key, lanes);
        corrections[row] = (value[row] - sum(lanes[0]) * read_factor) * write_factor;
    }
    for (row = 0; row + LANES <= rows; row += LANES) {
        f32 lanes[LANES];
        for (int r = 0; r < LANES; r += kWritten) write_rows<kWritten, READ>(s, row + r, corrections, lanes + r);
        if (READ) store(out + row, sums(lanes) * query_norm);
    }
    for (; row < rows; ++row) {
        f32 lanes[1];
        write_rows<1, READ>(s, row, corrections, lanes);
        if (READ) out[row] = sum(lanes[0]) * query_norm;
    }
}

// Rows [first, first + rows) of value head `head` over all tokens of sequence b.
template <bool READ>
void run_block(const Args& a, const Factors& f, int64_t b, int64_t head, int64_t first, int rows) {
    const int64_t keys = a.key_heads(), key_head = head / (a.value_heads / keys);
    const int64_t place = (head * a.dv + first) * a.dk, slot_size = a.value_heads * a.dv * a.dk;
    const int32_t source = a.slots[b], target = a.slots[a.batch + b];
    Step s;
    s.dk = a.dk;
    s.to = a.state + target * slot_size + place;
    s.from = source < 0 ? s.to : a.state + source * slot_size + place;
    if (source < 0) std::memset(s.to, 0, sizeof(float) * rows * a.dk);
    const int64_t begin = a.segments[b], end = begin + a.segments[a.batch + b];
    for (int64_t t = begin; t < end; ++t) {
        const float* token = a.qkv + t * a.width;
        const int64_t value = head * a.dv + first, i = t * keys + key_head, j = t * a.value_heads + head;
        s.query = token + key_head * a.dk;
        s.key = s.query + keys * a.dk;
        s.decay = f.decay[j];
        float* out = READ ? a.out + t * a.value_heads * a.dv + value : nullptr;
        advance<READ>(s, rows, token + 2 * keys * a.dk + value, a.beta[j], f.key[i], READ ? f.query[i] : 0.0f, out);
        s.from = s.to;
    }
}

// How many rows of a head's state make a block: a multiple of LANES.
int64_t block_rows(const Args& a) {
    const int64_t fitting = kBlockElements / a.dk / LANES * LANES;
    return fitting < LANES ? LANES : fitting > kMaxRows ? kMaxRows : fitting;
}

template <bool READ>
void run(const Args& a, Worker& worker) {
    const int64_t keys = a.tokens * a.key_heads(), values = a.tokens * a.value_heads;
    float* numbers = worker.shared<float>(2 * keys + values);
    const Factors f = {numbers, numbers + keys, numbers + 2 * keys};
    prepare<READ>(a, f, worker);
    worker.barrier();
    const int64_t size = block_rows(a), blocks = (a.dv + size - 1) / size;
    worker.each(a.batch * a.value_heads * blocks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t first = i % blocks * size, head = i / blocks % a.value_heads;
            const int rows = static_cast<int>(first + size < a.dv ? size : a.dv - first);
            run_block<READ>(a, f, i / blocks / a.value_heads, head, first, rows);
        }
    });
}

void gdn(const Args& a, Worker& worker) { run<true>(a, worker); }

void gdn_fold(const Args& a, Worker& worker) { run<false>(a, worker); }

}  // namespace

NINFER_KERNEL(gdn, Args)
NINFER_KERNEL(gdn_fold, Args)
