/* Figures of delays: what Python sees of ranked_bins.hpp and slow_levels.hpp. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "arrays.hpp"
#include "module.hpp"
#include "ranked_bins.hpp"
#include "slow_levels.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename Weight> void make_ranked(RankedBins *self, const Column<s64> &bins, const Column<Weight> &weights, u64 below)
{
    if (bins.shape(0) != weights.shape(0))
        throw std::invalid_argument("there must be a weight for each bin");
    new (self) RankedBins(bins.data(), weights.data(), bins.shape(0), below);
}

double half_width_of(
    const Column<double> &likely, const Column<double> &errors, const Column<double> &at, const Column<double> &beyond, double tail)
{
    if (!errors.shape(0) || errors.shape(0) != likely.shape(0) || at.shape(0) < 2 || beyond.shape(0) != at.shape(0))
        throw std::invalid_argument("there must be an error, each as likely as is said, and a table of at least two rows");
    return half_width(likely.data(), errors.data(), errors.shape(0), at.data(), beyond.data(), at.shape(0), tail);
}

} // namespace

void add_figures(nb::module_ &m)
{
    m.attr("FEW_DELAYS") = RankedBins::few;
    nb::class_<RankedBins>(m, "RankedBins", "Bins in order with the rank of each.")
        .def("__init__", &make_ranked<u64>, "bins"_a, "weights"_a, "below"_a = 0)
        .def("__init__", &make_ranked<s64>, "bins"_a, "weights"_a, "below"_a = 0)
        .def_prop_ro("weight", &RankedBins::weight)
        .def("quantile", &RankedBins::quantile, "q"_a,
            "The delay below which a share of q lies; None: it is one of those that are shorter than all.")
        .def("bin_at", &RankedBins::bin_at, "q"_a, "The first bin up to which a share of q lies.")
        .def("before", &RankedBins::before, "bin"_a, "How many bins come before this one, and the weight of what lies in them.");
    m.def("half_width", &half_width_of, "likely"_a, "errors"_a, "at"_a, "beyond"_a, "tail"_a,
        "Half the width of the interval around 0 that misses a normal value with this chance, if its error is one of these, so "
        "likely each; beyond: how likely a normal value is further from 0 than each of `at`.");
}
