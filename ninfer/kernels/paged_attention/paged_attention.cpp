// paged_attention: see the contract in this folder.
//
// Queries of one row that share a KV head are taken a tile at a time: tokens of the row times the query heads of the
// group. A tile visits the pages before it in order and keeps a running softmax (greatest score, mass, weighted sum)
// per query. Every 8 pages of absolute position are a span; a span begins anew, and spans are merged in order. So a
// query's bits follow from its own keys, and spans may be attended to by different workers.
#include "kv_cache/rows.hpp"
#include "paged_attention/products.hpp"
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

constexpr int64_t SPAN_PAGES = 8;
constexpr int64_t TILE = 48;        // queries of a tile, unless one token has more
constexpr int64_t KEY_BLOCK = 16;   // keys decoded at once: 16 KB of them at a head of 256
constexpr int64_t MOST_PARTIAL = 1 << 24;  // floats of partial results that a call may use
constexpr int64_t TILES_PER_WORKER = 4;    // with fewer, spans are divided too
constexpr float FLOOR = -3.0e38f;   // the greatest of no scores

struct Args {
    const float* q;           // [T, heads, dim]
    float* out;               // [T, heads, dim]
    const int32_t* segments;  // [3, batch]: first token, tokens, position of the first
    const int32_t* tables;    // [batch, width]
    Plane keys;
    Plane values;
    int64_t batch;
    int64_t width;
    int64_t heads;
    int64_t kv_heads;
    int64_t dim;
    float scale;
    float unused;
};

// Consecutive tokens of one row.
struct Tile {
    const int32_t* table;
    int64_t token;     // the first one, among all of the call
    int64_t tokens;
    int64_t position;  // of the first one
    int64_t last() const { return position + tokens - 1; }
    int64_t spans() const { return last() / (PAGE * SPAN_PAGES) + 1; }
};

// Of n queries: greatest score, sum of weights, weighted sum of values [n, dim].
struct Softmax {
    float* best;
    float* mass;
    float* sums;
};

struct Scratch {
    float* queries;  // [n, dim], scaled
    float* scores;   // [n, 64], then weights
    float* fades;    // [n]
    float* block;    // decoded keys or values
    Softmax span;
    Softmax total;
};

int64_t group_of(const Args& a) { return a.heads / a.kv_heads; }
int64_t tokens_of_tile(const Args& a) { return group_of(a) < TILE ? TILE / group_of(a) : 1; }
int64_t queries_of_tile(const Args& a) { return tokens_of_tile(a) * group_of(a); }
int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t tiles_of_row(const Args& a, int64_t row) {
    return (a.segments[a.batch + row] + tokens_of_tile(a) - 1) / tokens_of_tile(a);
}

Tile tile_at(const Args& a, int64_t index) {
    int64_t row = 0;
    for (; index >= tiles_of_row(a, row); ++row) index -= tiles_of_row(a, row);
    const int64_t skipped = index * tokens_of_tile(a);
    const int64_t tokens = least(tokens_of_tile(a), a.segments[a.batch + row] - skipped);
    return {a.tables + row * a.width, a.segments[row] + skipped, tokens, a.segments[2 * a.batch + row] + skipped};
}

Softmax take_softmax(Worker& worker, int64_t queries, int64_t dim) {
    return {worker.own<float>(queries), worker.own<float>(queries), worker.own<float>(queries * dim)};
}

Scratch take_scratch(const Args& a, Worker& worker) {
    const int64_t queries = queries_of_tile(a), columns = a.dim * KEY_BLOCK;
    Scratch s = {};
    s.queries = worker.own<float>(queries * a.dim);
    s.scores = worker.own<float>(queries * PAGE);
    s.fades = worker.own<float>(queries);
    s.block = worker.own<float>(columns > PAGE * COLUMN_BLOCK ? columns : PAGE * COLUMN_BLOCK);
    return s;
}

// ---- one page -------------------------------------------------------------------------------------------

// Calls body(first query, queries, keys) for queries of the tile that see the same keys of the page at `base`: all of
// them, or those of one token. Keys after a token are never among them.
template <class Body>
void each_part(const Args& a, const Tile& tile, int64_t base, Body body) {
    const int64_t group = group_of(a);
    if (tile.position + 1 >= base + PAGE) return body(0, tile.tokens * group, PAGE);
    for (int64_t i = tile.position < base ? base - tile.position : 0; i < tile.tokens; ++i)
        body(i * group, group, least(PAGE, tile.position + i + 1 - base));
}

