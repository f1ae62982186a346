// moe_experts: see the contract in this folder.
//
// One launch in four steps, a barrier between two: inputs are quantised (or rotated); gate, up and SwiGLU, a claim being
// some columns of one expert; the products are quantised (or rotated); down, a claim being some columns of all experts,
// so that its worker can add the experts of each row in the row's order at once.
#include "moe/experts.hpp"

#include "mlp/swiglu.hpp"

using namespace ninfer;
using namespace ninfer::moe;

namespace {

constexpr int64_t LEAST_CLAIM = 16, MOST_CLAIM = 256;  // columns that a worker claims at once
constexpr int64_t CLAIMS_EACH = 16;                    // of a worker, where there are columns enough
constexpr int64_t RESULT_BYTES = 1 << 20;              // of a worker, for the columns of one claim

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
        const size_t rotated_bytes = needs.rotated[0] ? aligned(groups.slots * a.hidden * sizeof(float)) : 0;
        const size_t product_bytes = aligned(groups.slots * a.inner * sizeof(float));
        const size_t x_bytes = aligned(a8::Panel::bytes(inputs, a.hidden, needs.mask[0]));
        const size_t bytes = a8::Panel::bytes(groups.slots, a.inner, needs.mask[1]);
        char* memory = worker.shared<char>(product_bytes + rotated_bytes + x_bytes + bytes);
        float* products = reinterpret_cast<float*>(memory);
        float* rotated = reinterpret_cast<float*>(memory + product_bytes);
        char* panels = memory + product_bytes + rotated_bytes;
        const Input x{needs.rotated[0] ? rotated : a.x, a.hidden, {panels, inputs, a.hidden, needs.mask[0]}};
        const Input y{products, a.inner, {panels + x_bytes, groups.slots, a.inner, needs.mask[1]}};
        make_inputs(x, rotated);
        multiply_inner(x, products);
        prepare_products(y, products);
        multiply_down(y);
    }

   private:
    const Expert& expert(int64_t i) const { return a.experts[groups.experts[i]]; }

    static void rotate(const float* from, const float* signs, float* to, int64_t columns) {
        if (signs == nullptr) return (void)std::memmove(to, from, columns * sizeof(float));
        for (int64_t k = 0; k < columns; k += HADAMARD_BLOCK) rotate_block(from + k, signs + k, to + k);
    }

    // Rows of x, or one per place where experts rotate them.
    void make_inputs(const Input& x, float* rotated) {
        if (needs.mask[0] == 0 && !needs.rotated[0]) return;
        worker.each(needs.rotated[0] ? groups.slots : a.rows, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                if (needs.rotated[0]) {
                    const float* signs = expert(groups.owner(i)).gate_up.signs;
                    rotate(a.x + groups.rows[i] * a.hidden, signs, rotated + i * a.hidden, a.hidden);
                }
                x.panel.quantise(i, x.rows + i * a.hidden);
            }
        });
        worker.barrier();
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
                    for (int64_t t = 0; t < count; ++t)
                        swiglu(gate + t * width, up + t * width, products + (place + t) * a.inner + column, last - column);
                });
            }
        });
        worker.barrier();
    }

    void prepare_products(const Input& y, float* products) {
        if (needs.mask[1] == 0 && !needs.rotated[1]) return;
        worker.each(groups.slots, 4, [&](int64_t begin, int64_t end) {
            for (int64_t place = begin; place < end; ++place) {
                float* row = products + place * a.inner;
                const float* signs = needs.rotated[1] ? expert(groups.owner(place)).down.signs : nullptr;
                if (signs != nullptr) rotate(row, signs, row, a.inner);
                y.panel.quantise(place, row);
            }
        });
        worker.barrier();
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
                        a.products.multiply(expert(i).down, column, last, batch, scratch, results + place * width, width);
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
