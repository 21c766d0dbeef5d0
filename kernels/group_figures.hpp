/* Groups in order of a figure, and their figures: those that each one's own delays give (measure/group_order.py,
 * report_figures.hpp).
 *
 * Law: figures of a group do not depend on which others are asked for, or on how many threads find them. */
#ifndef WIRELAG_GROUP_FIGURES_HPP
#define WIRELAG_GROUP_FIGURES_HPP

#include <atomic>
#include <future>
#include <string>
#include <tuple>
#include <unordered_map>

#include "connection_sums.hpp"
#include "group_delays.hpp"
#include "report_figures.hpp"

/* A figure that groups are in order of. */
struct Figure {
    std::string name; /* "quantile", "mean", "std", "max" or "samples" */
    double q;

    /* In seconds; NaN without delays. */
    double of(const wl_sums &sums, const std::vector<s64> &bins, const std::vector<u64> &weights) const
    {
        if (!sums.samples)
            return std::nan("");
        if (name == "samples")
            return static_cast<double>(sums.samples);
        if (name == "mean")
            return mean_of(sums) / 1e9;
        if (name == "std")
            return std_of(sums) / 1e9;
        if (name == "max")
            return static_cast<double>(sums.max_ns) / 1e9;
        double found = RankedBins(bins.data(), weights.data(), bins.size(), 0).quantile(q).value_or(0.0);
        return std::min(std::max(found, static_cast<double>(sums.min_ns)), static_cast<double>(sums.max_ns)) / 1e9;
    }
};

/* Groups, the largest figure first, and how many have a place; and how many have too few samples for one, which come next. */
struct Ordered {
    std::vector<u32> places;
    size_t enough = 0, few = 0;
};

/* In order of the figure of a leg (0, 1, or 2: both mixed), or of values that are given, NaN without, and their samples. Groups
 * without it follow, by the larger figure of their legs; then "other", if there is one. */
inline Ordered in_order(
    const Groups &groups, const Figure &figure, u64 fewest, u32 leg, const double *values, const double *samples)
{
    struct One {
        bool without, few;
        double by;
        u64 tag;
        u32 place;
    };
    Ordered found;
    std::vector<One> all;
    Groups::Cells cells[2];

    found.places.resize(groups.size());
    groups.by_birth(found.places.data());
    for (size_t i = 0; i < found.places.size(); i++) {
        u32 place = found.places[i];
        const wl_group &group = groups.group(place);
        double each[2], mine;
        u64 count;

        for (u32 one = 0; one < 2; one++) {
            groups.cells_of_leg(place, one, cells[one]);
            each[one] = figure.of(group.sums[one], cells[one].bins, cells[one].weights);
        }
        if (values) {
            mine = values[i];
            count = std::isnan(mine) ? 0 : static_cast<u64>(samples[i]);
        } else if (leg < 2) {
            mine = each[leg];
            count = group.sums[leg].samples;
        } else {
            wl_sums both = group.sums[0];
            wl_sums_add(&both, &group.sums[1]);
            cells[0].add(cells[1]);
            mine = figure.of(both, cells[0].bins, cells[0].weights);
            count = both.samples;
        }
        bool without = std::isnan(mine);
        if (without) {
            mine = std::fmax(each[0], each[1]);
            count = std::max(group.sums[0].samples, group.sums[1].samples);
        }
        all.push_back({without, count < fewest, mine, group.tag, place});
        found.enough += !without && count >= fewest;
        found.few += !without && count < fewest;
    }
    std::stable_sort(all.begin(), all.end(), [](const One &a, const One &b) {
        return std::tuple(a.without, a.few, -a.by, a.tag) < std::tuple(b.without, b.few, -b.by, b.tag);
    });
    for (size_t i = 0; i < all.size(); i++)
        found.places[i] = all[i].place;
    if (groups.left())
        found.places.push_back(0);
    return found;
}

class GroupFigures {
  public:
    GroupFigures(const Groups &groups, ConnectionSums &connections, const Column<u32> &places)
        : groups(groups), places(places.data(), places.data() + places.shape(0)), rows(connections.settled(row_count))
    {
        for (u32 place : this->places)
            if (place)
                groups.group(place); /* it is one */
    }

    std::vector<LegFigures> find(const std::vector<double> &shares, u32 threads)
    {
        std::vector<LegFigures> found(places.size());
        std::atomic<size_t> next{0};
        std::vector<std::future<void>> others;

        sort_rows();
        auto some = [&] {
            Space space;

            for (size_t i; (i = next++) < places.size();)
                for (u32 leg = 0; leg < 2; leg++)
                    found[i][leg] = of_leg(i, leg, shares, space);
        };
        for (u32 i = 1; i < threads && i < heavy; i++)
            others.push_back(std::async(std::launch::async, some));
        some();
        for (std::future<void> &one : others)
            one.get();
        return found;
    }

  private:
    static constexpr size_t slots = 4096;
    static constexpr u64 other_tag = 1;

