#include "softmax.h"

#include <numeric>

namespace ee {

EE_CLONES
double total_weight(const float * logits, int32_t n, float top, float temperature) {
    constexpr int32_t LANES = 32; // summed apart, so that the compiler makes vectors of them
    double            lanes[LANES] = {};
    int32_t           i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int32_t lane = 0; lane < LANES; ++lane) {
            lanes[lane] += weight_of((logits[i + lane] - top) / temperature);
        }
    }
    for (; i < n; ++i) {
        lanes[0] += weight_of((logits[i] - top) / temperature);
    }
    return std::accumulate(lanes, lanes + LANES, 0.0);
}

} // namespace ee
