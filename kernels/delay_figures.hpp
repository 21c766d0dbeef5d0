/* Figures of a distribution besides its quantiles, from the middles of its bins (stats/distribution.py).
 *
 * Floats are rounded operation by operation, and added up in order: the twin (tests/oracles/delay_figures.py) finds the same bits.
 */
#ifndef WIRELAG_DELAY_FIGURES_HPP
#define WIRELAG_DELAY_FIGURES_HPP

#include "bins.hpp"
#include "ranked_bins.hpp"

/* Bins that hold delays, each with its weight and the sum of squared weights. */
class DelayFigures {
  public:
    template <typename BinOf>
    DelayFigures(BinOf bin, const u64 *weight, const u64 *square, size_t count, double mean, double std)
        : ranked(bin, weight, count, 0), mean_ns(mean), std_ns(std)
    {
        double inside = 0;

        for (size_t i = 0; i < count; i++) {
            if (!weight[i])
                continue;
            double apart = bin_middle(static_cast<u64>(bin[i])) - mean, w = static_cast<double>(weight[i]);

            squares += square[i];
            spread += static_cast<double>(square[i]) * (apart * apart);
            third += w * (apart * apart * apart);
            inside += w * apart;
            held.push_back({squares, inside});
        }
    }

    /* The sum of the squared weights. */
    u64 sum_squares() const
    {
        return squares;
    }

    /* The sum of squared weights, each times the square of how far a delay is from the mean. The spread within bins is lost in
     * their middles: at most 0.4% of it. */
    double squared_apart() const
    {
        return spread;
    }

    double skewness() const
    {
        double weight = static_cast<double>(ranked.weight());

        return std_ns > 0 ? third / weight / (std_ns * std_ns * std_ns) : 0.0;
    }

    /* The standard error of the share of delays that lie in bins below this one. Each sample counts with its weight w, W is their
     * sum; the share F is a ratio, and its variance is the sum of w^2 (1[below] - F)^2, over W^2. */
    double share_error(s64 below) const
    {
        auto [place, shorter] = ranked.before(below);
        double weight = static_cast<double>(ranked.weight()), share = static_cast<double>(shorter) / weight;
        u64 inside = place ? held[place - 1].squares : 0, outside = squares - inside;

        return std::sqrt(
                   static_cast<double>(inside) * ((1 - share) * (1 - share)) + static_cast<double>(outside) * (share * share)) /
               weight;
    }

    /* How much of the share of delays in bins below this one follows the mean: their squared correlation. */
    double follows_mean(s64 below) const
    {
        auto [place, shorter] = ranked.before(below);
        double weight = static_cast<double>(ranked.weight()), share = static_cast<double>(shorter) / weight;

        if (!(std_ns > 0) || !(0 < share && share < 1))
            return 1.0;
        double together = held[place - 1].moment / weight;
        return std::min(1.0, together * together / (share * (1 - share) * (std_ns * std_ns)));
    }

    /* The weight of the bins from this one on. */
    u64 from(s64 bin) const
    {
        return ranked.weight() - ranked.before(bin).second;
    }

    const RankedBins ranked;

  private:
    struct Held { /* up to a bin, itself included */
        u64 squares;
        double moment; /* weights, each times how far its delay is from the mean */
    };

    double mean_ns, std_ns;
    u64 squares = 0;
    double spread = 0, third = 0;
    std::vector<Held> held;
};

#endif
