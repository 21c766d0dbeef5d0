/* The interval of a value whose error is one of many (slow_levels.py).
 *
 * Law: floats are rounded operation by operation, and added up in order: the twin finds the same bits. */
#ifndef WIRELAG_SLOW_LEVELS_HPP
#define WIRELAG_SLOW_LEVELS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>

constexpr int halvings = 15;

/* A value of a table of which the first column ascends, as numpy's interp finds it; `row` is where to look first. */
inline double interpolated(double x, const double *at, const double *value, size_t rows, size_t row)
{
    if (std::isnan(x))
        return x;
    if (x >= at[rows - 1])
        return value[rows - 1];
    if (x <= at[0])
        return value[0];
    row = std::min(row, rows - 2);
    while (at[row] > x)
        row--;
    while (at[row + 1] <= x)
        row++;
    return (value[row + 1] - value[row]) / (at[row + 1] - at[row]) * (x - at[row]) + value[row];
}

/* Half the width of the interval around 0 that misses a normal value with a chance of `tail`, if its error is one of `errors`, so
 * likely each. `beyond` says how likely a normal value is further from 0 than `at`, in `rows` equal steps. */
inline double half_width(
    const double *likely, const double *errors, size_t count, const double *at, const double *beyond, size_t rows, double tail)
{
    auto [least, most] = std::minmax_element(errors, errors + count);
    double low = *least, high = at[rows - 1] * *most, step = at[1] - at[0];

    for (int i = 0; i < halvings; i++) {
        double middle = (low + high) / 2, missed = 0;

        for (size_t one = 0; one < count; one++) {
            double x = middle / errors[one];

            missed += likely[one] * interpolated(x, at, beyond, rows, x < at[rows - 1] ? static_cast<size_t>(x / step) : 0);
        }
        if (missed > tail)
            low = middle;
        else
            high = middle;
    }
    return high;
}

#endif
