#include "draft_top.h"

#include "softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ee {

namespace {

constexpr int32_t BLOCK  = 32;  // values looked at together, without a branch, so that the compiler makes vectors of them
constexpr float   BANNED = -64; // added to scores out of reach: they stay in order, behind all others
constexpr float   LEAST  = -87; // logarithm of the least probability that is told, about the smallest float

// The largest of n values; NaN where any is NaN or +inf.
EE_CLONES
float largest_of(const float * values, int32_t n) {
    float   lanes[BLOCK];
    int32_t bad = 0, i = 0;
    std::fill_n(lanes, BLOCK, -std::numeric_limits<float>::infinity());
    for (; i + BLOCK <= n; i += BLOCK) {
        for (int32_t lane = 0; lane < BLOCK; ++lane) {
            const float value = values[i + lane];
            lanes[lane]       = value > lanes[lane] ? value : lanes[lane];
            bad |= !(value < std::numeric_limits<float>::infinity());
        }
    }
    for (; i < n; ++i) {
        lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
        bad |= !(values[i] < std::numeric_limits<float>::infinity());
    }
    return bad ? std::numeric_limits<float>::quiet_NaN() : *std::max_element(lanes, lanes + BLOCK);
}

EE_CLONES
void perturb(const float * logits, const float * noise, int32_t n, float lowest, float * out) {
    for (int32_t i = 0; i < n; ++i) {
        out[i] = logits[i] + noise[i] + (logits[i] < lowest ? BANNED : 0);
    }
}

// Whether any of BLOCK values exceeds the bar.
bool any_above(const float * values, float bar) {
    int32_t above = 0;
    for (int32_t i = 0; i < BLOCK; ++i) {
        above |= values[i] > bar;
    }
    return above != 0;
}

// The top_k largest scores: index and best [top_k].
void largest_k(const float * scores, int32_t n, int32_t top_k, int32_t * index, float * best) {
    constexpr float NOTHING = -std::numeric_limits<float>::infinity();
    int32_t found = 0;
    float   bar   = NOTHING; // what a score has to exceed to enter the full list
    const auto offer = [&](int32_t i) {
        const float score = scores[i];
        if (found == top_k && !(score > bar)) {
            return;
        }
        int32_t at = found < top_k ? found++ : top_k - 1;
        for (; at > 0 && best[at - 1] < score; --at) {
            best[at]  = best[at - 1];
            index[at] = index[at - 1];
        }
        best[at]  = score;
        index[at] = i;
        bar       = best[found - 1];
    };
    int32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        if (found < top_k || any_above(scores + i, bar)) {
            for (int32_t j = i; j < i + BLOCK; ++j) {
                offer(j);
            }
        }
    }
    for (; i < n; ++i) {
        offer(i);
    }
}

} // namespace

bool top_of(const float * logits, int32_t n, const perturbation & how, int32_t top_k, int32_t * index, float * logprob, std::vector<float> & scratch) {
    const float * scores = logits;
    float         top    = largest_of(logits, n);
    if (!std::isfinite(top)) {
        return false;
    }
    if (!how.noise.empty()) {
        scratch.resize(n);
        perturb(logits, how.noise.data(), n, top - how.reach, scratch.data());
        scores = scratch.data();
        top    = largest_of(scores, n);
    }
    largest_k(scores, n, top_k, index, logprob);
    const float norm = top + float(std::log(total_weight(scores, n, top)));
    for (int32_t k = 0; k < top_k; ++k) {
        logprob[k] = std::max(logprob[k] - norm, LEAST);
    }
    return true;
}

} // namespace ee