void score(const Args& a, const Tile& tile, int64_t base, int64_t place, const Scratch& s) {
    const int64_t keys = least(PAGE, tile.last() + 1 - base);
    for (int64_t begin = 0; begin < keys; begin += KEY_BLOCK) {
        decode_rows(a.keys, place + begin, KEY_BLOCK, 0, a.dim, s.block);
        each_part(a, tile, base, [&](int64_t first, int64_t queries, int64_t seen) {
            if (seen > begin) {
                const int64_t count = least(KEY_BLOCK, seen - begin);
                multiply_keys(s.queries + first * a.dim, queries, s.block, count, a.dim, s.scores + first * PAGE + begin);
            }
        });
    }
}

// What weights relative to `best` are to be multiplied with to be relative to `risen`; 0 if `best` is FLOOR.
float fade_of(float best, float risen) { return vexp(splat(best - risen))[0]; }

// Scores of the first `keys` columns to weights, 0 beyond, relative to the greatest score so far.
void weigh(float* scores, int64_t keys, float& best, float& mass, float& fade) {
    f32 top = splat(best);
    for (int i = 0; i < PAGE; i += LANES) {
        const f32 s = mask_after(loadf(scores + i), static_cast<int>(keys) - i);
        store(scores + i, s);
        top = vmax(s, top);
    }
    const float risen = greatest(top);
    f32 weights = {};
    for (int i = 0; i < PAGE; i += LANES) {
        const f32 w = vexp(loadf(scores + i) - risen);
        store(scores + i, w);
        weights += w;
    }
    fade = fade_of(best, risen);
    mass = mass * fade + sum(weights);
    best = risen;
}

void attend_page(const Args& a, const Tile& tile, int64_t head, int64_t page, const Scratch& s) {
    const int64_t base = page * PAGE, place = (tile.table[page] * a.kv_heads + head) * PAGE;
    score(a, tile, base, place, s);
    each_part(a, tile, base, [&](int64_t first, int64_t queries, int64_t seen) {
        for (int64_t i = first; i < first + queries; ++i)
            weigh(s.scores + i * PAGE, seen, s.span.best[i], s.span.mass[i], s.fades[i]);
    });
    const int64_t keys = least(PAGE, tile.last() + 1 - base);
    for (int64_t column = 0; column < a.dim; column += COLUMN_BLOCK) {
        decode_rows(a.values, place, keys, column, COLUMN_BLOCK, s.block);
        each_part(a, tile, base, [&](int64_t first, int64_t queries, int64_t seen) {
            add_values(s.scores + first * PAGE, s.fades + first, queries, s.block, seen, a.dim,
                       s.span.sums + first * a.dim + column);
        });
    }
}

// ---- tiles and spans ------------------------------------------------------------------------------------

void load_queries(const Args& a, const Tile& tile, int64_t head, float* to) {
    const int64_t width = group_of(a) * a.dim;
    for (int64_t i = 0; i < tile.tokens; ++i) {
        const float* from = a.q + ((tile.token + i) * a.heads + head * group_of(a)) * a.dim;
        for (int64_t d = 0; d < width; d += LANES) store(to + i * width + d, loadf(from + d) * a.scale);
    }
}

void clear(const Softmax& s, int64_t queries, int64_t dim) {
    for (int64_t i = 0; i < queries; ++i) s.best[i] = FLOOR;
    std::memset(s.mass, 0, sizeof(float) * queries);
    std::memset(s.sums, 0, sizeof(float) * queries * dim);
}

void attend_span(const Args& a, const Tile& tile, int64_t head, int64_t span, const Scratch& s) {
    clear(s.span, tile.tokens * group_of(a), a.dim);
    const int64_t end = least((span + 1) * SPAN_PAGES, tile.last() / PAGE + 1);
    for (int64_t page = span * SPAN_PAGES; page < end; ++page) attend_page(a, tile, head, page, s);
}

// Query i of `span` into query j of `total`. Where either has no keys, the other's numbers stay as they are.
void merge(const Softmax& total, int64_t j, const Softmax& span, int64_t i, int64_t dim) {
    const float risen = span.best[i] > total.best[j] ? span.best[i] : total.best[j];
    const float old_fade = fade_of(total.best[j], risen), new_fade = fade_of(span.best[i], risen);
    total.best[j] = risen;
    total.mass[j] = total.mass[j] * old_fade + span.mass[i] * new_fade;
    float* sums = total.sums + j * dim;
    for (int64_t d = 0; d < dim; d += LANES)
        store(sums + d, fma(loadf(sums + d), splat(old_fade), loadf(span.sums + i * dim + d) * new_fade));
}

