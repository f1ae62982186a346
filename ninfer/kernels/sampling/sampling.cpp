// sample: see the contract in this folder. Columns of all rows are divided among the workers for what looks at every
// column; what follows is one worker's, row by row.
#include "sampling/draw.hpp"

using namespace ninfer;

namespace {

struct Args {
    const float* logits;
    const Parameters* const* parameters;  // one per row
    const uint64_t* positions;
    int64_t* out;     // written when every row has an answer
    int32_t* status;  // one `Status` per row
    int64_t rows;
    int64_t columns;
};

bool is_drawn_by_mass(const Parameters& p, int64_t columns) { return p.temperature > 0 && !is_listed(p, columns); }

// The memory that workers share.
struct Shared {
    State* states;
    Scored* penalised;
    double* masses;
    float* blocks;
    uint32_t* fresh;
    int64_t by_mass = 0;  // rows
    int64_t most_penalised = 0;

    Shared(const Args& a, Worker& worker) {
        int64_t penalising = 0;
        for (int64_t row = 0; row < a.rows; ++row) {
            most_penalised += a.parameters[row]->most_penalised();
            penalising += a.parameters[row]->most_penalised() > 0;
            by_mass += is_drawn_by_mass(*a.parameters[row], a.columns);
        }
        const int64_t blocks_count = a.rows * blocks_of(a.columns), words = (a.columns + 31) / 32;
        const int64_t masses_count = by_mass * spans_of(a.columns) * WITH_REST;
        char* at = worker.shared<char>(a.rows * sizeof(State) + most_penalised * sizeof(Scored) +
                                       masses_count * sizeof(double) + (blocks_count + penalising * words) * 4);
        states = carve<State>(at, a.rows);
        penalised = carve<Scored>(at, most_penalised);
        masses = carve<double>(at, masses_count);
        blocks = carve<float>(at, blocks_count);
        fresh = carve<uint32_t>(at, penalising * words);
    }

    template <class T>
    static T* carve(char*& at, int64_t count) {
        T* const here = reinterpret_cast<T*>(at);
        at += count * sizeof(T);
        return here;
    }
};

// Gives every row its part of the shared memory. One worker's.
void open_rows(const Args& a, const Shared& shared) {
    Scored* penalised = shared.penalised;
    double* masses = shared.masses;
    uint32_t* fresh = shared.fresh;
    for (int64_t row = 0; row < a.rows; ++row) {
        const Parameters& p = *a.parameters[row];
        State& state = shared.states[row];
        state.parameters = &p;
        state.row = {a.logits + row * a.columns, nullptr, a.columns};
        state.blocks = shared.blocks + row * blocks_of(a.columns);
        state.masses = masses;
        state.u = uniform(p.seed, a.positions[row], static_cast<uint32_t>(p.purpose));
        penalise(state, fresh, penalised);
        penalised += p.most_penalised();
        if (p.most_penalised() > 0) fresh += (a.columns + 31) / 32;
        if (is_drawn_by_mass(p, a.columns)) masses += spans_of(a.columns) * WITH_REST;
    }
}

void choose_without_masses(State& state, Worker& worker) {
    const Parameters& p = *state.parameters;
    find_best(state);
    if (state.status != CHOSEN) return;
    if (p.temperature <= 0) state.token = greedy(state);
    else if (is_listed(p, state.row.columns)) state.token = draw_from_list(state, worker);
}

void add_up_all(const Args& a, const Shared& shared, Worker& worker) {
    const int64_t spans = spans_of(a.columns);
    worker.barrier();
    worker.each(a.rows * spans, 1, [&](int64_t i, int64_t) {
        const State& state = shared.states[i / spans];
        if (state.status == CHOSEN && is_drawn_by_mass(*state.parameters, a.columns)) add_up(state, i % spans);
    });
    worker.barrier();
    worker.each(a.rows, 1, [&](int64_t row, int64_t) {
        State& state = shared.states[row];
        if (state.status == CHOSEN && is_drawn_by_mass(*state.parameters, a.columns))
            state.token = draw_by_mass(state, worker);
    });
}

// All rows or none. One worker's.
void close_rows(const Args& a, const Shared& shared) {
    bool all = true;
    for (int64_t row = 0; row < a.rows; ++row) {
        a.status[row] = shared.states[row].status;
        all = all && a.status[row] == CHOSEN;
    }
    if (!all) return;
    for (int64_t row = 0; row < a.rows; ++row) a.out[row] = shared.states[row].token;
}

void sample(const Args& a, Worker& worker) {
    const int64_t blocks = blocks_of(a.columns);
    const Shared shared(a, worker);
    if (worker.rank == 0) open_rows(a, shared);
    worker.barrier();
    worker.each(a.rows * blocks, BLOCK_GRAIN, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) shared.blocks[i] = block_greatest(shared.states[i / blocks].row, i % blocks);
    });
    worker.barrier();
    worker.each(a.rows, 1, [&](int64_t row, int64_t) { choose_without_masses(shared.states[row], worker); });
    if (shared.by_mass > 0) add_up_all(a, shared, worker);
    worker.barrier();
    if (worker.rank == 0) close_rows(a, shared);
}

}  // namespace

NINFER_KERNEL(sample, Args)
