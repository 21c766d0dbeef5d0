/* Groups in order of a figure, and their figures: those that each one's own delays give (measure/group_order.py,
 * report_figures.hpp).
 *
 * Law: figures of a group do not depend on which others are asked for, or on how many threads find them. Memory: 16 KB for each of
 * 2,048 groups, beside the rows of connections. */
#ifndef WIRELAG_GROUP_FIGURES_HPP
#define WIRELAG_GROUP_FIGURES_HPP

#include <atomic>
#include <future>
#include <string>
#include <tuple>

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
        auto of_leg = [&](u32 one) {
            groups.cells_of_leg(place, one, cells[one]);
            return figure.of(group.sums[one], cells[one].bins, cells[one].weights);
        };
        double mine;
        u64 count;

        if (values) {
            mine = values[i];
            count = std::isnan(mine) ? 0 : static_cast<u64>(samples[i]);
        } else if (leg < 2) {
            mine = of_leg(leg);
            count = group.sums[leg].samples;
        } else {
            wl_sums both = group.sums[0];
            wl_sums_add(&both, &group.sums[1]);
            groups.cells_of_leg(place, 0, cells[0]);
            groups.cells_of_leg(place, 1, cells[1]);
            cells[0].add(cells[1]);
            mine = figure.of(both, cells[0].bins, cells[0].weights);
            count = both.samples;
        }
        bool without = std::isnan(mine);
        if (without) {
            mine = std::fmax(of_leg(0), of_leg(1));
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

/* How the delays of a group's leg vary: sums and sizes by crowd of connections, and by slot of time. They are whole numbers: in
 * which order they are added up does not matter. */
struct Varying {
    static constexpr size_t most_slots = 4096;

    std::array<double, WL_CROWDS> totals = {}, sizes = {};
    std::vector<double> sums, counts; /* in slots of as few stretches as make them fit */
    u64 first = ~0ull, last = 0;      /* stretches */
    double size = 0;
    u32 folds = 0;

    void reach(u64 from, u64 to)
    {
        first = std::min(first, from);
        last = std::max(last, to);
    }

    void make_room()
    {
        if (first > last)
            return;
        while ((last >> folds) - (first >> folds) >= most_slots)
            folds++;
        sums.resize((last >> folds) - (first >> folds) + 1);
        counts.resize(sums.size());
    }

    void add(const wl_connection_row &row, u32 leg)
    {
        double sum = static_cast<double>(row.sums[2 * leg]), count = static_cast<double>(row.sums[2 * leg + 1]);
        size_t slot = (row.stretch >> folds) - (first >> folds), crowd = wl_crowd(row.flow_key);

        totals[crowd] += sum;
        sizes[crowd] += count;
        sums[slot] += sum;
        counts[slot] += count;
        size += count;
    }
};

class GroupFigures {
  public:
    GroupFigures(const Groups &groups, ConnectionSums &connections, const Column<u32> &places)
        : groups(groups), places(places.data(), places.data() + places.shape(0)), rows(connections.settled(row_count)),
          first(connections.first()), last(connections.last())
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

        add_rows();
        auto some = [&] {
            Groups::Cells cells;

            for (size_t i; (i = next++) < places.size();)
                for (u32 leg = 0; leg < 2; leg++)
                    found[i][leg] = of_leg(i, leg, shares, cells);
        };
        for (u32 i = 1; i < threads && i < varying.size(); i++)
            others.push_back(std::async(std::launch::async, some));
        some();
        for (std::future<void> &one : others)
            one.get();
        return found;
    }

  private:
    static constexpr u32 none = ~0u;
    static constexpr u64 other_tag = 1;

    const wl_sums &sums_of(u32 place, u32 leg) const
    {
        return place ? groups.group(place).sums[leg] : groups.of_other(leg).sums;
    }

    /* Add up the rows of each group that may have an interval. */
    void add_rows()
    {
        struct Known {
            u64 tag;
            u32 number;
        };
        std::vector<Known> known; /* the lower bits of a tag, which is a hash, say where */
        size_t room = 1;

        while (room < 4 * places.size())
            room *= 2;
        known.assign(room, {0, none});
        auto find = [&](u64 tag) -> Known & {
            size_t at = tag & (room - 1);

            while (known[at].number != none && known[at].tag != tag)
                at = (at + 1) & (room - 1);
            return known[at];
        };
        number.assign(places.size(), none);
        for (size_t i = 0; i < places.size(); i++)
            if (std::max(sums_of(places[i], 0).samples, sums_of(places[i], 1).samples) >= certainty::fewest_delays) {
                u64 tag = places[i] ? groups.group(places[i]).tag : other_tag;

                number[i] = static_cast<u32>(varying.size());
                find(tag) = {tag, number[i]};
                varying.emplace_back();
            }
        if (varying.empty())
            return;
        auto each = [&](const auto &use) {
            for (const wl_connection_row *row = rows; row < rows + row_count; row++)
                if (u32 mine = find(row->tag).number; mine != none)
                    for (u32 leg = 0; leg < 2; leg++)
                        if (row->sums[2 * leg + 1])
                            use(varying[mine][leg], *row, leg);
        };

        if (last - first >= Varying::most_slots) /* stretches of a group may be fewer than those of all */
            each([](Varying &mine, const wl_connection_row &row, u32) { mine.reach(row.stretch, row.stretch); });
        for (auto &legs : varying)
            for (Varying &one : legs) {
                if (last - first < Varying::most_slots)
                    one.reach(first, last);
                one.make_room();
            }
        each([](Varying &mine, const wl_connection_row &row, u32 leg) { mine.add(row, leg); });
    }

    std::optional<ReportFigures> of_leg(size_t i, u32 leg, const std::vector<double> &shares, Groups::Cells &cells) const
    {
        const wl_sums &sums = sums_of(places[i], leg);
        auto effects = [&](double alone, auto &connections, auto &times) {
            return sums.samples < certainty::fewest_delays ? (times.emplace(), true)
                                                           : effects_of(varying[number[i]][leg], sums, alone, connections, times);
        };

        if (!sums.samples)
            return std::nullopt;
        if (!places[i]) {
            const wl_group_other &other = groups.of_other(leg);
            return figures_of(Delays({nullptr, 0}, other.weights, other.squares, WL_BINS, sums), shares, effects);
        }
        groups.cells_of_leg(places[i], leg, cells);
        return figures_of(
            Delays({cells.bins.data(), 0}, cells.weights.data(), cells.squares.data(), cells.bins.size(), sums), shares, effects);
    }

    /* How delays vary between connections and over time (connections.py). Fails if no connection of the group was kept. */
    static bool effects_of(const Varying &of, const wl_sums &sums, double alone, std::optional<certainty::Effect> &connections,
        std::optional<certainty::Effect> &times)
    {
        if (of.size == 0)
            return false;
        /* Not all connections are here if they are sampled, and more delays than the group's if it was kept late. */
        double scale = std::sqrt(of.size / static_cast<double>(sums.weight));
        auto levels = between(of.totals.data(), of.sizes.data(), WL_CROWDS, alone / std::max(scale, 1e-9));

        connections.emplace();
        if (levels)
            connections->mean = certainty::Error(levels->first * scale, levels->second);
        times = effect_over_time(of.sums.data(), of.counts.data(), of.sums.size(), sums.samples, scale);
        return true;
    }

    const Groups &groups;
    const std::vector<u32> places;
    size_t row_count = 0;
    const wl_connection_row *rows;
    const u64 first, last;   /* stretches of all */
    std::vector<u32> number; /* of each group among those that may have an interval */
    std::vector<std::array<Varying, 2>> varying;
};

#endif
