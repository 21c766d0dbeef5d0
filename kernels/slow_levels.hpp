/* How much a mean varies if delays have a level that changes, and how slowly it changes, from cosines of a recording.
 *
 * Law: batches of delays, in order of time, are noise and perhaps a level that is forgotten within a time t. The spectrum of such a
 * level is Lorentz's: an Ornstein-Uhlenbeck level, a path of two states, nearly that of a queue. The powers of the slowest cosines
 * of n batches are independent, each a chi square around the spectrum at its frequency (P. Whittle 1953). So each t, from half a
 * batch to twice the recording, and each size of the level against the noise, is as likely as these powers make it, and gives the
 * variance of the mean: the spectrum at frequency 0. Nothing is chosen: the interval is that of all of them, weighted by how likely
 * they are. Where powers cannot tell a slow level from none, both count, and the interval is wide. Before anything is seen, the
 * chance of a level is one in five, and its times and sizes are equally likely, by their logarithms.
 *
 * Law of returns: the slowest cosine alone tells a level of a quarter of the recording from one that never comes back, and it is
 * one number with much chance in it. How fast a level moves is known far better, from all cosines. A queue that moves by a variance
 * of s^2 in a unit of time, and has a mean of w above its floor, is drawn to it by s^2 / (2 w) (reflected Brownian motion: J.
 * Harrison 1985). A recording of length T shows this drift to s / sqrt(T), one part in sqrt(returns): returns = T s^2 / (4 w^2). It
 * is twice the number of independent stretches that such a queue has; of any level it is the number of its stretches, times the
 * variance of batches, noise included as it is in w, by w^2. With few returns the drift may be none, and the mean anything.
 *
 * Floats are rounded operation by operation, and added up in order: the twin (tests/oracles/over_time.py) finds the same bits.
 * Memory: 90 KB for each number of batches, of the last 32. */
#ifndef WIRELAG_SLOW_LEVELS_HPP
#define WIRELAG_SLOW_LEVELS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

