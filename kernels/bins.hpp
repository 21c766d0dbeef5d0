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

    s64 operator[](size_t i) const
    {
        return given ? given[i] : static_cast<s64>(i);
    }
};

/* Checked: a weight for each bin, of those given or of all. */
template <typename Weight> BinsOf bins_of(const std::optional<Column<s64>> &bins, const Column<Weight> &weights)
{
    if (weights.shape(0) != (bins ? bins->shape(0) : WL_BINS))
        throw std::invalid_argument("there must be a weight for each bin");
    return {bins ? bins->data() : nullptr};
}

#endif
