// The best entries of a row of probabilities.
#pragma once

#include <cstdint>

namespace ee {

// The top_k largest of probabilities [n], best first, ties to the lower index: index [top_k], logprob [top_k].
// Returns how many were found: fewer than top_k only where values are NaN.
int32_t top_of(const float * probabilities, int32_t n, int32_t top_k, int32_t * index, float * logprob);

} // namespace ee