namespace slow_levels {

constexpr size_t slowest = 64;    /* cosines that count */
constexpr double steady = 0.8;    /* how likely it is before that there is no level */
constexpr double doubt = 1.0 / 3; /* how likely it may be that there are fewer independent stretches than is said */
constexpr double tail = 0.05;     /* of the interval */
constexpr double nothing = 1e-6;  /* how likely what is left out may be */
constexpr int size_count = 9;     /* of the level, by the noise, at frequency 0: 2^-1, 2^1, ... 2^15 */
constexpr int halvings = 15;      /* of half a width */
constexpr double furthest = 6.0;  /* of a normal value */
constexpr size_t table_rows = 601;

/* What cosines tell of the sum of batches. */
struct Slowness {
    double half;      /* the width of its 95% interval */
    double level;     /* the part of its variance that is a level's */
    double stretches; /* independent ones */
    double returns;   /* to the floor, if the level is that of a queue */
    double part;      /* of the reach that is the level's, not that of noise */
};

/* How likely a normal value is further from 0 than each of `table_rows` values up to `furthest`. */
inline const std::vector<double> &normal()
{
    static const std::vector<double> beyond = [] {
        std::vector<double> found(table_rows);

        for (size_t row = 0; row < table_rows; row++)
            found[row] = std::erfc(static_cast<double>(row) * (furthest / (table_rows - 1)) / std::sqrt(2.0));
        return found;
    }();

    return beyond;
}

/* The same for any value, between two of the table. */
inline double normal_beyond(double x, const std::vector<double> &table)
{
    double at = x * ((table_rows - 1) / furthest);

    if (!(at < static_cast<double>(table_rows - 1)))
        return table[table_rows - 1];
    size_t row = static_cast<size_t>(at);
    return table[row] + (table[row + 1] - table[row]) * (at - static_cast<double>(row));
}

/* Half the width of the interval around 0 that misses a normal value with a chance of `tail`, if its error is one of `errors`, so
 * likely each. */
inline double half_width(const std::vector<double> &likely, const std::vector<double> &errors)
{
    auto [least, most] = std::minmax_element(errors.begin(), errors.end());
    const std::vector<double> &table = normal();
    double low = *least, high = furthest * *most;

    for (int i = 0; i < halvings; i++) {
        double middle = (low + high) / 2, missed = 0;

        for (size_t one = 0; one < errors.size(); one++)
            missed += likely[one] * normal_beyond(middle / errors[one], table);
        if (missed > tail)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* Every kind of level that is thought possible; the first is none. */
struct Kinds {
    size_t batches, cosines, count;
    std::vector<double> inverse; /* of the spectrum at each cosine, by that at 0: a row for each kind */
    std::vector<double> likely;  /* logarithm, before */
    std::vector<double> noise;   /* its share in the spectrum at 0 */
    std::vector<double> stretches;
    std::vector<size_t> fewest; /* in order of stretches */
    std::vector<double> part;   /* of the variance of a batch that is the level's */
    std::vector<double> moves;  /* returns, by the variance of the sum and the square of a batch's reach */

    Kinds(size_t of_batches, size_t of_cosines)
        : batches(of_batches), cosines(of_cosines),
          count(1 + size_count * static_cast<size_t>(std::ceil(2 * std::log2(4 * static_cast<double>(batches)))))
    {
        double each = std::log((1 - steady) / static_cast<double>(count - 1)), time = 0.5;
        std::vector<double> angle(cosines);

        for (size_t k = 0; k < cosines; k++)
            angle[k] = std::cos(static_cast<double>(k + 1) * (pi / static_cast<double>(batches)));
        inverse.assign(cosines, 1.0);
        add(std::log(steady), 1.0, static_cast<double>(batches), 0.0, std::numeric_limits<double>::infinity());
        for (size_t done = 1; done < count; time *= std::sqrt(2.0)) {
            double kept = std::exp(-1 / time), size = 0.5;

            for (int i = 0; i < size_count; i++, size *= 4, done++) {
                double share = size / (1 + size), logs = 0;
                double of_level = share * (1 - kept) / (1 + kept); /* the variance of a batch, by the spectrum at 0 */
                double of_batch = of_level + 1 - share;

                for (size_t k = 0; k < cosines; k++) {
                    double level = (1 - kept) * (1 - kept) / (1 - 2 * kept * angle[k] + kept * kept);
                    double spectrum = 1 - share + share * level;

                    logs += std::log(spectrum);
                    inverse.push_back(1 / spectrum);
                }
                add(each - 0.5 * logs, 1 - share, static_cast<double>(batches) / (2 * time), of_level / of_batch,
                    of_batch * (1 - kept) / 2);
            }
        }
        fewest.resize(count);
        std::iota(fewest.begin(), fewest.end(), size_t{0});
        std::stable_sort(fewest.begin(), fewest.end(), [this](size_t a, size_t b) { return stretches[a] < stretches[b]; });
    }

  private:
    static constexpr double pi = 3.14159265358979323846;

    void add(double before, double of_noise, double independent, double of_level, double moving)
    {
        likely.push_back(before);
        noise.push_back(of_noise);
        stretches.push_back(independent);
        part.push_back(of_level);
        moves.push_back(moving);
    }
};

/* The kinds for this number of batches and cosines; the last ones asked for are kept. */
inline std::shared_ptr<const Kinds> kinds_of(size_t batches, size_t cosines)
{
    constexpr size_t most = 32;
    static std::mutex one_at_a_time;
    static std::list<std::shared_ptr<const Kinds>> known; /* the last one first */
    std::lock_guard<std::mutex> guard(one_at_a_time);

    auto found = std::find_if(known.begin(), known.end(),
        [&](const std::shared_ptr<const Kinds> &one) { return one->batches == batches && one->cosines == cosines; });
    if (found != known.end())
        known.splice(known.begin(), known, found);
    else
        known.push_front(std::make_shared<const Kinds>(batches, cosines));
    if (known.size() > most)
        known.pop_back();
    return known.front();
}

/* Of kinds in order of a value the one below which the true one lies with as much doubt as is allowed. */
inline size_t doubted(const std::vector<size_t> &order, const std::vector<double> &weights)
{
    double fewer = 0;

    for (size_t kind : order)
        if ((fewer += weights[kind]) >= doubt)
            return kind;
    return order.back();
}

/* What the powers of the slowest cosines of this many batches tell; not all of them are 0. `reach`: by how much the mean batch lies
 * above the lowest ones. */
inline Slowness slowness(const std::vector<double> &powers, size_t batches, double reach)
{
    const std::shared_ptr<const Kinds> known = kinds_of(batches, powers.size());
    const Kinds &kinds = *known;
    double freedom = static_cast<double>(powers.size()), top = -std::numeric_limits<double>::infinity(), whole = 0;
    std::vector<double> variances(kinds.count), weights(kinds.count), returns(kinds.moves), likely, errors;

    for (size_t kind = 0; kind < kinds.count; kind++) {
        const double *inverse = &kinds.inverse[kind * kinds.cosines];
        double left = 0;

        for (size_t k = 0; k < kinds.cosines; k++)
            left += inverse[k] * powers[k];
        variances[kind] = left / freedom;
        weights[kind] = kinds.likely[kind] - 0.5 * freedom * std::log(left);
        top = std::max(top, weights[kind]);
    }
    for (double &weight : weights)
        whole += weight = std::exp(weight - top);
    double noise = 0, middle = 0;
    for (size_t kind = 0; kind < kinds.count; kind++) {
        double weight = weights[kind] /= whole;

        noise += weight * (variances[kind] * kinds.noise[kind]);
        if (reach > 0)
            returns[kind] = kinds.moves[kind] * variances[kind] / (reach * reach);
        if (weight <= nothing)
            continue;
        likely.push_back(weight);
        errors.push_back(std::sqrt(variances[kind]));
        middle += weight * std::log(variances[kind]);
    }
    std::vector<size_t> order(kinds.count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return returns[a] < returns[b]; });
    size_t kind = doubted(order, weights);

    return {half_width(likely, errors), std::max(0.0, std::exp(middle) - noise), kinds.stretches[doubted(kinds.fewest, weights)],
        returns[kind], std::sqrt(kinds.part[kind])};
}

} // namespace slow_levels

#endif
