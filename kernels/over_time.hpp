/* How the mean of delays varies over time, from their batches (over_time.py states the laws of errors and of calm).
 *
 * Floats are rounded operation by operation, and added up in order: the twin (tests/oracles/over_time.py) finds the same bits. */
#ifndef WIRELAG_OVER_TIME_HPP
#define WIRELAG_OVER_TIME_HPP

#include <cstdint>
#include <optional>

#include "slow_levels.hpp"

namespace over_time {

constexpr size_t most_batches = 128; /* that an error is learned from */
constexpr size_t fewest_batches = 4; /* that give any error */
constexpr double lowest = 0.05;      /* the share of batches that tell where the floor of a queue is */
constexpr double follow = 0.15;      /* correlation of neighbours from which on delays may wait for each other */
constexpr double skewed = 0.5;       /* skewness of delays like waits: those of a queue have 2, a short recording shows less */
constexpr double long_alike = 32.0;  /* delays that stay alike: from so many on they may be waits, even if they are not skewed */
constexpr double calm = 150.0;       /* delays of a busy queue that may all be of a calm time */
constexpr double highest = 3.0;      /* a mean is higher by at most this many times the part above the floor, with few returns; */
constexpr double furthest = 9.0;     /* by more if the law of calm holds, but further nothing is said */
constexpr double few_returns = 4.0;  /* the error of a drift grows no further with fewer than about this many */
constexpr uint64_t many = 1024;      /* delays, among which it does not matter that some came together */
constexpr double z95 = 1.959963984540054;

struct OverTime {
    double half;      /* half the width of the 95% interval of the mean */
    double freedom;   /* of its error */
    double stretches; /* independent ones */
    double level;     /* the variance of the mean by a level that changes */
    double returns;   /* to the floor, if the level is that of a queue */
    double higher;    /* by how much the mean may lie higher then */
};

/* Sums of delays, and how many each has. */
struct Batches {
    std::vector<double> totals, sizes;
};

/* Parts in order of time, put together to batches of about the same weight. */
inline Batches equal_batches(const std::vector<double> &sums, const std::vector<double> &weights)
{
    Batches found;
    size_t batches = std::min(most_batches, sums.size());
    double whole = 0, before = 0;

    for (double weight : weights)
        whole += weight;
    found.totals.assign(batches, 0.0);
    found.sizes.assign(batches, 0.0);
    for (size_t part = 0; part < sums.size(); part++) {
        before += weights[part];
        double middle = (before - weights[part] / 2) * (static_cast<double>(batches) / whole);
        size_t batch = static_cast<size_t>(std::min(middle, static_cast<double>(batches - 1)));

        found.totals[batch] += sums[part];
        found.sizes[batch] += weights[part];
    }
    size_t kept = 0;
    for (size_t batch = 0; batch < batches; batch++)
        if (found.sizes[batch] > 0) {
            found.totals[kept] = found.totals[batch];
            found.sizes[kept++] = found.sizes[batch];
        }
    found.totals.resize(kept);
    found.sizes.resize(kept);
    return found;
}

/* The power of the slowest cosines, each of which is the variance of a sum of independent batches. */
inline std::vector<double> cosines(const std::vector<double> &apart, size_t most)
{
    size_t n = apart.size(), period = 4 * n; /* of the cosine, in halves of an angle */
    std::vector<double> wave(period), powers(std::min(most, n - 1));

    for (size_t i = 0; i < period; i++)
        wave[i] = std::cos(static_cast<double>(i) * (3.14159265358979323846 / static_cast<double>(2 * n)));
    for (size_t k = 0; k < powers.size(); k++) {
        size_t step = 2 * (k + 1), at = k + 1;
        double sum = 0;

        for (double one : apart) {
            sum += wave[at] * one;
            at += step;
            at -= at >= period ? period : 0;
        }
        powers[k] = 2 * (sum * sum);
    }
    return powers;
}

/* The value below which a share of `lowest` lies. */
inline double low_end(std::vector<double> means)
{
    double place = lowest * static_cast<double>(means.size() - 1);
    size_t before = static_cast<size_t>(place);

    std::sort(means.begin(), means.end());
    return (means[before + 1] - means[before]) * (place - static_cast<double>(before)) + means[before];
}

/* By which share the mean of a queue may be longer, by the error of its drift; at most as much as is ever said. */
inline double inverse(double returns)
{
    double error = z95 * std::sqrt(2 / (returns + few_returns));

    return error < 1 ? std::min(1 / (1 - error) - 1, furthest) : furthest;
}

/* How the mean of batches of about the same size varies, none of which is empty; there are two at least. */
inline OverTime over_batches(const Batches &batches, double samples)
{
    constexpr double infinity = std::numeric_limits<double>::infinity();
    size_t n = batches.totals.size();
    double whole = 0, total = 0, squares = 0, second = 0, third = 0, together = 0;

    for (size_t i = 0; i < n; i++) {
        whole += batches.sizes[i];
        total += batches.totals[i];
    }
    std::vector<double> apart(n), means(n);
    for (size_t i = 0; i < n; i++) {
        apart[i] = batches.totals[i] - batches.sizes[i] * (total / whole);
        means[i] = apart[i] / batches.sizes[i];
        squares += apart[i] * apart[i];
        second += means[i] * means[i];
        third += means[i] * means[i] * means[i];
        together += i ? apart[i] * apart[i - 1] : 0.0;
    }
    if (!(squares > 0))
        return {0.0, static_cast<double>(n - 1), infinity, 0.0, infinity, 0.0};
    double count = static_cast<double>(n), reach = -low_end(means);
    double skewness = third / count / std::pow(second / count, 1.5);
    double correlation = together / squares - 0.5 / std::sqrt(count);
    double follows = std::min(std::max(correlation / follow, 0.0), 1.0);
    std::vector<double> powers = cosines(apart, slow_levels::slowest);
    slow_levels::Slowness found = slow_levels::slowness(powers, n, reach * whole / count);
    /* Batches of noise are not skewed, whatever delays are. */
    double alike = std::min(std::max(2 * skewness / skewed, 0.0), 1.0);
    double lasting = std::min(samples / found.stretches / long_alike, 1.0);
    double calmness = follows * std::max(alike, lasting * lasting), doubted = 1 + calmness * calm / samples;
    double doubt = doubted * doubted;
    double returns = std::min(found.returns, follows > 0 ? samples / (2 * follows) : infinity) / doubt;
    double higher = std::max(0.0, reach) * alike * found.part * std::min(inverse(returns), highest * doubt);

    return {
        found.half / whole, static_cast<double>(powers.size()), found.stretches, found.level / (whole * whole), returns, higher};
}

/* How sum(sums) / sum(counts) varies, for parts in order of time that hold `samples` delays; none: too few. */
inline std::optional<OverTime> over_time(const double *sums, const double *counts, size_t parts, uint64_t samples)
{
    std::vector<double> held, weights;
    double whole = 0;

    for (size_t part = 0; part < parts; part++)
        if (counts[part] > 0) {
            held.push_back(sums[part]);
            weights.push_back(counts[part]);
            whole += counts[part];
        }
    if (held.size() < fewest_batches)
        return std::nullopt;
    if (held.size() < samples && samples <= many && whole == static_cast<double>(samples)) {
        /* Delays that came together are alike: as one they would make batches of different sizes, which look like noise. */
        std::vector<double> each;

        for (size_t part = 0; part < held.size(); part++)
            each.insert(each.end(), static_cast<size_t>(weights[part]), held[part] / weights[part]);
        held = std::move(each);
        weights.assign(held.size(), 1.0);
    }
    return over_batches(equal_batches(held, weights), static_cast<double>(samples));
}

} // namespace over_time

#endif
