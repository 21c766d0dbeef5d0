/* How to divide memory among fridges (docs/reference/fridge.md, "Plans", is the law; tests/oracles/fridge_plan.py its twin).
 *
 * Floats are rounded operation by operation, and added up in a stated order: the twin finds the same bits. */
#ifndef WIRELAG_FRIDGE_PLAN_HPP
#define WIRELAG_FRIDGE_PLAN_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "delay_figures.hpp"
#include "fridges.hpp"

namespace fridge_plan {

constexpr size_t points = 48;    /* ranks that stand for all delays */
constexpr size_t lanes = 8;      /* sums of every eighth of them, which are then added in pairs */
constexpr int smallest = 24;     /* entry probabilities are tried down to 2^-24 */
constexpr double least = 1e-200; /* probabilities of being seen */
constexpr u64 certain = 1ull << 32;

using Case = std::array<double, points>; /* requests that delays must survive */
using Cases = std::vector<Case>;

struct Plan {
    std::vector<u64> slots, probabilities; /* in 2^-32 */
};

/* The requests that delays survive at this rate, if they are known by their weights in bins. */
inline Case known(double rate_per_s, const u64 *weights)
{
    u64 whole = 0, sum = 0;
    size_t bin = 0;
    Case survived;

    for (size_t i = 0; i < WL_BINS; i++)
        whole += weights[i];
    sum = weights[0];
    for (size_t i = 0; i < points; i++) {
        double rank = (static_cast<double>(i) + 0.5) / points * static_cast<double>(whole);

        while (static_cast<double>(sum) < rank && bin + 1 < WL_BINS)
            sum += weights[++bin];
        survived[i] = bin_middle(bin) / 1e9 * rate_per_s;
    }
    return survived;
}

/* Unknown delays: the longest is 16 to 4096 ms, or at an unknown rate survives 2^6 to 2^22 requests; ranks are log-uniform over
 * ten octaves. */
inline Cases unknown(std::optional<double> rate_per_s)
{
    Cases cases;

    for (int octave = rate_per_s ? 4 : 6; octave <= (rate_per_s ? 12 : 22); octave++) {
        double longest = rate_per_s ? std::exp2(octave) / 1e3 * *rate_per_s : std::exp2(octave);
        Case survived;

        for (size_t i = 0; i < points; i++)
            survived[i] = longest * std::pow(2.0, 10 * ((static_cast<double>(i) + 0.5) / points - 1));
        cases.push_back(survived);
    }
    return cases;
}

/* The probability of being seen in one fridge after so many requests. */
inline double seen(double probability, double slots, double survived)
{
    return probability * std::exp(survived * std::log1p(-std::min(probability / slots, 1 - 1e-9)));
}

/* By how much the standard error exceeds that of seeing every delay, of the chances in several fridges. */
inline double inflation(const std::vector<const double *> &chances)
{
    std::array<double, lanes> sums = {};

    for (size_t i = 0; i < points; i += lanes)
        for (size_t lane = 0; lane < lanes; lane++) {
            double q = 0;

            for (const double *of : chances)
                q += of[i + lane];
            sums[lane] += 1 / std::max(q, least);
        }
    double whole = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    return std::sqrt(whole / points);
}

inline double inflation(const Plan &plan, const Case &survived)
{
    std::vector<Case> chances(plan.slots.size());
    std::vector<const double *> of;

    for (size_t k = 0; k < plan.slots.size(); k++) {
        for (size_t i = 0; i < points; i++)
            chances[k][i] = seen(
                static_cast<double>(plan.probabilities[k]) / certain, static_cast<double>(plan.slots[k]), survived[i]);
        of.push_back(chances[k].data());
    }
    return inflation(of);
}

inline u64 power_of_two(u64 most)
{
    u64 n = 1;

    while (n <= most / 2)
        n *= 2;
    return n;
}

/* Equal powers of two, then doubled one after the other while they fit. */
inline std::vector<u64> equal(u64 room, u64 count)
{
    std::vector<u64> slots(count, power_of_two(room / count));
    u64 sum = count * slots[0];

    for (u64 &one : slots)
        if (sum + one <= room) {
            sum += one;
            one *= 2;
        }
    return slots;
}

/* The largest power of two, and the largest one in the remaining space. */
inline std::vector<u64> greedy(u64 room)
{
    u64 first = power_of_two(room);

    return room > first ? std::vector<u64>{first, power_of_two(room - first)} : std::vector<u64>{first};
}

/* Entry probabilities to try: powers of two at (nearly) equal distances, the largest first; if the first is 1, it takes what the
 * others leave. In the order of their powers. */
inline std::vector<std::vector<u64>> entries(size_t fridges)
{
    std::vector<std::vector<int>> powers;
    std::vector<std::vector<u64>> found;

    for (int first = 0; first <= smallest; first++)
        for (int halves = 2; halves <= 2 * smallest; halves++) {
            std::vector<int> one;

            for (size_t k = 0; k < fridges; k++)
                one.push_back(first + halves * static_cast<int>(k) / 2);
            if (one.back() <= smallest)
                powers.push_back(one);
        }
    std::sort(powers.begin(), powers.end());
    powers.erase(std::unique(powers.begin(), powers.end()), powers.end());
    for (const std::vector<int> &one : powers) {
        std::vector<u64> entry;
        u64 others = 0;

        for (int power : one)
            entry.push_back(certain >> power);
        for (size_t k = 1; k < fridges; k++)
            others += entry[k];
        entry[0] = std::min(entry[0], certain - others);
        found.push_back(entry);
    }
    return found;
}

/* The same, found once: a plan is made each second of a capture. */
inline const std::vector<std::vector<u64>> &entries_of(size_t fridges)
{
    thread_local std::array<std::vector<std::vector<u64>>, WL_MOST_FRIDGES + 1> known;

    if (known[fridges].empty())
        known[fridges] = entries(fridges);
    return known[fridges];
}

/* Chooses among plans: the one whose error is at worst the smallest multiple of what one fridge would have that was made for these
 * delays; of equal ones the first. */
class Choice {
  public:
    explicit Choice(Cases of) : cases(std::move(of)), best_of_one(cases.size(), std::numeric_limits<double>::infinity())
    {
    }

