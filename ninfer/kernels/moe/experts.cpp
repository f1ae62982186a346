// moe_experts: see the contract in this folder.
//
// One launch in four steps: inputs are quantised (or rotated); gate, up and SwiGLU, a claim being some columns of one
// expert; the products are quantised (or rotated); down, a claim being some columns of all experts, so that its worker
// can add the experts of each row in the row's order at once.
#include "moe/experts.hpp"

#include "mlp/swiglu.hpp"

using namespace ninfer;
using namespace ninfer::moe;

namespace {

constexpr int64_t LEAST_CLAIM = 16, MOST_CLAIM = 256;  // columns that a worker claims at once
constexpr int64_t CLAIMS_EACH = 8;                     // of a worker, where there are columns enough
constexpr int64_t RESULT_BYTES = 1 << 20;              // of a worker, for the columns of one claim
constexpr int64_t ALONE_ROWS = 8;                      // up to so many, each worker quantises all inputs for itself

struct Args {
    const float* x;        // [rows, hidden]
    const int64_t* ids;    // [rows, top_k]
    const float* weights;  // [rows, top_k]
    float* out;            // [rows, hidden]
    const Expert* experts;
    Products products;
    int64_t rows;
    int64_t top_k;
    int64_t count;  // of experts
    int64_t hidden;
    int64_t inner;  // columns of an expert's products
};

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

class Call {
   public:
    Call(const Args& args, Worker& team_worker)
        : a(args),
          worker(team_worker),
          groups(group(a.ids, a.rows, a.top_k, a.count, worker)),
          scratch(Scratch::of(worker)) {
        for (int64_t i = 0; i < groups.active; ++i) {
            needs.add(expert(i).gate_up, 0);
            needs.add(expert(i).down, 1);
        }
    }

    void run() {
        const int64_t inputs = needs.rotated[0] ? groups.slots : a.rows;
        const size_t product_bytes = aligned(groups.slots * a.inner * sizeof(float));
        const size_t rotated_bytes = needs.rotated[0] ? aligned(groups.slots * a.hidden * sizeof(float)) : 0;
        const size_t x_bytes = aligned(a8::Panel::bytes(inputs, a.hidden, needs.mask[0]));
        const size_t y_bytes = aligned(a8::Panel::bytes(groups.slots, a.inner, needs.mask[1]));
        const size_t panel_bytes = (alone(0) ? 0 : x_bytes) + (alone(1) ? 0 : y_bytes);
        char* memory = worker.shared<char>(product_bytes + rotated_bytes + panel_bytes);
        const auto take = [&](size_t bytes) { return memory += bytes, memory - bytes; };
        float* products = reinterpret_cast<float*>(take(product_bytes));
        float* rotated = reinterpret_cast<float*>(take(rotated_bytes));
        char* x_memory = alone(0) ? worker.own<char>(x_bytes) : take(x_bytes);
        char* y_memory = alone(1) ? worker.own<char>(y_bytes) : take(y_bytes);
        const Input x{needs.rotated[0] ? rotated : a.x, a.hidden, {x_memory, inputs, a.hidden, needs.mask[0]}};
        const Input y{products, a.inner, {y_memory, groups.slots, a.inner, needs.mask[1]}};
        make_inputs(x, rotated);
        multiply_inner(x, products);
        prepare_products(y, products);
        multiply_down(y);
    }

   private:
    const Expert& expert(int64_t i) const { return a.experts[groups.experts[i]]; }

    // Whether each worker quantises all inputs of gate_up (0) or down (1) for itself, which costs less than to wait.
    bool alone(int which) const { return a.rows <= ALONE_ROWS && !needs.rotated[which]; }

    template <class Body>
    void prepare(int which, int64_t count, Body body) {
        if (needs.mask[which] == 0 && !needs.rotated[which]) return;
        if (alone(which)) return body(0, count);
        worker.each(count, 1, body);
        worker.barrier();
    }

    static void rotate(const float* from, const float* signs, float* to, int64_t columns) {
        if (signs == nullptr) return (void)std::memmove(to, from, columns * sizeof(float));
        for (int64_t k = 0; k < columns; k += HADAMARD_BLOCK) rotate_block(from + k, signs + k, to + k);
    }

