// In place of kernels/cuda/shape.cuh where sampling.cuh runs on a processor: see driver.cpp.  Threads are few, for each is one
// of the system.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#define __device__
using std::max, std::min;

namespace laneformer {

constexpr bool CHECKSUMS = false;
constexpr int VOCABULARY = TEST_VOCABULARY, ALL_WORKERS = TEST_WORKERS;
constexpr int WARP = 8, MATH_WARPS = 2, MATH_THREADS = MATH_WARPS * WARP, TILE = 16;

}  // namespace laneformer
