// What compiled CUDA sources call in the emulator's runtime library.
#pragma once

#include <vector_types.h>

#define EMULATOR_PAYLOAD_BYTES 64  // at most, of one lane

extern "C" {

// Constant for a fibre's whole life, so the compiler may keep what they return.
__attribute__((const)) uint3 emulator_thread_index();
__attribute__((const)) uint3 emulator_block_index();
__attribute__((const)) uint3 emulator_block_shape();
__attribute__((const)) uint3 emulator_grid_shape();
__attribute__((const)) unsigned emulator_lane();
__attribute__((const)) void* emulator_dynamic_shared();

const void* emulator_warp_arrive(const void* payload, unsigned bytes, unsigned mask, const char* name,
                                        const char* file, int line);
/// A shuffle from a lane that is not in its mask.
[[noreturn]] void emulator_absent_lane(unsigned lane, const char* name);
void emulator_sync_warp(unsigned mask, const char* file, int line);
/// A barrier of the block; returns for how many threads `predicate` was true.
int emulator_sync_threads(int predicate, const char* name, const char* file, int line);

void emulator_async_copy(void* shared, const void* global, unsigned bytes, unsigned valid);
void emulator_async_commit();
void emulator_async_wait(unsigned pending);

void emulator_atomic(void* place, unsigned bytes);
void emulator_fence();
[[noreturn]] void emulator_trap();
}
