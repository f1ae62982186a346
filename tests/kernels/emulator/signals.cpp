// Faults that the processor reports, and the time limit: both become faults of the kernel.
#include "state.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace emulator {

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
const int kTimeSignal = SIGRTMIN + 3;
constexpr int kCount = sizeof kSignals / sizeof kSignals[0];
struct sigaction before[kCount];
stack_t before_stack;
timer_t timer;
pid_t thread;
alignas(16) char signal_stack[64 << 10];

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

uint64_t program_counter(void* context) {
#if defined(__x86_64__)
    return static_cast<uint64_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return static_cast<ucontext_t*>(context)->uc_mcontext.pc;
#else
    return 0;
#endif
}

void* frame_pointer(void* context) {
#if defined(__x86_64__)
    return reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RBP]);
#elif defined(__aarch64__)
    return reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.regs[29]);
#else
    return nullptr;
#endif
}

void describe(int number, uintptr_t address, char* text, size_t bytes) {
    const auto end = reinterpret_cast<uintptr_t>(state.dynamic_end);
    const auto stacks = reinterpret_cast<uintptr_t>(state.stacks);
    const uint64_t stack = (address - stacks) / kStackBytes;
    if (number == SIGILL) {
        std::snprintf(text, bytes, "an index outside its array, or an address that is not aligned for its type");
    } else if (number == SIGFPE) {
        std::snprintf(text, bytes, "integer division by zero");
    } else if (address >= end && address < end + kPageBytes) {
        std::snprintf(text, bytes, "shared memory out of bounds: byte %zu of %u of the dynamic part",
                      static_cast<size_t>(address - reinterpret_cast<uintptr_t>(state.dynamic)),
                      state.spec.dynamic_bytes);
    } else if (address >= stacks && stack < kThreads && (address - stacks) % kStackBytes < kPageBytes) {
        std::snprintf(text, bytes, "local memory exhausted: a thread has %zu bytes here", kStackBytes - kPageBytes);
    } else {
        std::snprintf(text, bytes, "memory out of bounds: no such address, %p", reinterpret_cast<void*>(address));
    }
}

void on_fault(int number, siginfo_t* info, void* context) {
    if (this_thread() != thread || !state.running || !state.current) {
        for (int i = 0; i < kCount; ++i)
            if (kSignals[i] == number) sigaction(number, &before[i], nullptr);
        return;  // and meet the same fault again, with whoever was here before
    }
    char text[256];
    describe(number, reinterpret_cast<uintptr_t>(info->si_addr), text, sizeof text);
    fail_at(frame_pointer(context), program_counter(context), 0, text);
}

void on_time(int, siginfo_t*, void* context) {
    if (!state.running || !state.current) return;
    state.expired = true;
    const uint64_t pc = program_counter(context);
    if (!state.spec.module->text.has(pc)) return;  // in the runtime or a library, which may not be cut short
    char text[128];
    std::snprintf(text, sizeof text, "time limit: the launch ran for more than %g seconds", state.spec.seconds);
    fail_at(frame_pointer(context), pc, 0, text);
}

void start_timer() {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kTimeSignal;
    event._sigev_un._tid = thread;
    timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer);
    const auto whole = static_cast<time_t>(state.spec.seconds);
    const auto rest = static_cast<long>((state.spec.seconds - static_cast<double>(whole)) * 1e9);
    const itimerspec limit{{0, 20'000'000}, {whole, rest}};  // again every 20 ms, until it meets the kernel's own code
    timer_settime(timer, 0, &limit, nullptr);
}

}  // namespace

void guard_begin() {
    thread = this_thread();
    const stack_t own{signal_stack, 0, sizeof signal_stack};
    sigaltstack(&own, &before_stack);
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    action.sa_sigaction = on_fault;
    for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &action, &before[i]);
    action.sa_sigaction = on_time;
    sigaction(kTimeSignal, &action, nullptr);  // for good: one may still be on its way when the launch ends
    start_timer();
}

void guard_end() {
    timer_delete(timer);
    for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &before[i], nullptr);
    sigaltstack(&before_stack, nullptr);
}

}  // namespace emulator
