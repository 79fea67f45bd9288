#include "draft_top.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace ee {

namespace {

constexpr int32_t BLOCK = 32; // values compared at once before any of them is looked at

// Whether any of BLOCK values exceeds the bar; branch-free, so the compiler vectorises it.
bool any_above(const float * values, float bar) {
    int32_t above = 0;
    for (int32_t i = 0; i < BLOCK; ++i) {
        above |= values[i] > bar;
    }
    return above != 0;
}

} // namespace

int32_t top_of(const float * probabilities, int32_t n, int32_t top_k, int32_t * index, float * logprob) {
    int32_t found = 0;
    float   bar   = -1.0f; // what a value has to exceed to enter the list; logprob holds probabilities until the end
    const auto offer = [&](int32_t i) {
        const float p = probabilities[i];
        if (!(p > bar)) {
            return;
        }
        int32_t at = found < top_k ? found++ : top_k - 1;
        for (; at > 0 && logprob[at - 1] < p; --at) {
            logprob[at] = logprob[at - 1];
            index[at]   = index[at - 1];
        }
        logprob[at] = p;
        index[at]   = i;
        bar         = found < top_k ? -1.0f : logprob[top_k - 1];
    };
    int32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        if (any_above(probabilities + i, bar)) {
            for (int32_t j = i; j < i + BLOCK; ++j) {
                offer(j);
            }
        }
    }
    for (; i < n; ++i) {
        offer(i);
    }
    for (int32_t k = 0; k < found; ++k) {
        logprob[k] = std::log(std::max(logprob[k], FLT_MIN));
    }
    return found;
}

} // namespace ee
