/* Figures of delays, and how sure they are: what Python sees of delay_figures.hpp, ranked_bins.hpp, over_time.hpp, between.hpp. */
#include <array>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "between.hpp"
#include "bins.hpp"
#include "delay_figures.hpp"
#include "module.hpp"
#include "over_time.hpp"
#include "tally.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename Weight> void make_ranked(RankedBins *self, const Column<s64> &bins, const Column<Weight> &weights, u64 below)
{
    new (self) RankedBins(bins_of(bins, weights), weights.data(), weights.shape(0), below);
}

void make_figures(DelayFigures *self, const std::optional<Column<s64>> &bins, const Column<u64> &weights,
    const Column<u64> &squares, double mean, double std)
{
    BinsOf bin = bins_of(bins, weights);

    if (squares.shape(0) != weights.shape(0))
        throw std::invalid_argument("there must be a square for each weight");
    new (self) DelayFigures(bin, weights.data(), squares.data(), weights.shape(0), mean, std);
}

/* How many delays lie in each octave of ns: a delay of 0 counts as one of 1. */
std::vector<double> by_octave(const std::optional<Column<s64>> &bins, const Column<u64> &weights)
{
    BinsOf bin = bins_of(bins, weights);
    std::vector<double> found(64);

    for (size_t i = 0; i < weights.shape(0); i++)
        if (weights.data()[i])
            found[static_cast<size_t>(std::ilogb(std::max(bin_middle(static_cast<u64>(bin[i])), 1.0)))] += static_cast<double>(
                weights.data()[i]);
    return found;
}

u64 checked_bin_above(s64 limit_ns)
{
    return bin_above(static_cast<double>(limit_ns));
}

/* The sums and weights of the delays of each crowd, on the legs that there are. */
struct Crowds {
    std::array<double, WL_CROWDS> totals = {}, sizes = {};

    explicit Crowds(const Column<u64> &weights)
    {
        constexpr size_t of_leg = size_t{WL_CROWDS} * WL_COARSE_BINS;
        static const std::array<double, WL_COARSE_BINS> middles = [] {
            std::array<double, WL_COARSE_BINS> found = {};

            for (u64 bin = 0; bin < WL_BINS; bin++)
                found[bin >> WL_COARSE_BITS] += bin_middle(bin) / (1 << WL_COARSE_BITS);
            return found;
        }();

        if (!weights.shape(0) || weights.shape(0) % of_leg)
            throw std::invalid_argument("the weights do not have the shape of crowds");
        for (size_t i = 0; i < weights.shape(0); i++)
            if (u64 weight = weights.data()[i]) {
                size_t crowd = i % of_leg / WL_COARSE_BINS;

                totals[crowd] += static_cast<double>(weight) * middles[i % WL_COARSE_BINS];
                sizes[crowd] += static_cast<double>(weight);
            }
    }
};

std::optional<std::pair<double, double>> crowds_error(const Column<u64> &weights, double alone)
{
    Crowds crowds(weights);

    return between(crowds.totals.data(), crowds.sizes.data(), WL_CROWDS, alone);
}

std::pair<double, double> crowds_sum(const Column<u64> &weights)
{
    Crowds crowds(weights);
    std::pair<double, double> found = {0, 0};

    for (size_t crowd = 0; crowd < WL_CROWDS; crowd++) {
        found.first += crowds.sizes[crowd];
        found.second += crowds.totals[crowd];
    }
    return found;
}

std::optional<std::pair<double, double>> checked_between(const Column<double> &totals, const Column<double> &sizes, double alone)
{
    if (totals.shape(0) != sizes.shape(0))
        throw std::invalid_argument("there must be a size for each total");
    return between(totals.data(), sizes.data(), sizes.shape(0), alone);
}

using Told = std::tuple<double, double, double, double, double, double>;

Told told(const over_time::OverTime &found)
{
    return {found.half, found.freedom, found.stretches, found.level, found.returns, found.higher};
}

std::optional<Told> over_parts(const Column<double> &sums, const Column<double> &counts, u64 samples)
{
    if (sums.shape(0) != counts.shape(0))
        throw std::invalid_argument("there must be a count for each sum");
    std::optional<over_time::OverTime> found = over_time::over_time(sums.data(), counts.data(), sums.shape(0), samples);
    return found ? std::optional(told(*found)) : std::nullopt;
}

