// What threads of a worker share while a token is chosen: see sampling.cuh.
#pragma once

#include "shape.cuh"

namespace laneformer {

constexpr int HALF_KEY_BITS = 10, BINS = 1 << HALF_KEY_BITS;

struct Found {  // a bin, what lies before it and what it weighs
    unsigned long long count_before, mass_before, mass;
    int bin;
};
struct Picked {
    unsigned long long mass;  // up to a token of the sorted ones, itself included
    unsigned key;
    unsigned tie, ties;  // its number among the tokens of that key, and how many there are
};
struct SamplingMemory {
    unsigned long long warp_mass[MATH_WARPS];
    Found found, guess;
    Picked picked;
    unsigned given_up;  // whether a thread, of this worker or of one it heard, waited in vain for this token
};

}  // namespace laneformer
