/* Figures of groups: what Python sees of group_figures.hpp, and of group_times.hpp for charts. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "group_figures.hpp"
#include "group_times.hpp"
#include "module.hpp"
#include "told_figures.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Given = std::optional<Column<double>>;

std::tuple<nb::object, size_t, size_t> order(
    const Groups &groups, const std::string &figure, double q, u64 fewest, u32 leg, const Given &values, const Given &samples)
{
    Ordered found;

    if ((values ? values->shape(0) : groups.size()) != groups.size() ||
        (samples ? samples->shape(0) : 0) != (values ? groups.size() : 0))
        throw std::invalid_argument("there must be a value and a number of samples for each group, or none");
    {
        nb::gil_scoped_release release;
        found = in_order(groups, {figure, q}, fewest, leg, values ? values->data() : nullptr, values ? samples->data() : nullptr);
    }
    return {to_memoryview(found.places), found.enough, found.few};
}

std::vector<nb::object> figures(
    const Groups &groups, ConnectionSums &connections, const Column<u32> &places, const std::vector<double> &shares, u32 threads)
{
    std::vector<LegFigures> found;
    std::vector<nb::object> all;

    {
        nb::gil_scoped_release release;
        found = GroupFigures(groups, connections, places).find(shares, threads);
    }
    for (const LegFigures &one : found)
        all.push_back(told(one));
    return all;
}

using Quantiles = std::vector<std::vector<std::optional<double>>>;

/* Quantiles of the delays of a group in each slot, by share, and how many delays it has of each eighth; none: it was left out. */
std::optional<std::pair<Quantiles, std::vector<u64>>> times_of(const GroupTimes &times, u64 tag, const std::vector<double> &shares)
{
    static const std::array<s64, WL_EIGHTHS> bins = [] {
        std::array<s64, WL_EIGHTHS> found = {};

        for (u32 i = 0; i < WL_EIGHTHS; i++)
            found[i] = wl_bin(eighth_middle(i));
        return found;
    }();
    size_t slots = static_cast<size_t>(times.last() - times.first() + 1);
    std::pair<Quantiles, std::vector<u64>> found(Quantiles(shares.size(), std::vector<std::optional<double>>(slots)), WL_EIGHTHS);
    bool any = false;

    for (size_t i = 0; i < slots; i++)
        if (const u32 *counts = times.counts(tag, times.first() + static_cast<s64>(i))) {
            RankedBins ranked(bins, counts, WL_EIGHTHS, 0);
            u32 first = 0, last = WL_EIGHTHS - 1;

            any = true;
            if (!ranked.weight())
                continue;
            for (; !counts[first]; first++)
                ;
            for (; !counts[last]; last--)
                ;
            for (size_t at = 0; at < shares.size(); at++)
                found.first[at][i] = std::min(std::max(*ranked.quantile(shares[at]), static_cast<double>(eighth_middle(first))),
                    static_cast<double>(eighth_middle(last)));
            for (u32 eighth = first; eighth <= last; eighth++)
                found.second[eighth] += counts[eighth];
        }
    return any ? std::optional(found) : std::nullopt;
}

std::vector<u64> eighth_middles()
{
    std::vector<u64> found;

    for (u32 i = 0; i < WL_EIGHTHS; i++)
        found.push_back(eighth_middle(i));
    return found;
}

} // namespace

void add_group_figures(nb::module_ &m)
{
    m.def("group_order", &order, "groups"_a, "figure"_a, "q"_a, "fewest"_a, "leg"_a, "values"_a.none() = nb::none(),
        "samples"_a.none() = nb::none(),
        "The places of groups in order of a figure of a leg (2: of both), or of these values; how many have enough samples, or "
        "few.");
    m.def("group_figures", &figures, "groups"_a, "connections"_a, "places"_a, "shares"_a, "threads"_a,
        "The figures of both legs of each of these groups.");
    m.def("group_times", &times_of, "times"_a, "tag"_a, "shares"_a,
        "Quantiles of a group in each slot, by share, and its delays by eighth; None: it was left out.");
    m.def("eighth_middles", &eighth_middles, "The middle of each eighth of an octave, in ns.");
}
