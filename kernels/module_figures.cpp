/* Figures of delays, and how sure they are: what Python sees of delay_figures.hpp, certainty.hpp,
 * over_time.hpp, between.hpp, alike.hpp. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "alike.hpp"
#include "module.hpp"
#include "report_figures.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using certainty::Error;
using certainty::Sure;

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

std::vector<double> by_octave(const std::optional<Column<s64>> &bins, const Column<u64> &weights)
{
    return octaves_of(bins_of(bins, weights), weights.data(), weights.shape(0));
}

wl_sums sums_of(const Column<u64> &words)
{
    wl_sums found;

    if (words.shape(0) * sizeof(u64) != sizeof found)
        throw std::invalid_argument("these are no sums of a distribution");
    std::memcpy(&found, words.data(), sizeof found);
    return found;
}

/* The middles of bins that hold delays, between the shortest and the longest one, in seconds; and the share of delays up to each.
 */
std::pair<std::vector<double>, std::vector<double>> cumulated(
    const std::optional<Column<s64>> &bins, const Column<u64> &weights, const Column<u64> &words)
{
    BinsOf bin = bins_of(bins, weights);
    wl_sums sums = sums_of(words);
    double least = std::max(static_cast<double>(sums.min_ns), 1.0), most = static_cast<double>(sums.max_ns), up_to = 0;
    std::pair<std::vector<double>, std::vector<double>> found;

    for (size_t i = 0; i < weights.shape(0); i++)
        if (u64 weight = weights.data()[i]) {
            up_to += static_cast<double>(weight);
            found.first.push_back(std::min(std::max(bin_middle(static_cast<u64>(bin[i])), least), most) / 1e9);
            found.second.push_back(up_to / static_cast<double>(sums.weight));
        }
    return found;
}

/* The delays below which shares of all lie, between the shortest and the longest one; none without delays. */
std::vector<std::optional<double>> quantiles(
    const std::optional<Column<s64>> &bins, const Column<u64> &weights, const Column<u64> &words, const std::vector<double> &shares)
{
    BinsOf bin = bins_of(bins, weights);
    wl_sums sums = sums_of(words);
    RankedBins ranked(bin, weights.data(), weights.shape(0), 0);
    std::vector<std::optional<double>> found;

    for (double q : shares) {
        std::optional<double> one = ranked.quantile(q);
        found.push_back(
            one ? std::optional(std::min(std::max(*one, static_cast<double>(sums.min_ns)), static_cast<double>(sums.max_ns)))
                : std::nullopt);
    }
    return found;
}

/* How many delays of each part of the time fall into each row of a heat map: rows of as small a share of an octave as leaves fewer
 * than so many. Returns how many an octave has, the first one, and the counts row by row. */
std::tuple<s64, s64, std::vector<std::vector<u64>>> heat(const std::vector<Column<u64>> &parts, s64 most)
{
    s64 first = WL_BINS, last = -1, each = 16;

    for (const Column<u64> &weights : parts) {
        bins_of(std::nullopt, weights);
        for (s64 bin = 0; bin < WL_BINS; bin++)
            if (weights.data()[bin]) {
                first = std::min(first, bin);
                last = std::max(last, bin);
            }
    }
    if (last < first)
        throw std::invalid_argument("there are no delays");
    auto row = [](s64 bin, s64 of_octave) {
        return static_cast<s64>(
            std::floor(std::log2(std::max(bin_middle(static_cast<u64>(bin)), 1.0)) * static_cast<double>(of_octave)));
    };
    while (each > 1 && row(last, each) - row(first, each) >= most)
        each /= 2;
    s64 lowest = row(first, each);
    std::vector<std::vector<u64>> counts(static_cast<size_t>(row(last, each) - lowest + 1), std::vector<u64>(parts.size()));
    for (s64 bin = first; bin <= last; bin++) {
        std::vector<u64> &mine = counts[static_cast<size_t>(row(bin, each) - lowest)];

        for (size_t part = 0; part < parts.size(); part++)
            mine[part] += parts[part].data()[bin];
    }
    return {each, lowest, counts};
}

u64 checked_bin_above(s64 limit_ns)
{
    return bin_above(static_cast<double>(limit_ns));
}

Crowds crowds_of(const Column<u64> &weights)
{
    if (!weights.shape(0) || weights.shape(0) % (crowd_words / 2))
        throw std::invalid_argument("the weights do not have the shape of crowds");
    return {weights.data(), weights.shape(0)};
}

std::optional<std::pair<double, double>> crowds_error(const Column<u64> &weights, double alone)
{
    Crowds crowds = crowds_of(weights);

    return between(crowds.totals.data(), crowds.sizes.data(), WL_CROWDS, alone);
}

