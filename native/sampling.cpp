// What sampling does with a whole vocabulary: the noise of eagle_edge/noise.py, with logarithms only where they may matter,
// and the few tokens that filters choose among.

#include "eagle_edge.h"
#include "softmax.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <vector>

namespace {

constexpr float   LOG_2 = 0.693147182f; // rounded up
constexpr int32_t BLOCK = 32;           // bounds compared at once before any of them is looked at
constexpr float   SLACK = 1e-3f;        // covers float rounding: every score that could still win is below 100

inline uint32_t mixed(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352D;
    x ^= x >> 15;
    x *= 0x846CA68B;
    return x ^ x >> 16;
}

inline uint32_t word_of(int32_t id, const uint32_t * key) {
    return mixed(mixed(uint32_t(id) ^ key[0]) ^ key[1]);
}

// At least -log(u) for every u in [word / 2^32, 1): by the exponent of the leading 24 bits, which a float holds exactly.
// No bit set gives exponent -127, far above any noise. Since -log(1 - u) >= u, that bounds the noise from above.
inline float most_noise(uint32_t word) {
    const float leading = float(int32_t(word >> 8));
    int32_t     bits;
    std::memcpy(&bits, &leading, sizeof bits);
    return float(24 + 127 - (bits >> 23)) * LOG_2;
}

// Standard Gumbel noise of a uniform number of 52 bits.
double noise_of(int32_t id, const uint32_t * key) {
    const uint64_t bits = uint64_t(word_of(id, key)) << 20 | word_of(id, key + 2) >> 12;
    return -std::log(-std::log1p(-((double(bits) + 0.5) * 0x1p-52)));
}

// log(x) of a positive normal x to single precision, without a branch: x = 2^e * (1 + f) with |f| < 0.42, and the series of
// log((1 + z) / (1 - z)) at z = f / (2 + f).
inline float rough_log(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const int32_t exponent = (bits - 0x3f3504f3) >> 23; // mantissas from the root of a half to that of two
    bits -= exponent * (1 << 23);
    float mantissa;
    std::memcpy(&mantissa, &bits, sizeof mantissa);
    const float z = (mantissa - 1) / (mantissa + 1), z2 = z * z;
    return float(exponent) * 0.693147181f + 2 * z * (1 + z2 * (1.0f / 3 + z2 * (1.0f / 5 + z2 * (1.0f / 7 + z2 / 9))));
}

// Calls visit(i) for every i whose bound exceeds the bar, which visit may raise; branch-free over whole blocks.
template <class Visit> void for_each_above(const float * bounds, int32_t n, const float & bar, Visit visit) {
    for (int32_t begin = 0; begin < n; begin += BLOCK) {
        const int32_t end   = begin + BLOCK < n ? begin + BLOCK : n;
        int32_t       above = end - begin < BLOCK;
        for (int32_t i = begin; i < end; ++i) {
            above |= bounds[i] > bar;
        }
        for (int32_t i = begin; above != 0 && i < end; ++i) {
            if (bounds[i] > bar) {
                visit(i);
            }
        }
    }
}

} // namespace

EE_CLONES
void ee_noise_rough(const int32_t * ids, int32_t n, const uint32_t * key, float * out) {
    const uint32_t words[2] = {key[0], key[1]};
    for (int32_t i = 0; i < n; ++i) {
        const uint32_t word = word_of(ids[i], words);
        // The word as a fraction of 2^32. Its parts fit an int32, for which vectors have a conversion to float.
        const float u     = (float(int32_t(word >> 8)) * 256 + float(int32_t(word & 255)) + 0.5f) * 0x1p-32f;
        const float below = u < 1 - 0x1p-24f ? u : 1 - 0x1p-24f;
        // -log1p(-u): the series where u is small and its digits matter, the logarithm elsewhere.
        const float series = below * (1 + below * (1.0f / 2 + below * (1.0f / 3 + below * (1.0f / 4 + below * (1.0f / 5 + below / 6)))));
        const float direct = -rough_log(1 - below);
        out[i]             = -rough_log(below < 0x1p-4f ? series : direct);
    }
}