// Query i of the tile from query j of `total`. Adding +0 hides the sign of zeros, which keys of weight zero may turn.
void write_out(const Args& a, const Tile& tile, int64_t head, int64_t i, const Softmax& total, int64_t j) {
    const int64_t group = group_of(a);
    float* out = a.out + ((tile.token + i / group) * a.heads + head * group + i % group) * a.dim;
    for (int64_t d = 0; d < a.dim; d += LANES)
        store(out + d, loadf(total.sums + j * a.dim + d) / total.mass[j] + 0.0f);
}

// ---- the division of work -------------------------------------------------------------------------------

// A worker takes a tile with all its spans. Later tiles have more keys, so they come first.
void attend_whole_tiles(const Args& a, Worker& worker, int64_t tiles) {
    Scratch s = take_scratch(a, worker);
    s.span = take_softmax(worker, queries_of_tile(a), a.dim);
    s.total = take_softmax(worker, queries_of_tile(a), a.dim);
    worker.each(tiles * a.kv_heads, 1, [&](int64_t unit, int64_t) {
        const Tile tile = tile_at(a, tiles - 1 - unit / a.kv_heads);
        const int64_t head = unit % a.kv_heads, queries = tile.tokens * group_of(a);
        load_queries(a, tile, head, s.queries);
        clear(s.total, queries, a.dim);
        for (int64_t span = 0; span < tile.spans(); ++span) {
            attend_span(a, tile, head, span, s);
            for (int64_t i = 0; i < queries; ++i) merge(s.total, i, s.span, i, a.dim);
        }
        for (int64_t i = 0; i < queries; ++i) write_out(a, tile, head, i, s.total, i);
    });
}

// A worker takes one span of a tile; then, when all are there, one query with all its spans.
void attend_spans(const Args& a, Worker& worker, int64_t tiles, int64_t spans) {
    Scratch s = take_scratch(a, worker);
    const int64_t queries = queries_of_tile(a), units = tiles * a.kv_heads * spans, size = queries * (a.dim + 2);
    float* partial = worker.shared<float>(units * size);
    const auto partial_of = [&](int64_t unit) {
        float* at = partial + unit * size;
        return Softmax{at + queries * a.dim, at + queries * (a.dim + 1), at};
    };
    worker.each(units, 1, [&](int64_t unit, int64_t) {
        const Tile tile = tile_at(a, unit / (spans * a.kv_heads));
        const int64_t head = unit / spans % a.kv_heads, span = unit % spans;
        if (span >= tile.spans()) return;
        load_queries(a, tile, head, s.queries);
        s.span = partial_of(unit);
        attend_span(a, tile, head, span, s);
    });
    worker.barrier();
    s.total = take_softmax(worker, 1, a.dim);
    worker.each(tiles * a.kv_heads * queries, 1, [&](int64_t index, int64_t) {
        const int64_t first = index / queries * spans, i = index % queries, head = index / queries % a.kv_heads;
        const Tile tile = tile_at(a, index / queries / a.kv_heads);
        if (i >= tile.tokens * group_of(a)) return;
        clear(s.total, 1, a.dim);
        for (int64_t span = 0; span < tile.spans(); ++span) merge(s.total, 0, partial_of(first + span), i, a.dim);
        write_out(a, tile, head, i, s.total, 0);
    });
}

void paged_attention(const Args& a, Worker& worker) {
    int64_t tiles = 0, spans = 0;
    for (int64_t row = 0; row < a.batch; ++row) {
        tiles += tiles_of_row(a, row);
        const int64_t last = tile_at(a, tiles - 1).spans();
        if (last > spans) spans = last;
    }
    const bool few = worker.size > 1 && tiles * a.kv_heads < TILES_PER_WORKER * worker.size;
    const bool small = tiles * a.kv_heads * spans * queries_of_tile(a) * (a.dim + 2) <= MOST_PARTIAL;
    if (few && small && spans > 1)
        attend_spans(a, worker, tiles, spans);
    else
        attend_whole_tiles(a, worker, tiles);
}

}  // namespace

NINFER_KERNEL(paged_attention, Args)