Told over_samples(const Column<double> &values, const Column<double> &weights)
{
    size_t count = values.shape(0);

    if (weights.shape(0) != count || count < over_time::fewest_batches)
        throw std::invalid_argument("there must be a weight for each value, and four at least");
    return told(over_time::over_batches(
        over_time::equal_batches({values.data(), values.data() + count}, {weights.data(), weights.data() + count}),
        static_cast<double>(count)));
}

std::vector<double> checked_cosines(const Column<double> &apart, size_t most)
{
    if (apart.shape(0) < 2)
        throw std::invalid_argument("there must be two batches at least");
    return over_time::cosines({apart.data(), apart.data() + apart.shape(0)}, most);
}

std::tuple<double, double, double, double, double> checked_slowness(const std::vector<double> &powers, size_t batches, double reach)
{
    if (powers.empty() || batches < 2 || batches > 1 << 20 || powers.size() > batches)
        throw std::invalid_argument("there must be a power, and fewer than batches");
    slow_levels::Slowness found = slow_levels::slowness(powers, batches, reach);
    return {found.half, found.level, found.stretches, found.returns, found.part};
}

} // namespace

void add_figures(nb::module_ &m)
{
    m.attr("FEW_DELAYS") = RankedBins::few;
    m.attr("SKEWED") = over_time::skewed;
    nb::class_<RankedBins>(m, "RankedBins", "Bins in order with the rank of each.")
        .def("__init__", &make_ranked<u64>, "bins"_a, "weights"_a, "below"_a = 0)
        .def("__init__", &make_ranked<s64>, "bins"_a, "weights"_a, "below"_a = 0)
        .def_prop_ro("weight", &RankedBins::weight)
        .def("quantile", &RankedBins::quantile, "q"_a,
            "The delay below which a share of q lies; None: it is one of those that are shorter than all.")
        .def("bin_at", &RankedBins::bin_at, "q"_a, "The first bin up to which a share of q lies.")
        .def("before", &RankedBins::before, "bin"_a, "How many bins come before this one, and the weight of what lies in them.");
    nb::class_<DelayFigures>(m, "DelayFigures", "Figures of a distribution.")
        .def("__init__", &make_figures, "bins"_a.none(), "weights"_a, "squares"_a, "mean"_a, "std"_a,
            "Bins, or None for every bin, with their weights and squared weights.")
        .def(
            "quantile", [](const DelayFigures &figures, double q) { return figures.ranked.quantile(q); }, "q"_a,
            "The delay below which a share of q lies.")
        .def(
            "bin_at", [](const DelayFigures &figures, double q) { return figures.ranked.bin_at(q); }, "q"_a,
            "The first bin up to which a share of q lies.")
        .def("weight_from", &DelayFigures::from, "bin"_a, "The weight of the bins from this one on.")
        .def("share_error", &DelayFigures::share_error, "below"_a, "The error of the share of delays in bins below this one.")
        .def("follows_mean", &DelayFigures::follows_mean, "below"_a, "How much of that share follows the mean.")
        .def_prop_ro("sum_squares", &DelayFigures::sum_squares)
        .def_prop_ro("squared_apart", &DelayFigures::squared_apart)
        .def_prop_ro("skewness", &DelayFigures::skewness);
    m.def("by_octave", &by_octave, "bins"_a.none(), "weights"_a, "How many delays lie in each octave of ns.");
    m.def("bin_above", &checked_bin_above, "limit_ns"_a, "The first bin whose delays count as above a limit.");
    m.def("crowds_error", &crowds_error, "weights"_a, "alone"_a,
        "The error of the mean of these delays, and its degrees of freedom; None: too few crowds have any.");
    m.def("crowds_sum", &crowds_sum, "weights"_a, "How many delays there are, and their sum.");
    m.def("between", &checked_between, "totals"_a, "sizes"_a, "alone"_a,
        "The error of a mean from the totals of groups, and its degrees of freedom; None: too few have a size.");
    m.def("over_time", &over_parts, "sums"_a, "counts"_a, "samples"_a,
        "How a mean varies, from parts in order of time (the fields of OverTime); None: there are too few parts.");
    m.def("over_samples", &over_samples, "values"_a, "weights"_a,
        "The same of the sum of values, by that of weights, for samples in order of time.");
    m.def("cosines", &checked_cosines, "apart"_a, "most"_a, "The powers of the slowest cosines of batches in order of time.");
    m.def("slowness", &checked_slowness, "powers"_a, "batches"_a, "reach"_a,
        "What the powers of cosines tell: half a width, level, stretches, returns, the level's part of the reach.");
}
