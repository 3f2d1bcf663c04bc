// Which instruction sets this machine has.
#pragma once
#include <vector>

#include "kernels.h"

namespace trtlookup::cpu {

// Slowest first: generic, then what build and machine both have of avx2 and avx512.
std::vector<const Kernels*> available_kernels();

}  // namespace trtlookup::cpu