EE_CLONES
int32_t ee_noise_argmax(const int32_t * ids, const float * scores, int32_t n, float top, float temperature, const uint32_t * key) {
    static thread_local std::vector<float> room;
    room.resize(n);
    float * const  bounds   = room.data();
    const uint32_t words[4] = {key[0], key[1], key[2], key[3]}; // they may lie anywhere, so they would be read every time
    if (ids == nullptr) {
        for (int32_t i = 0; i < n; ++i) {
            bounds[i] = (scores[i] - top) / temperature + most_noise(word_of(i, words));
        }
    } else {
        for (int32_t i = 0; i < n; ++i) {
            bounds[i] = (scores[i] - top) / temperature + most_noise(word_of(ids[i], words));
        }
    }
    const auto reached_by = [&](int32_t i) {
        const float score = (scores[i] - top) / temperature;
        return score + noise_of(ids == nullptr ? i : ids[i], words);
    };
    float   bar    = -std::numeric_limits<float>::infinity();
    int32_t leader = 0;
    for_each_above(bounds, n, bar, [&](int32_t i) { leader = i, bar = bounds[i]; });
    bar = float(reached_by(leader)) - SLACK;
    double  most   = -std::numeric_limits<double>::infinity();
    int32_t winner = leader;
    for_each_above(bounds, n, bar, [&](int32_t i) {
        const double reached = reached_by(i);
        if (reached > most) {
            most   = reached;
            winner = i;
        }
    });
    return winner;
}

namespace {

using ee::weight_of;

struct candidate {
    float   score; // (logit - top) / temperature, so the best has 0
    int32_t id;
};

bool is_better(const candidate & a, const candidate & b) {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
}

// Those with a score of at least `lowest`, by id.
EE_CLONES
void find_near(const float * logits, int32_t n, float top, float temperature, float lowest, std::vector<candidate> & near) {
    // No logit below the bar can reach that, however its difference and quotient are rounded.
    const double bound = double(top) + double(lowest) * temperature * (1 + 1e-6);
    const float  bar   = std::nextafter(float(bound), -std::numeric_limits<float>::infinity());
    near.clear();
    for_each_above(logits, n, bar, [&](int32_t i) {
        const float score = (logits[i] - top) / temperature;
        if (score >= lowest) {
            near.push_back({score, i});
        }
    });
}

double weight_of_near(const std::vector<candidate> & near) {
    return std::accumulate(near.begin(), near.end(), 0.0, [](double sum, const candidate & c) { return sum + weight_of(c.score); });
}

void keep_number(std::vector<candidate> & near, size_t n) {
    if (near.size() > n) {
        std::nth_element(near.begin(), near.begin() + n, near.end(), is_better);
        near.resize(n);
    }
}

// The fewest of the best that have this weight together.
void keep_weight(std::vector<candidate> & near, double weight) {
    size_t kept = 0, sorted = 0;
    for (; kept < near.size() && (kept == 0 || weight > 0); ++kept) {
        if (kept == sorted) { // most often few are needed
            sorted = std::min(near.size(), 2 * sorted + 32);
            std::partial_sort(near.begin() + kept, near.begin() + sorted, near.end(), is_better);
        }
        weight -= weight_of(near[kept].score);
    }
    near.resize(kept);
}

} // namespace

int32_t ee_filter(const float * logits, int32_t n, float top, float temperature, int32_t top_k, double top_p, double min_p, int32_t * ids, float * scores) {
    static thread_local std::vector<candidate> near;
    const float floor   = min_p > 0 ? float(std::log(min_p)) : std::numeric_limits<float>::lowest();
    const auto  look_to = [&](float lowest) { find_near(logits, n, top, temperature, lowest, near); };
    // Filters leave few of many: only those near the best are looked at, and further down where they are not enough.
    constexpr float REACHES[] = {-6, -10, -16, -32, std::numeric_limits<float>::lowest()};
    if (top_k > 0) {
        for (size_t i = 0; i < std::size(REACHES) && (i == 0 || near.size() < size_t(top_k)); ++i) {
            look_to(REACHES[i]);
        }
        keep_number(near, top_k);
        if (top_p < 1) {
            keep_weight(near, top_p * weight_of_near(near));
        }
    } else if (top_p < 1) {
        const double weight = top_p * ee::total_weight(logits, n, top, temperature);
        for (size_t i = 0; i < std::size(REACHES) && (i == 0 || weight_of_near(near) < weight); ++i) {
            look_to(REACHES[i]);
        }
        keep_weight(near, weight);
    } else {
        look_to(floor);
    }
    near.erase(std::remove_if(near.begin(), near.end(), [&](const candidate & c) { return c.score < floor; }), near.end());
    std::sort(near.begin(), near.end(), [](const candidate & a, const candidate & b) { return a.id < b.id; });
    for (size_t i = 0; i < near.size(); ++i) {
        ids[i]    = near[i].id;
        scores[i] = near[i].score;
    }
    return int32_t(near.size());
}
