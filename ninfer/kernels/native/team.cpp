// The process's pool of threads, and the loop that runs a list of kernels on it.
//
// Between the kernels of one list workers spin, because the gaps are microseconds. Between lists they spin a little,
// then sleep. While spinning a worker yields its core now and then, so that a busy machine still makes progress.
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "team.hpp"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
static inline void pause_core() { _mm_pause(); }
#elif defined(__aarch64__)
static inline void pause_core() { asm volatile("yield"); }
#else
static inline void pause_core() {}
#endif

namespace ninfer {
namespace {

constexpr int kSpinsBeforeYield = 4000;
constexpr int kSpinsBeforeSleep = 2000;  // launches from Python come within that, decode rounds do not
constexpr size_t kAlign = 64;

struct Step {
    void (*kernel)(const void* args, Worker* worker);
    const void* args;
};

char* allocate(size_t bytes) {
    void* memory = std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<char*>(memory);
}

// Memory beyond the block is allocated apart and becomes part of a larger block when the kernel has returned.
struct Own {
    std::vector<char*> extra;
    size_t peak = 0;
};

void wait_phase(Team& team, uint32_t phase) {
    for (int spins = 1; team.phase.load(std::memory_order_acquire) == phase; ++spins) {
        if (spins % kSpinsBeforeYield == 0) std::this_thread::yield();
        pause_core();
    }
}

void* own_scratch(Worker& worker, size_t bytes);
void* team_scratch(Team& team, size_t bytes);

struct Pool {
    std::mutex runs;  // one list at a time
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<uint64_t> job{0};
    const Step* steps = nullptr;
    int64_t count = 0;
    int active = 0;
    Team team;
    std::vector<Worker*> workers;
    std::vector<Own*> owns;
    std::vector<std::thread> threads;
    char* shared = nullptr;
    size_t shared_size = 0;

    Pool() {
        team.wait = wait_phase;
        team.own_scratch = own_scratch;
        team.team_scratch = team_scratch;
    }
};

Pool* instance = new Pool();  // never destroyed: its threads may outlive static destructors

Pool& pool() { return *instance; }

void* own_scratch(Worker& worker, size_t bytes) {
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    Own& own = *pool().owns[worker.rank];
    const size_t begin = worker.scratch_used;
    worker.scratch_used += bytes;
    if (worker.scratch_used > own.peak) own.peak = worker.scratch_used;
    if (begin + bytes <= worker.scratch_size) return worker.scratch + begin;
    own.extra.push_back(allocate(bytes));
    return own.extra.back();
}

void* team_scratch(Team&, size_t bytes) {
    Pool& p = pool();
    if (bytes > p.shared_size) {
        std::free(p.shared);
        p.shared = allocate(bytes);
        p.shared_size = bytes;
    }
    return p.shared;
}

void release_own(Worker& worker) {
    Own& own = *pool().owns[worker.rank];
    worker.scratch_used = 0;
    if (own.extra.empty()) return;
    for (char* memory : own.extra) std::free(memory);
    own.extra.clear();
    std::free(worker.scratch);
    worker.scratch = allocate(own.peak);
    worker.scratch_size = own.peak;
}

void run_steps(Worker& worker, const Step* steps, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        steps[i].kernel(steps[i].args, &worker);
        release_own(worker);
        worker.barrier();
    }
}

// `seen` is the last job that was published before this thread was made.
void serve(int rank, uint64_t seen) {
    Pool& p = pool();
    for (;;) {
        uint64_t job = p.job.load(std::memory_order_acquire);
        for (int spins = 1; job == seen && spins < kSpinsBeforeSleep; ++spins) {
            if (spins % kSpinsBeforeYield == 0) std::this_thread::yield();
            pause_core();
            job = p.job.load(std::memory_order_acquire);
        }
        if (job == seen) {
            std::unique_lock<std::mutex> lock(p.mutex);
            p.wake.wait(lock, [&] { return p.job.load(std::memory_order_acquire) != seen; });
            job = p.job.load(std::memory_order_acquire);
        }
        seen = job;
        // The number of active workers travels in the job's low bits, so that one load tells a consistent story.
        const int active = static_cast<int>(job & 0xffff);
        if (rank >= active) continue;
        Worker& worker = *p.workers[rank];
        worker.size = active;
        run_steps(worker, p.steps, p.count);
    }
}

// Makes threads and workers for `size`, and returns for how many it could: a system may refuse further threads.
int grow(Pool& p, int size) {
    const uint64_t job = p.job.load(std::memory_order_relaxed);
    try {
        while (static_cast<int>(p.threads.size()) < size - 1) {
            p.threads.emplace_back(serve, static_cast<int>(p.threads.size()) + 1, job);
            p.threads.back().detach();
        }
    } catch (const std::system_error&) {
        size = static_cast<int>(p.threads.size()) + 1;
    }
    while (static_cast<int>(p.workers.size()) < size) {
        const int rank = static_cast<int>(p.workers.size());
        p.workers.push_back(new Worker{&p.team, rank, size});
        p.owns.push_back(new Own());
    }
    return size;
}

}  // namespace
}  // namespace ninfer

// Runs the kernels one after another on `size` threads, the caller's included, and returns when all are done. Where the
// system refuses a thread, on those that there are.
extern "C" __attribute__((visibility("default"))) void ninfer_run(const void* steps, int64_t count, int size) {
    using namespace ninfer;
    Pool& p = pool();
    std::lock_guard<std::mutex> only(p.runs);
    size = grow(p, size);  // no thread reads `workers` now: they do so only after a job is published
    p.steps = static_cast<const Step*>(steps);
    p.count = count;
    p.workers[0]->size = size;
    if (size > 1) {
        {
            std::lock_guard<std::mutex> lock(p.mutex);
            const uint64_t serial = (p.job.load(std::memory_order_relaxed) >> 16) + 1;
            p.job.store(serial << 16 | static_cast<uint64_t>(size), std::memory_order_release);
        }
        p.wake.notify_all();
    }
    run_steps(*p.workers[0], p.steps, p.count);
}

// A forked child has none of its parent's threads: it starts with a pool of its own.
extern "C" __attribute__((visibility("default"))) void ninfer_after_fork() { ninfer::instance = new ninfer::Pool(); }

// Bit 0: AVX2, FMA and F16C. Bit 1: also AVX-512 F, BW, DQ, VL and VNNI.
extern "C" __attribute__((visibility("default"))) int ninfer_cpu_features() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
    return (avx2 ? 1 : 0) | (avx2 && avx512 ? 2 : 0);
#else
    return 0;
#endif
}