    // Rows of x, or one per place where experts rotate them.
    void make_inputs(const Input& x, float* rotated) {
        prepare(0, needs.rotated[0] ? groups.slots : a.rows, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                if (needs.rotated[0]) {
                    const float* signs = expert(groups.owner(i)).gate_up.signs;
                    rotate(a.x + groups.rows[i] * a.hidden, signs, rotated + i * a.hidden, a.hidden);
                }
                x.panel.quantise(i, x.rows + i * a.hidden);
            }
        });
    }

    // products [places, inner] = SiLU(gate x) * up x.
    void multiply_inner(const Input& x, float* products) {
        const int64_t width = claim_width(groups.active * a.inner, BATCH);
        const int64_t claims = (a.inner + width - 1) / width;
        float *gate = worker.own<float>(BATCH * width), *up = worker.own<float>(BATCH * width);
        worker.each(groups.active * claims, 1, [&](int64_t begin, int64_t end) {
            for (int64_t claim = begin; claim < end; ++claim) {
                const int64_t i = claim / claims, column = claim % claims * width;
                const int64_t last = std::min(column + width, a.inner);
                const Weight& w = expert(i).gate_up;
                by_block(i, [&](int64_t place, int64_t count) {
                    const bool apart = needs.rotated[0];
                    const Batch batch{&x, apart ? nullptr : groups.rows + place, apart ? place : 0, count};
                    a.products.multiply(w, column, last, batch, scratch, gate, width);
                    a.products.multiply(w, a.inner + column, a.inner + last, batch, scratch, up, width);
                    float* out = products + place * a.inner + column;
                    for (int64_t t = 0; t < count; ++t)
                        swiglu(gate + t * width, up + t * width, out + t * a.inner, last - column);
                });
            }
        });
        worker.barrier();
    }

    void prepare_products(const Input& y, float* products) {
        prepare(1, groups.slots, [&](int64_t begin, int64_t end) {
            for (int64_t place = begin; place < end; ++place) {
                float* row = products + place * a.inner;
                const float* signs = needs.rotated[1] ? expert(groups.owner(place)).down.signs : nullptr;
                if (signs != nullptr) rotate(row, signs, row, a.inner);
                y.panel.quantise(place, row);
            }
        });
    }

    void multiply_down(const Input& y) {
        const int64_t width = claim_width(a.hidden, groups.slots);
        float* results = worker.own<float>(groups.slots * width);
        worker.each((a.hidden + width - 1) / width, 1, [&](int64_t begin, int64_t end) {
            for (int64_t claim = begin; claim < end; ++claim) {
                const int64_t column = claim * width, last = std::min(column + width, a.hidden);
                for (int64_t i = 0; i < groups.active; ++i)
                    by_block(i, [&](int64_t place, int64_t count) {
                        const Batch batch{&y, nullptr, place, count};
                        float* to = results + place * width;
                        a.products.multiply(expert(i).down, column, last, batch, scratch, to, width);
                    });
                for (int64_t row = 0; row < a.rows; ++row) add_in_order(row, results, width, column, last - column);
            }
        });
    }

    // Columns that a worker claims at once: as many neighbours as leave every worker some claims of all `columns`, and
    // keep the products of `rows` rows near.
    int64_t claim_width(int64_t columns, int64_t rows) const {
        int64_t width = MOST_CLAIM;
        while (width > LEAST_CLAIM && (width * CLAIMS_EACH * worker.size > columns ||
                                       rows * width * static_cast<int64_t>(sizeof(float)) > RESULT_BYTES))
            width /= 2;
        return width;
    }

    // out[row] = sum over slots s, rising, of weights[row][s] * result of s; product and sum are rounded apart.
    void add_in_order(int64_t row, const float* results, int64_t width, int64_t column, int64_t count) {
        const int32_t* places = groups.places + row * a.top_k;
        const float* weights = a.weights + row * a.top_k;
        float* out = a.out + row * a.hidden + column;
        for (int64_t c = 0; c < count; c += LANES) {
            f32 total = loadf(results + places[0] * width + c) * weights[0];
            for (int64_t s = 1; s < a.top_k; ++s) total += loadf(results + places[s] * width + c) * weights[s];
            store_head(out + c, total, static_cast<int>(std::min<int64_t>(LANES, count - c)));
        }
    }

    // Calls body(place, count) for the places of an expert, so many at once as a product takes.
    template <class Body>
    void by_block(int64_t i, Body body) {
        for (int64_t place = groups.begin[i]; place < groups.begin[i + 1]; place += BATCH)
            body(place, std::min<int64_t>(BATCH, groups.begin[i + 1] - place));
    }

    const Args& a;
    Worker& worker;
    Groups groups;
    Scratch scratch;
    Needs needs;
};

void moe_experts(const Args& a, Worker& worker) {
    if (a.rows > 0) Call(a, worker).run();
}

}  // namespace

NINFER_KERNEL(moe_experts, Args)
