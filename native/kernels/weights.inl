// How each weight type unpacks into unsigned bytes, scales and minimums, for the `isa` included before.
//
// A type is a small object over one laid block of 16 rows (this lane's part of it): BLOCKS activation blocks of 32 wide,
// with dword<S, I>() giving the I-th dword of the 8 of part S, scale<S>() and, where MINIMUM, minimum<S>(). Where HALVES,
// the two halves of 32 weights have whole scales of their own: whole<S, HALF>().
#include "path.h"

#include "ggml.h"

namespace {

using namespace ee::kernels;

constexpr int FIELD = 2 * ROWS; // bytes of a 2-byte field of every row
constexpr int DWORD = 4 * ROWS; // bytes of 4 weights of every row

// Dwords 0 to 3 are in the low nibbles, 4 to 7 in the high ones.
template <int I> isa::ints nibbles(const uint8_t * q) {
    const isa::ints packed = isa::load_bytes(q + I % 4 * DWORD);
    return I < 4 ? isa::low_nibbles(packed) : isa::high_nibbles(packed);
}

struct block_of_32 {
    static constexpr int BLOCKS = 1;
    static constexpr bool HALVES = false;
    const uint8_t *fields, *dwords;
    template <int> isa::floats scale() const { return isa::load_half(fields); }
    template <int> isa::floats minimum() const { return isa::load_half(fields + FIELD); }
};

struct weights_q4_0 : block_of_32 {
    static constexpr int FIELDS = 1, DWORDS = 4, BITS = 4;
    static constexpr bool MINIMUM = false, OFFSET = true;
    template <int, int I> isa::ints dword() const { return nibbles<I>(dwords); }
};

struct weights_q4_1 : weights_q4_0 {
    static constexpr int FIELDS = 2;
    static constexpr bool MINIMUM = true, OFFSET = false;
};

struct weights_q5_0 : block_of_32 {
    static constexpr int FIELDS = 1, DWORDS = 5, BITS = 5;
    static constexpr bool MINIMUM = false, OFFSET = true;
    template <int, int I> isa::ints dword() const {
        return isa::merge<4 - I, 0x10>(nibbles<I>(dwords + DWORD), isa::load_bytes(dwords));
    }
};

struct weights_q5_1 : weights_q5_0 {
    static constexpr int FIELDS = 2;
    static constexpr bool MINIMUM = true, OFFSET = false;
};

struct weights_q8_0 : block_of_32 {
    static constexpr int FIELDS = 1, DWORDS = 8, BITS = 8;
    static constexpr bool MINIMUM = false, OFFSET = true;
    template <int, int I> isa::ints dword() const { return isa::load_bytes(dwords + I * DWORD); }
};

// The 16 values of IQ4_NL (ggml-common.h), plus 128.
alignas(16) constexpr uint8_t IQ4_VALUES[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

struct weights_iq4_nl : block_of_32 {
    static constexpr int FIELDS = 1, DWORDS = 4, BITS = 8;
    static constexpr bool MINIMUM = false, OFFSET = true;
    template <int, int I> isa::ints dword() const { return isa::look_up(IQ4_VALUES, nibbles<I>(dwords)); }
};

struct weights_q4_k {
    static constexpr int BLOCKS = 8, FIELDS = 2, DWORDS = 35, BITS = 4;
    static constexpr bool MINIMUM = true, OFFSET = false, HALVES = false;
    const uint8_t *fields, *dwords;

    template <int S> isa::floats scale() const { return isa::mul(six_bits<S>(), isa::load_half(fields)); }
    template <int S> isa::floats minimum() const {
        return isa::mul(six_bits<8 + S>(), isa::sub(isa::zero(), isa::load_half(fields + FIELD)));
    }
    template <int S, int I> isa::ints dword() const { return from<S, I>(dwords + 3 * DWORD); }

  protected:
    template <int V> isa::floats six_bits() const {
        if constexpr (V < 15) {
            return isa::to_float(isa::bits<6 * (V % 5), 63>(isa::load_bytes(dwords + V / 5 * DWORD)));
        } else {
            const isa::ints low = isa::bits<30, 3>(isa::load_bytes(dwords));
            const isa::ints middle = isa::bits<28, 12>(isa::load_bytes(dwords + DWORD));
            const isa::ints high = isa::bits<26, 48>(isa::load_bytes(dwords + 2 * DWORD));
            return isa::to_float(isa::add_ints(low, isa::add_ints(middle, high)));
        }
    }
    // Part 2 * j is in the low nibbles of 8 dwords, part 2 * j + 1 in the high ones.
    template <int S, int I> static isa::ints from(const uint8_t * q) {
        const isa::ints packed = isa::load_bytes(q + (S / 2 * 8 + I) * DWORD);
        return S % 2 == 0 ? isa::low_nibbles(packed) : isa::high_nibbles(packed);
    }
};

struct weights_q5_k : weights_q4_k {
    static constexpr int DWORDS = 43, BITS = 5;
    template <int S, int I> isa::ints dword() const { // bit S of the high bytes belongs to part S
        return isa::merge<4 - S, 0x10>(from<S, I>(dwords + 11 * DWORD), isa::load_bytes(dwords + (3 + I) * DWORD));
    }
};

struct weights_q6_k {
    static constexpr int BLOCKS = 8, FIELDS = 1, DWORDS = 52, BITS = 6;
    static constexpr bool MINIMUM = false, OFFSET = true, HALVES = true;
    const uint8_t *fields, *dwords;

    template <int> isa::floats scale() const { return isa::load_half(fields); }
    template <int S, int HALF> isa::ints whole() const {
        constexpr int v = S / 4 * 8 + S % 4 * 2 + HALF;
        return isa::signed_byte<v % 4>(isa::load_bytes(dwords + v / 4 * DWORD));
    }
    // Part S % 4 of a half of 128: low nibbles of dwords 0-7, of 8-15, then the high ones; 2 high bits each.
    template <int S, int I> isa::ints dword() const {
        const isa::ints packed = isa::load_bytes(dwords + (4 + S / 4 * 16 + S % 2 * 8 + I) * DWORD);
        const isa::ints nibbles = S % 4 < 2 ? isa::low_nibbles(packed) : isa::high_nibbles(packed);
        return isa::merge<4 - S % 4 * 2, 0x30>(nibbles, isa::load_bytes(dwords + (36 + S / 4 * 8 + I) * DWORD));
    }
};

// Two weights of a row, K = 2k and 2k + 1, at a time.
struct weights_f16 {
    static void load(const uint8_t * p, int lane, isa::floats & even, isa::floats & odd) {
        even = isa::load_half(p + 2 * lane);
        odd  = isa::load_half(p + FIELD + 2 * lane);
    }
};

struct weights_bf16 {
    static void load(const uint8_t * p, int lane, isa::floats & even, isa::floats & odd) {
        isa::load_bfloat_pairs(p + 4 * lane, even, odd);
    }
};

} // namespace
