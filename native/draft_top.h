// The children of a node: the best of the head's logits, and what it gives them.
#pragma once

#include <cstdint>
#include <vector>

namespace ee {

// What the head's logits get before children are chosen.
struct perturbation {
    std::vector<float> noise;     // [R], added to the logits; empty: nothing is
    float              reach = 0; // logits further below the largest one are as good as banned
};

// The top_k largest of softmax(logits [n]), best first, ties to the lower index: index [top_k], logprob [top_k].
// False where a logit is NaN or +inf. Scratch is [n] once it has been used.
bool top_of(const float * logits, int32_t n, const perturbation & how, int32_t top_k, int32_t * index, float * logprob, std::vector<float> & scratch);

} // namespace ee
