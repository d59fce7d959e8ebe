// Choosing tokens exactly as infer/sampling.py does; that file says what each step means.
//
// Uniform numbers come from the caller, so that they are those of numpy's default_rng(seed).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "shape.h"
#include "vector.h"

namespace laneformer {

struct SamplingSettings {
    double temperature;
    double top_p;
    double min_p;
    double repetition_penalty;
    int32_t top_k;
};

class Sampler {
public:
    void start(const SamplingSettings& settings, const double* uniforms) {
        settings_ = settings;
        uniforms_ = uniforms;
        drawn_ = 0;
        if (penalised()) occurred_.assign(VOCABULARY, 0);
    }

    void occurred(int32_t token) {
        if (penalised()) occurred_[token] = 1;
    }

    // logits: [VOCABULARY], changed by the penalty after their log-probabilities are no longer needed.
    // The log-probability is not finite where the logits are not.
    int32_t choose(float* logits, double* log_probability) {
        const float top = largest_logit(logits);
        const double log_total = std::log(exponential_total(logits, top));
        int32_t token;
        if (!penalised()) {
            token = pick(logits, top);
            *log_probability = static_cast<double>(logits[token] - top) - log_total;
        } else {
            plain_.assign(logits, logits + VOCABULARY);
            penalise(logits);
            token = pick(logits, largest_logit(logits));
            *log_probability = static_cast<double>(plain_[token] - top) - log_total;
        }
        if (!std::isfinite(log_total)) *log_probability = log_total;
        occurred(token);
        return token;
    }

private:
    struct Candidate {
        double value;  // first the scaled logit, then the probability
        int32_t id;
    };

    bool penalised() const { return settings_.repetition_penalty != 1.0; }

    static float largest_logit(const float* logits) {
        int at = 0;
        float top = logits[0];
        if (VOCABULARY >= VECTOR) {
            Vector most = load(logits);
            for (at = VECTOR; at + VECTOR <= VOCABULARY; at += VECTOR) most = larger(most, load(logits + at));
            top = largest_of(most);
        }
        for (; at < VOCABULARY; ++at) top = logits[at] > top ? logits[at] : top;
        return top;
    }

    // Sum of exp(logit - top); NaN where any logit is NaN or the top is infinite.
    static double exponential_total(const float* logits, float top) {
        double total = 0;
        int at = 0;
        while (at + VECTOR <= VOCABULARY) {
            Vector part = zero();  // a thousand terms in float32, then on in float64
            for (int terms = 0; terms < 64 && at + VECTOR <= VOCABULARY; ++terms, at += VECTOR)
                part = add(part, exponential(subtract(load(logits + at), broadcast(top))));
            total += sum(part);
        }
        for (; at < VOCABULARY; ++at) total += std::exp(logits[at] - top);
        return total;
    }

    void penalise(float* logits) const {
        const auto penalty = static_cast<float>(settings_.repetition_penalty);
        for (int id = 0; id < VOCABULARY; ++id)
            if (occurred_[id]) logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }

    int32_t pick(const float* logits, float top) {
        if (settings_.temperature == 0) {
            for (int32_t id = 0; id < VOCABULARY; ++id)
                if (logits[id] == top) return id;
            return 0;  // NaN: told by the log-probability
        }
        distribution(logits, top);
        double total = 0;
        for (const Candidate& candidate : candidates_) total += candidate.value;
        const double target = uniforms_[drawn_++] * total;
        double covered = 0;
        for (const Candidate& candidate : candidates_) {
            covered += candidate.value;
            if (covered > target) return candidate.id;
        }
        return candidates_.empty() ? 0 : candidates_.back().id;  // the product can round up to the total
    }

    void distribution(const float* logits, float top) {
        candidates_.resize(VOCABULARY);
        for (int32_t id = 0; id < VOCABULARY; ++id)
            candidates_[id] = {(static_cast<double>(logits[id]) - top) / settings_.temperature, id};
        const auto before = [](const Candidate& a, const Candidate& b) {
            return a.value > b.value || (a.value == b.value && a.id < b.id);
        };
        const bool sorted = settings_.top_k > 0 || settings_.top_p < 1;
        if (settings_.top_k > 0 && settings_.top_k < VOCABULARY) {
            std::nth_element(candidates_.begin(), candidates_.begin() + settings_.top_k, candidates_.end(), before);
            candidates_.resize(settings_.top_k);
        }
        if (sorted) std::sort(candidates_.begin(), candidates_.end(), before);
        for (Candidate& candidate : candidates_) candidate.value = std::exp(candidate.value);
        normalise();
        if (settings_.top_p < 1) {
            double covered = 0;
            keep([&](double probability) {
                covered += probability;
                return covered - probability < settings_.top_p;
            });
        }
        if (settings_.min_p > 0) {
            double most = 0;
            for (const Candidate& candidate : candidates_) most = std::max(most, candidate.value);
            keep([&](double probability) { return probability >= settings_.min_p * most; });
        }
    }

    template <typename Wanted>
    void keep(Wanted wanted) {
        size_t kept = 0;
        for (const Candidate& candidate : candidates_)
            if (wanted(candidate.value)) candidates_[kept++] = candidate;
        candidates_.resize(kept);
        normalise();
    }

    void normalise() {
        double total = 0;
        for (const Candidate& candidate : candidates_) total += candidate.value;
        for (Candidate& candidate : candidates_) candidate.value /= total;
    }

    SamplingSettings settings_{};
    const double* uniforms_ = nullptr;
    int64_t drawn_ = 0;
    std::vector<uint8_t> occurred_;
    std::vector<float> plain_;
    std::vector<Candidate> candidates_;
};

}  // namespace laneformer
