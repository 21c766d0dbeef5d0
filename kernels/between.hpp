/* The error of a mean whose samples come in groups that are alike inside (stats/random_groups.py states the law).
 *
 * Floats are rounded operation by operation, and added up in order: the twin (tests/oracles/random_groups.py) finds the same bits.
 */
#ifndef WIRELAG_BETWEEN_HPP
#define WIRELAG_BETWEEN_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

constexpr size_t fewest_groups = 4; /* with samples; fewer give no variance */

/* The error of sum(totals) / sum(sizes), and its degrees of freedom, if independent samples had the error `alone`; none: too few
 * groups have samples. */
inline std::optional<std::pair<double, double>> between(const double *totals, const double *sizes, size_t groups, double alone)
{
    double whole = 0, total = 0, kish = 0, squares = 0, expected = 0;
    size_t held = 0;

    for (size_t i = 0; i < groups; i++) {
        held += sizes[i] != 0;
        whole += sizes[i];
        total += totals[i];
    }
    if (held < fewest_groups)
        return std::nullopt;
    for (size_t i = 0; i < groups; i++)
        kish += (sizes[i] / whole) * (sizes[i] / whole);
    for (size_t i = 0; i < groups; i++) {
        double share = sizes[i] / whole, residual = (totals[i] - total / whole * sizes[i]) / whole;

        squares += residual * residual;
        expected += share * share * (1 - 2 * share + kish);
    }
    double levels = (squares - alone * alone * (1 - kish)) / expected;
    return std::make_pair(std::sqrt(std::max(0.0, alone * alone + kish * levels)), std::max(1 / kish - 1, 1.0));
}

#endif