    /* What a thread needs for one group after the other. */
    struct Space {
        Groups::Cells cells;
        std::vector<double> sums = std::vector<double>(slots), counts = std::vector<double>(slots);
    };

    const wl_sums &sums_of(u32 place, u32 leg) const
    {
        return place ? groups.group(place).sums[leg] : groups.of_other(leg).sums;
    }

    /* Put the rows of each group that may have an interval beside each other: their numbers. */
    void sort_rows()
    {
        std::unordered_map<u64, size_t> numbers; /* of groups by tag */
        std::vector<u32> of_row;

        for (size_t i = 0; i < places.size(); i++)
            if (std::max(sums_of(places[i], 0).samples, sums_of(places[i], 1).samples) >= certainty::fewest_delays) {
                numbers.emplace(places[i] ? groups.group(places[i]).tag : other_tag, i);
                heavy++;
            }
        ends.assign(places.size() + 1, 0);
        if (numbers.empty())
            return;
        of_row.resize(row_count, none);
        for (size_t row = 0; row < row_count; row++)
            if (auto one = numbers.find(rows[row].tag); one != numbers.end()) {
                of_row[row] = static_cast<u32>(one->second);
                ends[one->second + 1]++;
            }
        for (size_t i = 0; i < places.size(); i++)
            ends[i + 1] += ends[i];
        sorted.resize(ends.back());
        for (size_t row = 0; row < row_count; row++)
            if (of_row[row] != none)
                sorted[ends[of_row[row]]++] = static_cast<u32>(row);
    }

    std::optional<ReportFigures> of_leg(size_t i, u32 leg, const std::vector<double> &shares, Space &space) const
    {
        const wl_sums &sums = sums_of(places[i], leg);
        auto effects = [&](double alone, auto &connections, auto &times) {
            return sums.samples < certainty::fewest_delays ? (times.emplace(), true)
                                                           : vary(i, leg, sums, alone, space, connections, times);
        };

        if (!sums.samples)
            return std::nullopt;
        if (!places[i]) {
            const wl_group_other &other = groups.of_other(leg);
            return figures_of(Delays({nullptr}, other.weights, other.squares, WL_BINS, sums), shares, effects);
        }
        groups.cells_of_leg(places[i], leg, space.cells);
        const Groups::Cells &cells = space.cells;
        return figures_of(
            Delays({cells.bins.data()}, cells.weights.data(), cells.squares.data(), cells.bins.size(), sums), shares, effects);
    }

    /* How the delays of a group vary between connections and over time (connections.py). Sums are whole numbers: their order does
     * not matter. Fails if no connection of the group was kept. */
    bool vary(size_t i, u32 leg, const wl_sums &sums, double alone, Space &space, std::optional<certainty::Effect> &connections,
        std::optional<certainty::Effect> &times) const
    {
        const u32 *begin = sorted.data() + (i ? ends[i - 1] : 0), *end = sorted.data() + ends[i];
        std::array<double, WL_CROWDS> totals = {}, sizes = {};
        u64 first = ~0ull, last = 0;
        double size = 0;
        u32 folds = 0;

        for (const u32 *row = begin; row < end; row++)
            if (rows[*row].sums[2 * leg + 1]) {
                first = std::min(first, rows[*row].stretch);
                last = std::max(last, rows[*row].stretch);
            }
        if (first > last)
            return false;
        while ((last >> folds) - (first >> folds) >= slots)
            folds++;
        size_t used = (last >> folds) - (first >> folds) + 1;
        std::fill_n(space.sums.begin(), used, 0.0);
        std::fill_n(space.counts.begin(), used, 0.0);
        for (const u32 *row = begin; row < end; row++) {
            const wl_connection_row &one = rows[*row];
            size_t slot = (one.stretch >> folds) - (first >> folds), crowd = wl_crowd(one.flow_key);
            double sum = static_cast<double>(one.sums[2 * leg]), count = static_cast<double>(one.sums[2 * leg + 1]);

            if (!one.sums[2 * leg + 1])
                continue;
            totals[crowd] += sum;
            sizes[crowd] += count;
            space.sums[slot] += sum;
            space.counts[slot] += count;
            size += count;
        }
        /* Not all connections are here if they are sampled, and more delays than the group's if it was kept late. */
        double scale = std::sqrt(size / static_cast<double>(sums.weight));
        auto levels = between(totals.data(), sizes.data(), WL_CROWDS, alone / std::max(scale, 1e-9));

        connections.emplace();
        if (levels)
            connections->mean = certainty::Error(levels->first * scale, levels->second);
        times = effect_over_time(space.sums.data(), space.counts.data(), used, sums.samples, scale);
        return true;
    }

    static constexpr u32 none = ~0u;

    const Groups &groups;
    const std::vector<u32> places;
    size_t row_count = 0, heavy = 0;
    const wl_connection_row *rows;
    std::vector<u32> sorted;
    std::vector<size_t> ends; /* where the rows of each end, behind those of the one before */
};

#endif
