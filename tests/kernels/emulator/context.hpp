// One fibre's registers, and the switch from one fibre to another. EMULATOR_UCONTEXT: as on processors other than x86-64.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) || defined(EMULATOR_UCONTEXT)
#include <ucontext.h>
#endif

namespace emulator {

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)

struct Context {
    void* stack_pointer;
};

// Only what a function must preserve is kept. ucontext does the same thirty times slower: it makes system calls.
extern "C" void emulator_switch(void** save, void* load);
asm(R"(
.text
.type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulator_switch, .-emulator_switch
)");

inline void prepare(Context& context, char*, char* end, void (*entry)()) {
    auto* slot = reinterpret_cast<uintptr_t*>(reinterpret_cast<uintptr_t>(end) & ~uintptr_t{15});
    *--slot = 0;  // the entry's return address: where walks along the frames end
    *--slot = reinterpret_cast<uintptr_t>(entry);
    for (int saved = 0; saved < 6; ++saved) *--slot = 0;
    context.stack_pointer = slot;
}

inline void change(Context& from, Context& to) { emulator_switch(&from.stack_pointer, to.stack_pointer); }

#else

struct Context {
    ucontext_t registers;
};

inline void prepare(Context& context, char* begin, char* end, void (*entry)()) {
    getcontext(&context.registers);
    context.registers.uc_stack.ss_sp = begin;
    context.registers.uc_stack.ss_size = static_cast<size_t>(end - begin);
    context.registers.uc_link = nullptr;
    makecontext(&context.registers, entry, 0);
}

inline void change(Context& from, Context& to) { swapcontext(&from.registers, &to.registers); }

#endif

}  // namespace emulator
