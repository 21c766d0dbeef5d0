/* For how long delays stay alike, from their sums in slots of time (over_time.py states the law of parts).
 *
 * Floats are rounded operation by operation, and added up in order: the twin (tests/oracles/alike.py) finds the same bits. */
#ifndef WIRELAG_ALIKE_HPP
#define WIRELAG_ALIKE_HPP

#include "certainty.hpp"

namespace alike {

constexpr double of_a_row = 4.0;  /* independent stretches that give an interval to a part of a whole */
constexpr s64 coarsest = 32;      /* parts of time whose neighbours are compared */
constexpr double no_chance = 3.0; /* standard errors */

/* How many slots delays stay alike for, and the variance of a mean by a level that changes, times the slots it is over. */
struct Alike {
    double lasts = 0, level = 0;
};

/* A slot, and the sum of how far its delays are from the mean. */
struct Part {
    s64 slot;
    double apart;
};

/* How many slots count as one since delays stay alike, from neighbours; 0 if nothing shows it.
 *
 * Slots, in order, are put together by twos until there are fewer than 32. Where neighbours have a correlation r above chance,
 * (1 + r) / (1 - r) of them count as one. Noise hides it in short slots, chance in long ones: the longest is taken. */
inline double neighbours(std::vector<Part> parts)
{
    double most = 0, length = 1;

    for (;;) {
        s64 seen = parts.back().slot + 1;
        double before = 0, after = 0, together = 0;
        size_t pairs = 0, kept = 0;

        if (seen < coarsest)
            return most;
        for (size_t i = 1; i < parts.size(); i++)
            if (parts[i].slot == parts[i - 1].slot + 1) {
                before += parts[i - 1].apart * parts[i - 1].apart;
                after += parts[i].apart * parts[i].apart;
                together += parts[i - 1].apart * parts[i].apart;
                pairs++;
            }
        double squares = (before + after) / 2, r = squares > 0 ? together / squares : 0.0;
        double enough = coarsest / 2.0, count = static_cast<double>(pairs);
        if (count >= enough && r > no_chance / std::sqrt(std::min(count, static_cast<double>(seen)))) {
            double least = std::min(r + (1 + 3 * r) / (count - 1), 1 - 1 / count);
            most = std::max(most, length * (1 + least) / (1 - least));
        }
        for (Part &one : parts) {
            one.slot >>= 1;
            if (kept && parts[kept - 1].slot == one.slot)
                parts[kept - 1].apart += one.apart;
            else
                parts[kept++] = one;
        }
        parts.resize(kept);
        length *= 2;
    }
}

/* How delays are alike, from the sums and counts of parts, each with its slot. If a recording is too
 * short for an interval, so are its parts. */
inline Alike over_slots(const s64 *slot, const double *sums, const double *counts, size_t count)
{
    double total = 0, whole = 0;

    if (!count)
        return {};
    s64 first = *std::min_element(slot, slot + count), length = *std::max_element(slot, slot + count) - first + 1;
    for (size_t i = 0; i < count; i++) {
        total += sums[i];
        whole += counts[i];
    }
    std::vector<double> apart(static_cast<size_t>(length)), sizes(apart.size());
    std::vector<bool> held(apart.size());
    for (size_t i = 0; i < count; i++) {
        size_t at = static_cast<size_t>(slot[i] - first);

        apart[at] += sums[i] - counts[i] * (total / std::max(whole, 1.0));
        sizes[at] += counts[i];
        held[at] = true;
    }
    std::vector<Part> parts;
    for (size_t at = 0; at < held.size(); at++)
        if (held[at])
            parts.push_back({static_cast<s64>(at), apart[at]});
    std::optional<over_time::OverTime> found = over_time::over_time(apart.data(), sizes.data(), apart.size(), count);
    double lasts = neighbours(std::move(parts));
    if (!found)
        return {lasts, 0.0};
    double stretches = found->returns < certainty::fewest_returns ? 1.0 : found->stretches;
    double too_slow = stretches < of_a_row ? static_cast<double>(length) / stretches : 0.0;
    return {std::max(too_slow, lasts), found->level * static_cast<double>(length)};
}

} // namespace alike

#endif