    /* One fridge of so many slots. */
    void made_for_each(u64 slots)
    {
        for (const std::vector<u64> &entry : entries_of(1)) {
            const std::vector<double> &chances = of(entry[0], slots);

            for (size_t i = 0; i < cases.size(); i++)
                best_of_one[i] = std::min(best_of_one[i], inflation({&chances[i * points]}));
        }
    }

    /* Slots of several, in both orders. */
    void add(std::vector<u64> slots)
    {
        add_in_order(slots);
        std::vector<u64> other(slots.rbegin(), slots.rend());
        if (other != slots)
            add_in_order(other);
    }

    Plan best;

  private:
    void add_in_order(const std::vector<u64> &slots)
    {
        for (const std::vector<u64> &entry : entries_of(slots.size())) {
            double worst = 0;
            std::vector<const double *> chances(slots.size());

            for (size_t i = 0; i < cases.size() && worst < smallest_worst; i++) {
                for (size_t k = 0; k < slots.size(); k++)
                    chances[k] = &of(entry[k], slots[k])[i * points];
                worst = std::max(worst, inflation(chances) / best_of_one[i]);
            }
            if (worst < smallest_worst) {
                smallest_worst = worst;
                best = {slots, entry};
            }
        }
    }

    /* Chances of being seen in one fridge, in all cases. */
    const std::vector<double> &of(u64 probability, u64 slots)
    {
        std::vector<double> &chances = known_chances[{probability, slots}];

        if (chances.empty())
            for (const Case &survived : cases)
                for (double requests : survived)
                    chances.push_back(seen(static_cast<double>(probability) / certain, static_cast<double>(slots), requests));
        return chances;
    }

    Cases cases;
    std::vector<double> best_of_one;
    std::map<std::pair<u64, u64>, std::vector<double>> known_chances;
    double smallest_worst = std::numeric_limits<double>::infinity();
};

/* The plan for room for so many slots. `fridges`: how many; 0: as many as is best. */
inline Plan plan(u64 room, u64 fridges, std::optional<double> rate_per_s, const u64 *weights)
{
    Choice choice(weights ? Cases{known(*rate_per_s, weights)} : unknown(rate_per_s));
    std::vector<u64> one = equal(room, 1);

    choice.made_for_each(one[0]);
    if (weights && !fridges) {
        choice.add(one);
        choice.add(greedy(room));
    } else {
        choice.add(equal(room, std::min<u64>({fridges ? fridges : 3, room, WL_MOST_FRIDGES})));
    }
    return choice.best;
}

} // namespace fridge_plan

#endif
