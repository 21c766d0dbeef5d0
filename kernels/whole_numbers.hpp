/* Floats from whole numbers that no float holds, rounded once, as Python rounds them. */
#ifndef WIRELAG_WHOLE_NUMBERS_HPP
#define WIRELAG_WHOLE_NUMBERS_HPP

#include <algorithm>
#include <cmath>

extern "C" {
#include "distribution.h"
}

using u128 = unsigned __int128;

inline u128 whole(const u64 words[2])
{
    return static_cast<u128>(words[1]) << 64 | words[0];
}

/* n / d, where d is not 0. */
inline double ratio_of(u128 n, u64 d)
{
    int shift = 0;

    if (!n)
        return 0.0;
    for (; !(n >> 127); shift++) /* then the quotient has more bits than a float, and what is left only breaks a tie */
        n <<= 1;
    return std::ldexp(static_cast<double>(n / d | (n % d != 0)), -shift);
}

/* sqrt(max(0, squares * weight - sum * sum)), of which only the difference is rounded: that of floats would lose everything. */
inline double root_of_difference(u128 squares, u64 weight, u128 sum)
{
    u64 more[4] = {}, less[4] = {}, a[2] = {static_cast<u64>(sum), static_cast<u64>(sum >> 64)}, borrow = 0;
    u64 b[2] = {static_cast<u64>(squares), static_cast<u64>(squares >> 64)};
    auto add = [](u64 *to, int from, u128 value) {
        for (; value && from < 4; from++, value >>= 64) {
            value += to[from];
            to[from] = static_cast<u64>(value);
        }
    };

    for (int i = 0; i < 2; i++) {
        add(more, i, static_cast<u128>(b[i]) * weight);
        for (int j = 0; j < 2; j++)
            add(less, i + j, static_cast<u128>(a[i]) * a[j]);
    }
    for (int i = 0; i < 4; i++) {
        u128 rest = static_cast<u128>(more[i]) - less[i] - borrow;

        more[i] = static_cast<u64>(rest);
        borrow = rest >> 64 != 0;
    }
    int top = 3;
    while (top > 1 && !more[top])
        top--;
    if (borrow)
        return 0.0;
    u128 value = static_cast<u128>(more[top]) << 64 | more[top - 1];
    for (int i = 0; i < top - 1; i++)
        value |= more[i] != 0; /* two words may begin with 63 zeros: 65 bits are enough for what is left to break a tie only */
    return std::sqrt(std::ldexp(static_cast<double>(value), 64 * (top - 1)));
}

inline double mean_of(const wl_sums &sums)
{
    return sums.weight ? ratio_of(whole(sums.sum_ns), sums.weight) : 0.0;
}

inline double std_of(const wl_sums &sums)
{
    if (!sums.weight)
        return 0.0;
    return root_of_difference(whole(sums.sum_squares), sums.weight, whole(sums.sum_ns)) / static_cast<double>(sums.weight);
}

#endif
