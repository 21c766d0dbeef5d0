/* Bins of delays from Python: those of a distribution that has every bin, or those that hold delays. */
#ifndef WIRELAG_BINS_HPP
#define WIRELAG_BINS_HPP

#include <optional>

#include <nanobind/stl/optional.h>

#include "arrays.hpp"

extern "C" {
#include "distribution.h"
}

/* The bins of weights: those given, or all of them in order. */
struct BinsOf {
    const s64 *given;
    size_t first = 0; /* of all */

    s64 operator[](size_t i) const
    {
        return given ? given[i] : static_cast<s64>(first + i);
    }
};

/* Checked: a weight for each bin, of those given or of all. */
template <typename Weight> BinsOf bins_of(const std::optional<Column<s64>> &bins, const Column<Weight> &weights)
{
    if (weights.shape(0) != (bins ? bins->shape(0) : WL_BINS))
        throw std::invalid_argument("there must be a weight for each bin");
    return {bins ? bins->data() : nullptr, 0};
}

/* The middle of a bin, in ns. */
inline double bin_middle(u64 bin)
{
    u64 shift = bin >> WL_BIN_BITS ? (bin >> WL_BIN_BITS) - 1 : 0;

    return static_cast<double>((bin - (shift << WL_BIN_BITS)) << shift) + static_cast<double>((1ull << shift) - 1) / 2;
}

/* The first bin whose delays count as above a limit. */
inline u64 bin_above(double limit_ns)
{
    u64 low = 0, high = WL_BINS;

    while (low < high) {
        u64 middle = (low + high) / 2;

        if (bin_middle(middle) <= limit_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#endif
