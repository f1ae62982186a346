// What all sources of these two folders take: one struct of arguments.
#pragma once

#include "ninfer.cuh"

using namespace ninfer;

struct Args {
    const float* x;
    float* out;
    u32* counter;
    i64 n;
};
