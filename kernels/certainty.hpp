/* How sure figures of delays are (stats/over_time.py, shares.py and certainty.py state the laws).
 *
 * Floats are rounded operation by operation: the twin (tests/oracles/certainty.py) finds the same bits. */
#ifndef WIRELAG_CERTAINTY_HPP
#define WIRELAG_CERTAINTY_HPP

#include <array>
#include <optional>
#include <utility>

#include "between.hpp"
#include "delay_figures.hpp"
#include "over_time.hpp"
#include "whole_numbers.hpp"

namespace certainty {

using Error = std::pair<double, double>; /* a standard error, and its degrees of freedom */
using Bounds = std::pair<double, double>;
using over_time::OverTime;
using over_time::z95;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr u64 fewest_delays = 64;        /* that give an interval */
constexpr double fewest_stretches = 2.0; /* independent ones that give an interval */
constexpr double fewest_returns = 1.5;   /* of a queue to its floor that give an interval */
constexpr double upwards = 2.5;          /* how much longer an interval is upwards, for each time that it is as wide as the value */
constexpr double falls = 0.3, rises = 1.0; /* how far a median at the floor moves, by how far the mean of waits does */
constexpr double widest_mean = 10.0;       /* times the mean, where an interval that ends beyond all delays may end */
constexpr double widest_up = 1.25;         /* exponent: a mean is higher by at most 2.5 times the part above the floor */
constexpr double seldom = 0.9;             /* of the error: by how much less a mean lies too high, the wider it is */
constexpr double follows_up_to = 0.95;     /* quantiles up to here are shorter where the mean is */
constexpr double shorter_alike = 1.0 / 3;  /* for how long what does not follow the mean is alike, by the mean itself */
constexpr double fewest_beyond = 5;        /* delays beyond the end of a quantile's interval */
constexpr double rare_alike = 50.0;        /* the same, if delays are alike, */
constexpr double more_than_chance = 1.5;   /* which make the interval of the mean this many times as wide */
constexpr double stretches_beyond = 0.5;   /* independent stretches beyond a quantile */
constexpr double often = 0.05;             /* the share of delays that no recording misses altogether */
constexpr double further = 3.0;            /* how much further a share may lie beyond a quantile, the rarer delays are there */
constexpr double widest_share = 2.3;       /* exponent: further than ten times a share nothing is said */

/* As Python's `**` rounds it: a compiler would multiply instead. */
inline double power(double x, int y)
{
    volatile double exponent = y;

    return std::pow(x, exponent);
}

/* The error that a mean would have if delays were independent, and what gives its interval a shape (over_time.py). */
struct Chance {
    double error, skewness, samples, higher;
};

/* Half-width of a 95% interval in standard errors (Student, by the inverse of Wallace's approximation). */
inline double half95(double freedom)
{
    if (std::isinf(freedom))
        return z95;
    double deviate = z95 * (8 * freedom + 3) / (8 * freedom + 1);
    return std::sqrt(freedom * std::expm1(deviate * deviate / freedom));
}

inline double half_of(const Error &error)
{
    return half95(error.second) * error.first;
}

/* The error of a sum of values with these errors (B. Welch 1947, F. Satterthwaite 1946). */
inline Error welch(const Error *errors, size_t count)
{
    double squares = 0, fourths = 0;

    for (size_t i = 0; i < count; i++) {
        squares += power(errors[i].first, 2);
        fourths += power(errors[i].first, 4) / errors[i].second;
    }
    return {std::sqrt(squares), fourths != 0 ? power(squares, 2) / fourths : infinity};
}

/* By which share waits may be shorter on average, if the half-width of the mean is this share of them. */
inline double shorter(double ratio)
{
    return 1 - 1 / (1 + ratio / std::sqrt(1 + seldom * ratio));
}

/* The part of a mean's interval that is like that of a queue, and how much longer waits may be on average there. */
inline std::pair<double, double> longer(double half, double above, double by_chance, double skewness)
{
    double ratio = half / above, up = std::expm1(std::min(ratio * (1 + upwards * ratio), widest_up));

    return {(1 - power(by_chance, 2)) * std::min(std::max(skewness / over_time::skewed, 0.0), 1.0), up};
}

/* The 95% interval of a value, of which `above` lies above a floor (0: unknown); `chance` is in its error. */
inline Bounds bounds(double value, const Error &error, double above, const Chance &chance)
{
    static const double hall = (1 + 2 * power(z95, 2)) / 6;
    double half = half_of(error);

    if (above <= 0)
        return {value - half, value + half};
    double by_chance = error.first > 0 ? std::min(1.0, chance.error / error.first) : 1.0;
    auto [alike, up] = longer(half, above, by_chance, chance.skewness);
    up = std::max(up, chance.higher / above);
    double shift = error.first * power(by_chance, 3) * chance.skewness / std::sqrt(chance.samples) * hall;
    double low = alike * above * -shorter(half / above) + (1 - alike) * -half + shift;
    double high = alike * above * up + (1 - alike) * half + shift;
    return {value + low, value + high};
}

/* The interval of a quantile that follows the mean; `ends` are those that shares of delays tell. */
inline Bounds with_the_mean(double q, const Bounds &ends, double middle, double floor, const std::optional<Error> &error,
    double above, const Chance &chance)
{
    if (!error || error->first <= 0 || above <= 0 || q < 0.5)
        return ends;
    double low = ends.first, high = ends.second, half = half_of(*error);
    auto [alike, up] = longer(half, above, std::min(1.0, chance.error / error->first), chance.skewness);
    double at_most = std::max(middle - floor, falls * above), at_least = std::max(middle - floor, rises * above);
    high = std::max(high, middle + alike * std::max(up, chance.higher / above) * at_most);
    if (q <= follows_up_to)
        low += alike * std::max(0.0, middle - shorter(half / above) * at_least - low);
    double highest = bounds(floor + above, *error, above, chance).second;
    return {low, std::min(high, floor + (highest - floor) / (1 - q))}; /* not more can be that long (A. Markov) */
}

/* The 95% interval of a share of n, valid also at 0 and 1 (Wilson's). */
inline Bounds wilson(double share, double n)
{
    static const double squared = power(z95, 2);
    double middle = (share + squared / (2 * n)) / (1 + squared / n);
    double half = z95 * std::sqrt(share * (1 - share) / n + power(z95 / (2 * n), 2)) / (1 + squared / n);

    return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

/* The part of the variance of a share that is not chance of independent samples. */
inline double alike_part(double share, const Error &error, double samples)
{
    double by_chance = share * (1 - share) / samples;

    return power(error.first, 2) > by_chance ? 1 - by_chance / power(error.first, 2) : 0.0;
}

/* The 95% interval of a share: at least that of independent samples. */
inline Bounds share_bounds(double share, const Error &error, double samples)
{
    Bounds ends = wilson(share, samples), wide;

    if (!(0 < share && share < 1))
        return ends;
    double half = half_of(error), alike = alike_part(share, error, samples);
    double up = half / share, down = half / (1 - share); /* far ends are ratios of the smaller part */
    if (share <= 0.5) {
        double rarer = further * (1 - 2 * share);
        wide = {share * std::exp(-up), share * std::exp(std::min(up * (1 + rarer * up), widest_share))};
    } else {
        wide = {1 - (1 - share) * std::exp(std::min(down, widest_share)), 1 - (1 - share) * std::exp(-down)};
    }
    return {std::max(0.0, ends.first + alike * std::min(0.0, wide.first - ends.first)),
        std::min(1.0, ends.second + alike * std::max(0.0, wide.second - ends.second))};
}

/* Whether a quantile has an interval, if its error is larger than by chance alone by the same factor as the mean's. */
inline bool enough_beyond(double q, double wider, double samples, double stretches)
{
    double beyond = std::min(q, 1 - q);
    bool is_often = beyond >= often;

    if (!is_often && wider > more_than_chance && samples * beyond < rare_alike)
        return false;
    if (is_often && stretches * beyond < stretches_beyond)
        return false;
    return z95 * (is_often ? 1.0 : wider) * std::sqrt(q * (1 - q) / samples) <= beyond;
}

/* The shares at which the ends of a quantile's 95% interval lie (Woodruff); none if too few delays are beyond. `error` is that of
 * the share of delays below the quantile. */
inline std::optional<Bounds> quantile_shares(double q, const Error &error, double samples)
{
    static const double fisher = (power(z95, 2) - 1) / 6;
    double beyond = std::min(q, 1 - q), by_chance = z95 * std::sqrt(q * (1 - q) / samples);
    double half = std::max(half_of(error), by_chance), ratio = half / beyond;

    if ((beyond >= often ? by_chance : half) > beyond)
        return std::nullopt;
    double alike = alike_part(q, error, samples), rarer = further * (1 - 2 * beyond);
    double shift = (1 - 2 * beyond) * fisher / samples;
    auto end = [&](double like, double straight) { return beyond * (alike * like + (1 - alike) * straight) + (1 - alike) * shift; };
    double near = end(std::exp(std::min(ratio, widest_share)), 1 + ratio);
    double far = end(std::exp(-ratio * (1 + rarer * ratio)), 1 - ratio);
    if ((beyond >= often ? beyond - by_chance + shift : far) * samples < fewest_beyond)
        return std::nullopt;
    near = std::min(near, 1.0);
    far = std::max(far, 0.0);
    return q < 0.5 ? Bounds(far, near) : Bounds(1 - near, 1 - far);
}

/* Why there are no intervals. */
enum Why : u32 { KNOWN, TOO_FEW, TOO_SLOW, TOO_WIDE };

inline Why tells(const std::optional<OverTime> &over, u64 samples)
{
    if (samples < fewest_delays)
        return TOO_FEW;
    return !over || over->stretches < fewest_stretches || over->returns < fewest_returns ? TOO_SLOW : KNOWN;
}

inline bool too_wide(double mean, double high, double longest)
{
    return !(high <= std::max(longest, widest_mean * mean));
}

/* The error of a mean whose samples are alike in parts: that of independent delays is in it. None: there are too few parts. */
struct Effect {
    std::optional<Error> mean;
    std::optional<OverTime> over; /* of time */

    /* `scale` corrects errors of other delays of the same kind. */
    static Effect of_time(const std::optional<OverTime> &found, double scale = 1.0)
    {
        Effect made = {std::nullopt, found};

        if (found)
            made.mean = Error(found->half / half95(found->freedom) * scale, found->freedom);
        return made;
    }
};

/* The error of a mean if delays are independent; none with fewer than two. */
inline std::optional<double> independent_error(const DelayFigures &figures, const wl_sums &sums)
{
    u64 n = sums.samples;

    if (n < 2 || !sums.weight)
        return std::nullopt;
    double variance = figures.squared_apart() * static_cast<double>(n) / static_cast<double>(n - 1);
    return std::sqrt(variance) / static_cast<double>(sums.weight);
}

/* Delays with their figures, and how sure these are. Effects: of connections, and of time. */
class Sure {
  public:
    /* Without effects delays are independent. */
    Sure(const DelayFigures &figures, const wl_sums &sums, double mean, const std::optional<Effect> &connections,
        const std::optional<Effect> &times)
        : figures(figures), sums(sums), mean_ns(mean), connections(connections), times(times)
    {
        u64 n = sums.samples, squares = n ? figures.sum_squares() : 0;

        least = n ? static_cast<double>(sums.min_ns) : 0.0;
        most = n ? static_cast<double>(sums.max_ns) : 0.0;
        effective_samples = squares ? ratio_of(static_cast<u128>(sums.weight) * sums.weight, squares) : 0.0;
        alone = independent_error(figures, sums);
        if (alone) {
            const std::optional<Error> mine[] = {
                connections ? connections->mean : std::nullopt, times ? times->mean : std::nullopt};
            mean_error = together(*alone, mine);
        }
        chance = {
            alone.value_or(0.0), n ? figures.skewness() : 0.0, effective_samples, times && times->over ? times->over->higher : 0.0};
        reason = times ? tells(times->over, n) : KNOWN;
        if (reason == KNOWN)
            if (std::optional<Bounds> found = mean_bounds(); found && too_wide(mean_ns, found->second, most))
                reason = TOO_WIDE;
    }

    Why why_none() const
    {
        return reason;
    }

    double effective() const
    {
        return effective_samples;
    }

    std::optional<Bounds> mean() const
    {
        return reason == KNOWN ? mean_bounds() : std::nullopt;
    }

    /* The delay below which a share of q lies; NaN without delays. */
    double quantile(double q) const
    {
        std::optional<double> found = figures.ranked.quantile(q);

        return found ? std::min(std::max(*found, least), most) : std::nan("");
    }

    std::optional<Bounds> quantile_bounds(double q) const
    {
        if (sums.samples < 2 || reason != KNOWN || !told_beyond(q))
            return std::nullopt;
        std::optional<Bounds> shares = quantile_shares(q, share_error(figures.ranked.bin_at(q) + 1), effective_samples);
        if (!shares)
            return std::nullopt;
        Bounds ends(quantile(shares->first), quantile(shares->second));
        return with_the_mean(q, ends, quantile(q), least, mean_error, mean_ns - least, chance);
    }

    std::optional<Bounds> share_above(s64 from) const
    {
        if (!sums.weight || reason != KNOWN)
            return std::nullopt;
        double share = static_cast<double>(figures.from(from)) / static_cast<double>(sums.weight);
        return share_bounds(share, share_error(from), effective_samples);
    }

  private:
    std::optional<Bounds> mean_bounds() const
    {
        if (!sums.weight || !mean_error)
            return std::nullopt;
        auto [low, high] = bounds(mean_ns, *mean_error, mean_ns - least, chance);
        return Bounds(std::max(0.0, low), high);
    }

    Error together(double independent, const std::optional<Error> (&errors)[2]) const
    {
        Error known[2], otherwise(independent, std::max(1.0, static_cast<double>(sums.samples) - 1.0));
        size_t count = 0;

        for (const std::optional<Error> &one : errors)
            if (one && one->first != 0)
                known[count++] = *one;
        if (!count)
            return otherwise;
        auto [error, freedom] = welch(known, count);
        double variance = power(error, 2) - static_cast<double>(count - 1) * power(independent, 2);
        return variance > power(independent, 2) ? Error(std::sqrt(variance), freedom) : otherwise;
    }

    Error share_error(s64 below) const
    {
        double independent = figures.share_error(below);
        const std::optional<Error> errors[] = {of_share(connections, below, independent), of_share(times, below, independent)};

        return together(independent, errors);
    }

    /* The error of the share of delays in bins below this one. Between connections it is larger by as much as that of the mean.
     * Over time, by the part of it that follows the mean; the rest is alike for a shorter time. */
    std::optional<Error> of_share(const std::optional<Effect> &effect, s64 below, double independent) const
    {
        if (!effect || !effect->mean || !alone || *alone == 0)
            return std::nullopt;
        double follows = effect->over ? figures.follows_mean(below) : 1.0;
        double larger = power(effect->mean->first / *alone, 2) - 1;
        larger *= larger > 0 ? follows + (1 - follows) * shorter_alike : 1.0;
        return Error(independent * std::sqrt(1 + larger), effect->mean->second);
    }

    bool told_beyond(double q) const
    {
        if (!alone || *alone == 0 || !mean_error)
            return true;
        double stretches = times && times->over ? times->over->stretches : infinity;
        return enough_beyond(q, half95(mean_error->second) / z95 * mean_error->first / *alone, effective_samples, stretches);
    }

    const DelayFigures &figures;
    const wl_sums sums;
    double mean_ns, least, most, effective_samples;
    std::optional<Effect> connections, times;
    std::optional<double> alone; /* the error of the mean if delays were independent */
    std::optional<Error> mean_error;
    Chance chance;
    Why reason;
};

} // namespace certainty

#endif
