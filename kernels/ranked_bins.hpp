/* Bins in order with the rank of each, for several quantiles of the same delays (distribution.py states the rule of quantiles).
 *
 * Law: floats are rounded as Python rounds them, operation by operation: the twin finds the same bits. */
#ifndef WIRELAG_RANKED_BINS_HPP
#define WIRELAG_RANKED_BINS_HPP

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

extern "C" {
#include "distribution.h"
}

class RankedBins {
  public:
    static constexpr u64 few = 20;        /* delays: of fewer, a quantile may lie between two of them */
    static constexpr double whole = 1e-9; /* q n is a whole number if it is as close to one */

    /* Bins without weight are left out. `below` others are shorter than all. */
    template <typename Bins, typename Weight>
    RankedBins(const Bins &bin, const Weight *weight, size_t count, u64 shorter) : below(shorter)
    {
        u64 rank = below;

        for (size_t i = 0; i < count; i++)
            if (weight[i])
                entries.push_back({static_cast<s64>(bin[i]), rank, rank += static_cast<u64>(weight[i])});
    }

    u64 weight() const
    {
        return entries.empty() ? below : entries.back().end;
    }

    /* The delay below which a share of q lies; none if it is one of those below. */
    std::optional<double> quantile(double q) const
    {
        u64 n = weight();
        double rank = std::min(std::max(q, 0.0), 1.0) * static_cast<double>(n);
        bool between = n < few && 1 <= rank && rank < static_cast<double>(n) && std::fabs(rank - std::nearbyint(rank)) < whole;

        if (!n || (below && std::min(static_cast<u64>(rank), n - 1) < below + between))
            return std::nullopt;
        return between ? (at(rank - 1) + at(rank)) / 2 : at(rank);
    }

    /* The first bin up to which a share of q lies. */
    s64 bin_at(double q) const
    {
        double rank = std::ceil(q * static_cast<double>(weight()));
        auto found = std::lower_bound(entries.begin(), entries.end(), rank,
            [](const Entry &one, double wanted) { return static_cast<double>(one.end) < wanted; });

        if (found == entries.end())
            throw std::out_of_range("there are no delays beyond that share");
        return found->bin;
    }

    /* How many bins come before this one, and the weight of what lies in them. */
    std::pair<size_t, u64> before(s64 bin) const
    {
        auto found = std::lower_bound(
            entries.begin(), entries.end(), bin, [](const Entry &one, s64 wanted) { return one.bin < wanted; });

        return {static_cast<size_t>(found - entries.begin()), found == entries.begin() ? below : found[-1].end};
    }

  private:
    struct Entry {
        s64 bin;
        u64 begin, end; /* ranks */
    };

    /* The delay of this rank: inside a bin delays are taken to lie evenly, each in the middle of its share. */
    double at(double rank) const
    {
        u64 place = std::min(static_cast<u64>(rank), weight() - 1);
        auto found = std::upper_bound(
            entries.begin(), entries.end(), place, [](u64 wanted, const Entry &one) { return wanted < one.end; });
        u64 bin = static_cast<u64>(found->bin), shift = std::max<s64>((found->bin >> WL_BIN_BITS) - 1, 0);
        double inside = (rank - static_cast<double>(found->begin) + 0.5) / static_cast<double>(found->end - found->begin);

        return static_cast<double>((bin - (shift << WL_BIN_BITS)) << shift) +
               static_cast<double>((1ull << shift) - 1) * std::min(1.0, inside);
    }

    std::vector<Entry> entries;
    u64 below;
};

#endif
