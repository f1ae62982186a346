// The experts of a block on a GPU, and the slots of a call grouped by them; mirrored in cuda_experts.py.
#pragma once

#include "ninfer.cuh"

#include "dequant.cuh"

namespace ninfer {

// Rows of one expert's weights, as stored: gate and up rows side by side.
struct Expert {
    Part gate;
    Part up;
    Part down;
    const float* gate_up_signs;  // of the Hadamard rotation of their input, or null
    const float* down_signs;
};

// A slot is one of a row's chosen experts. Its place is where it stands once slots are sorted by expert: an expert's
// places are neighbours, and hold its slots in rising order. An item is some neighbouring places of one expert.
struct Item {
    i32 expert;
    i32 first;  // place
    i32 count;
    i32 unused;
};

}  // namespace ninfer
