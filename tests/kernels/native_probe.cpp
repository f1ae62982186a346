// Kernels that show what the loader, the team and simd.hpp do; used by test_native.py and test_simd.py.
#include "simd.hpp"
#include "team.hpp"

using namespace ninfer;

namespace {

struct WaveArgs {
    int64_t* values;  // [2, count]
    int64_t count;
    int64_t grain;
    int64_t rounds;
};

// Every round each element takes its far neighbour's value of the round before, plus one. After an even number of rounds
// the first half holds that number everywhere, if every element was computed and every barrier held.
void wave(const WaveArgs& a, Worker& worker) {
    for (int64_t round = 0; round < a.rounds; ++round) {
        const int64_t* from = a.values + (round % 2) * a.count;
        int64_t* to = a.values + (1 - round % 2) * a.count;
        worker.each(a.count, a.grain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) to[i] = from[(i + a.count / 2 + 1) % a.count] + 1;
        });
        worker.barrier();
    }
}

struct CountArgs {
    int32_t* visits;  // [count]
    int32_t* sizes;   // [1]: threads of the team
    int64_t count;
    int64_t grain;
};

void count(const CountArgs& a, Worker& worker) {
    if (worker.rank == 0) *a.sizes = worker.size;
    worker.each(a.count, a.grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++a.visits[i];
    });
}

struct ScratchArgs {
    int64_t* faults;
    int64_t own;     // bytes of the larger of two own blocks
    int64_t shared;  // elements
};

void fault_unless(bool good, int64_t* faults) {
    if (!good) __atomic_fetch_add(faults, 1, __ATOMIC_RELAXED);
}

bool aligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 64 == 0; }

void scratch(const ScratchArgs& a, Worker& worker) {
    int32_t* small = worker.own<int32_t>(3);
    char* large = worker.own<char>(a.own);
    int64_t* all = worker.shared<int64_t>(a.shared);
    fault_unless(aligned(small) && aligned(large) && aligned(all), a.faults);
    for (int i = 0; i < 3; ++i) small[i] = worker.rank * 3 + i;
    std::memset(large, worker.rank + 1, a.own);
    worker.each(a.shared, 5, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) all[i] = i * i;
    });
    worker.barrier();
    for (int i = 0; i < 3; ++i) fault_unless(small[i] == worker.rank * 3 + i, a.faults);
    for (int64_t i = 0; i < a.own; ++i) fault_unless(large[i] == worker.rank + 1, a.faults);
    for (int64_t i = 0; i < a.shared; ++i) fault_unless(all[i] == i * i, a.faults);
}

struct VectorArgs {
    const void* in;   // `count` vectors of each operand, one operand after another
    const void* more;
    const void* last;
    void* out;
    int64_t count;
    int64_t what;
};

template <class In, class Function>
void map(const VectorArgs& a, Function function) {
    const In* in = static_cast<const In*>(a.in);
    for (int64_t i = 0; i < a.count; ++i) function(in + i * LANES, i);
}

void vectors(const VectorArgs& a, Worker& worker) {
    if (worker.rank != 0) return;
    float* out = static_cast<float*>(a.out);
    int32_t* integers = static_cast<int32_t*>(a.out);
    const float *more = static_cast<const float*>(a.more), *last = static_cast<const float*>(a.last);
    const auto put = [&](int64_t i, f32 v) { store(out + i * LANES, v); };
    switch (a.what) {
        case 0: return map<float>(a, [&](const float* x, int64_t i) { put(i, vexp(loadf(x))); });
        case 1: return map<float>(a, [&](const float* x, int64_t i) { put(i, vsilu(loadf(x))); });
        case 2: return map<float>(a, [&](const float* x, int64_t i) { put(i, vsigmoid(loadf(x))); });
        case 3: return map<uint16_t>(a, [&](const uint16_t* x, int64_t i) { put(i, from_half(x)); });
        case 4: return map<uint16_t>(a, [&](const uint16_t* x, int64_t i) { put(i, from_bf16(x)); });
        case 5: return map<int8_t>(a, [&](const int8_t* x, int64_t i) { put(i, from_int8(x)); });
        case 6: return map<float>(a, [&](const float* x, int64_t i) { store(integers + i * LANES, round_even(loadf(x))); });
        case 7: return map<float>(a, [&](const float* x, int64_t i) { out[i] = sum(loadf(x)); });
        case 8: return map<float>(a, [&](const float* x, int64_t i) { out[i] = greatest(loadf(x)); });
        case 9: return map<int32_t>(a, [&](const int32_t* x, int64_t i) { integers[i] = sum(load<i32>(x)); });
        case 10:
            return map<float>(a, [&](const float* x, int64_t i) {
                put(i, fma(loadf(x), loadf(more + i * LANES), loadf(last + i * LANES)));
            });
        case 11: return map<float>(a, [&](const float* x, int64_t i) { put(i, vmax(loadf(x), loadf(more + i * LANES))); });
        case 12: return map<float>(a, [&](const float* x, int64_t i) { put(i, vmin(loadf(x), loadf(more + i * LANES))); });
        case 13: return map<float>(a, [&](const float* x, int64_t i) { put(i, vabs(loadf(x))); });
        case 14: return map<float>(a, [&](const float* x, int64_t i) { store(integers + i * LANES, truncate(loadf(x))); });
        case 15: return map<int32_t>(a, [&](const int32_t* x, int64_t i) { put(i, to_f32(load<i32>(x))); });
        case 16:  // vector i holds its first i % (LANES + 1) elements
            return map<float>(a, [&](const float* x, int64_t i) { put(i, load_head(x, static_cast<int>(i % (LANES + 1)))); });
        case 17:
            return map<float>(a, [&](const float* x, int64_t i) {
                store_head(out + i * LANES, loadf(x), static_cast<int>(i % (LANES + 1)));
            });
        case 18: return map<float>(a, [&](const float* x, int64_t i) { put(i, splat(x[0])); });
        case 19: return map<int32_t>(a, [&](const int32_t* x, int64_t i) { store(integers + i * LANES, splati(x[0])); });
        case 20:  // one at a time
            return map<uint16_t>(a, [&](const uint16_t* x, int64_t i) {
                for (int lane = 0; lane < LANES; ++lane) out[i * LANES + lane] = from_half(x[lane]);
            });
        case 21:
            return map<uint16_t>(a, [&](const uint16_t* x, int64_t i) {
                for (int lane = 0; lane < LANES; ++lane) out[i * LANES + lane] = from_bf16(x[lane]);
            });
        default: return;
    }
}

}  // namespace

NINFER_KERNEL(wave, WaveArgs)
NINFER_KERNEL(count, CountArgs)
NINFER_KERNEL(scratch, ScratchArgs)
NINFER_KERNEL(vectors, VectorArgs)
