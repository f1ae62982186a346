// linear with fp32 activations: see the contract in this folder.
#include "linear/a16.hpp"

using namespace ninfer;

namespace {

void linear_a16(const LinearArgs& a, Worker& worker) { multiply(a, worker); }

}  // namespace

NINFER_KERNEL(linear_a16, LinearArgs)