std::pair<double, double> crowds_sum(const Column<u64> &weights)
{
    Crowds crowds = crowds_of(weights);
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

/* What is known of how delays vary over time: independent stretches, returns, and by how much the mean may lie higher. */
using Over = std::tuple<double, double, double>;
using Effect = std::pair<std::optional<Error>, std::optional<Over>>;

/* Keeps the figures, too. */
struct SureFigures {
    nb::object figures;
    Sure sure;

    static std::optional<certainty::Effect> effect(const std::optional<Effect> &given)
    {
        certainty::Effect made;

        if (!given)
            return std::nullopt;
        made.mean = given->first;
        if (given->second) {
            auto [stretches, returns, higher] = *given->second;
            made.over = {0, 0, stretches, 0, returns, higher};
        }
        return made;
    }

    SureFigures(
        nb::object of, const Column<u64> &sums, const std::optional<Effect> &connections, const std::optional<Effect> &times)
        : figures(of),
          sure(nb::cast<const DelayFigures &>(of), sums_of(sums), mean_of(sums_of(sums)), effect(connections), effect(times))
    {
    }
};

certainty::Chance chance_of(const std::tuple<double, double, double, double> &given)
{
    auto [error, skewness, samples, higher] = given;

    return {error, skewness, samples, higher};
}

std::tuple<double, double> checked_alike(const Column<s64> &slots, const Column<double> &sums, const Column<double> &counts)
{
    size_t count = slots.shape(0);

    if (sums.shape(0) != count || counts.shape(0) != count)
        throw std::invalid_argument("there must be a sum and a count for each part");
    alike::Alike found = alike::over_slots(slots.data(), sums.data(), counts.data(), count);
    return {found.lasts, found.level};
}

/* The same of slots one after the other, of which those without a count are left out. */
std::tuple<double, double> alike_slots(const Column<double> &sums, const Column<double> &counts)
{
    std::vector<s64> slots;
    std::vector<double> held[2];

    if (sums.shape(0) != counts.shape(0))
        throw std::invalid_argument("there must be a count for each sum");
    for (size_t i = 0; i < counts.shape(0); i++)
        if (counts.data()[i] != 0) {
            slots.push_back(static_cast<s64>(i));
            held[0].push_back(sums.data()[i]);
            held[1].push_back(counts.data()[i]);
        }
    alike::Alike found = alike::over_slots(slots.data(), held[0].data(), held[1].data(), slots.size());
    return {found.lasts, found.level};
}

Error checked_welch(const std::vector<Error> &errors)
{
    return certainty::welch(errors.data(), errors.size());
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
    nb::class_<SureFigures>(m, "Sure", "The 95% intervals of figures.")
        .def(nb::init<nb::object, const Column<u64> &, const std::optional<Effect> &, const std::optional<Effect> &>(), "figures"_a,
            "sums"_a, "connections"_a.none(), "times"_a.none(),
            "What tells how delays vary: the error of the mean, and over time stretches, returns, and how much higher it may be.")
        .def_prop_ro("why", [](const SureFigures &of) { return static_cast<u32>(of.sure.why_none()); })
        .def_prop_ro("mean", [](const SureFigures &of) { return of.sure.mean(); })
        .def(
            "quantile", [](const SureFigures &of, double q) { return of.sure.quantile_bounds(q); }, "q"_a)
        .def(
            "share_above", [](const SureFigures &of, s64 from) { return of.sure.share_above(from); }, "bin"_a,
            "Of the share of delays in bins from this one on.");
    m.def("half95", &certainty::half95, "freedom"_a, "Half-width of a 95% interval in standard errors.");
    m.def("welch", &checked_welch, "errors"_a, "The error of a sum of values with these errors.");
    m.def(
        "bounds",
        [](double value, const Error &error, double above, const std::tuple<double, double, double, double> &chance) {
            return certainty::bounds(value, error, above, chance_of(chance));
        },
        "value"_a, "error"_a, "above"_a, "chance"_a, "The 95% interval of a value, of which so much lies above a floor.");
    m.def(
        "with_the_mean",
        [](double q, const Error &ends, double middle, double floor, const std::optional<Error> &error, double above,
            const std::tuple<double, double, double, double> &chance) {
            return certainty::with_the_mean(q, ends, middle, floor, error, above, chance_of(chance));
        },
        "q"_a, "ends"_a, "middle"_a, "floor"_a, "error"_a.none(), "above"_a, "chance"_a,
        "The interval of a quantile that follows the mean.");
    m.def("wilson", &certainty::wilson, "share"_a, "n"_a, "The 95% interval of a share of n.");
    m.def("share_bounds", &certainty::share_bounds, "share"_a, "error"_a, "samples"_a, "The 95% interval of a share.");
    m.def("enough_beyond", &certainty::enough_beyond, "q"_a, "wider"_a, "samples"_a, "stretches"_a,
        "Whether a quantile has an interval.");
    m.def("quantile_shares", &certainty::quantile_shares, "q"_a, "error"_a, "samples"_a,
        "The shares at which the ends of a quantile's 95% interval lie; None if too few delays are beyond.");
    m.def("alike", &checked_alike, "slots"_a, "sums"_a, "counts"_a,
        "How many slots delays stay alike for, and their level, from parts with a slot each.");
    m.def("alike_slots", &alike_slots, "sums"_a, "counts"_a, "The same of slots one after the other.");
    m.def("by_octave", &by_octave, "bins"_a.none(), "weights"_a, "How many delays lie in each octave of ns.");
    m.def("cumulated", &cumulated, "bins"_a.none(), "weights"_a, "sums"_a,
        "The delays of bins in order, in seconds, and the share of delays up to each.");
    m.def("quantiles", &quantiles, "bins"_a.none(), "weights"_a, "sums"_a, "shares"_a, "The delays below which shares of all lie.");
    m.def("heat", &heat, "parts"_a, "most"_a,
        "A heat map of weights of every bin: rows in an octave, the first of them, and counts by row and part.");
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
