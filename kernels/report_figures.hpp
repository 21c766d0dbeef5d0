/* The figures of a report: of a distribution, of both legs of a tally, or of groups, in seconds and with how sure they are.
 *
 * Floats are rounded operation by operation: the twin (tests/oracles/certainty.py) finds the same bits. */
#ifndef WIRELAG_REPORT_FIGURES_HPP
#define WIRELAG_REPORT_FIGURES_HPP

#include "bins.hpp"
#include "certainty.hpp"
#include "tally.hpp"

/* Why there are no intervals, besides certainty::Why. */
constexpr u32 left_out = certainty::TOO_WIDE + 1;

struct ReportFigures {
    u64 samples, weight;
    double effective, mean, std, min, max;
    std::vector<double> quantiles;
    std::vector<std::optional<certainty::Bounds>> ci95; /* of the mean, then of each quantile */
    u32 why;
    std::vector<double> octaves; /* how many delays lie in each */
};

/* Those of each leg; none without delays. */
using LegFigures = std::array<std::optional<ReportFigures>, 2>;

/* How many delays lie in each octave of ns: a delay of 0 counts as one of 1. */
inline std::vector<double> octaves_of(BinsOf bin, const u64 *weights, size_t count)
{
    std::vector<double> found(64);

    for (size_t i = 0; i < count; i++)
        if (weights[i])
            found[static_cast<size_t>(std::ilogb(std::max(bin_middle(static_cast<u64>(bin[i])), 1.0)))] += static_cast<double>(
                weights[i]);
    return found;
}

/* Delays of a leg: bins, with the weight and the squared weights of each. */
struct Delays {
    BinsOf bin;
    const u64 *weights, *squares;
    size_t count;
    const wl_sums &sums;

    /* Of a distribution that holds delays; the bins before the shortest and behind the longest one hold none. */
    explicit Delays(const Distribution &whole) : Delays({nullptr, wl_bin(whole.sums.min_ns)}, whole)
    {
    }

    Delays(BinsOf bin, const u64 *weights, const u64 *squares, size_t count, const wl_sums &sums)
        : bin(bin), weights(weights), squares(squares), count(count), sums(sums)
    {
    }

  private:
    Delays(BinsOf bin, const Distribution &whole)
        : Delays(bin, whole.weights + bin.first, whole.squares + bin.first, wl_bin(whole.sums.max_ns) + 1 - bin.first, whole.sums)
    {
    }
};

/* The figures of delays, of which there are any. `effects` finds how they vary, from the error of independent ones; that fails
 * where nothing is known of it. */
template <typename Effects>
ReportFigures figures_of(const Delays &delays, const std::vector<double> &shares, const Effects &effects)
{
    using certainty::Bounds;
    const wl_sums &sums = delays.sums;
    double mean = mean_of(sums), std = std_of(sums);
    DelayFigures figures(delays.bin, delays.weights, delays.squares, delays.count, mean, std);
    std::optional<certainty::Effect> connections, times;
    bool known = effects(certainty::independent_error(figures, sums).value_or(0.0), connections, times);
    certainty::Sure sure(figures, sums, mean, connections, times);
    ReportFigures found = {sums.samples, sums.weight, sure.effective(), mean / 1e9, std / 1e9,
        static_cast<double>(sums.min_ns) / 1e9, static_cast<double>(sums.max_ns) / 1e9, {}, {},
        known ? static_cast<u32>(sure.why_none()) : left_out, octaves_of(delays.bin, delays.weights, delays.count)};
    auto tell = [&](const std::optional<Bounds> &ns) {
        found.ci95.push_back(known && ns ? std::optional(Bounds(ns->first / 1e9, ns->second / 1e9)) : std::nullopt);
    };

    tell(sure.mean());
    for (double q : shares) {
        found.quantiles.push_back(sure.quantile(q) / 1e9);
        tell(sure.quantile_bounds(q));
    }
    return found;
}

/* How delays vary over time, from their sums by slot; those of which there are too few have no interval. */
inline certainty::Effect effect_over_time(const double *sums, const double *counts, size_t slots, u64 samples, double scale = 1.0)
{
    if (samples < certainty::fewest_delays)
        return {};
    return certainty::Effect::of_time(over_time::over_time(sums, counts, slots, samples), scale);
}

inline LegFigures figures_of(const Tally &tally, const std::vector<double> &shares)
{
    LegFigures found;

    for (u32 leg = 0; leg < 2; leg++) {
        const Distribution &mine = tally.leg(leg);

        if (!mine.sums.samples)
            continue;
        found[leg] = figures_of(Delays(mine), shares, [&](double alone, auto &connections, auto &times) {
            Crowds crowds(tally.crowds(leg), crowd_words / 2, wl_bin(mine.sums.min_ns), wl_bin(mine.sums.max_ns));
            const Slots &slots = tally.times(leg);
            s64 used = slots.place[Slots::LAST] - slots.place[Slots::FIRST] + 1;

            connections = certainty::Effect{between(crowds.totals.data(), crowds.sizes.data(), WL_CROWDS, alone), std::nullopt};
            times = effect_over_time(slots.sums, slots.counts, static_cast<size_t>(used), mine.sums.samples);
            return true;
        });
    }
    return found;
}

#endif
