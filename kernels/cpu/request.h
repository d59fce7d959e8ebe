// One request as the host gives it, and the step that all workers are in.
#pragma once

#include <cstdint>

#include "sampling.h"

namespace laneformer {

// How far a request is and how it ended; the engine writes it under its mutex.
struct Result {
    int32_t outcome;
    int32_t tokens;  // how many of `tokens` and `log_probabilities` are there
    int32_t worker, phase, writer;  // who waited, where and for whom, if a wait took too long
};

// Pointers stay valid until the request is over.  infer/backends/cpu_library.py has the same fields.
struct Request {
    const int32_t* prompt;
    int32_t prompt_count;
    int32_t limit;  // tokens to generate; 0 with all_logits
    SamplingSettings sampling;
    const double* uniforms;  // [limit], null where the temperature is 0
    const int32_t* stop_ids;
    int32_t stop_count;
    float* all_logits;  // [prompt_count][VOCABULARY], or null
    double deadline_seconds;  // for the whole request; 0: none
    double stall_seconds;     // for a single wait
    int32_t silent_worker;    // a fault for tests: this worker publishes nothing after the embedding; -1
    int32_t* tokens;          // [limit]
    double* log_probabilities;
    Result* result;
};

// Tokens that run at once: a chunk of the prompt, or the token chosen last.
struct Step {
    uint64_t number;
    int32_t start;  // position of the first
    int32_t count;
    bool wants_logits;  // false for a chunk that is not the last of a prompt
    bool ends;          // nothing to run: the request is over
    int32_t ids[CHUNK];
};

}  // namespace laneformer
