/* Figures for Python. */
#ifndef WIRELAG_TOLD_FIGURES_HPP
#define WIRELAG_TOLD_FIGURES_HPP

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "report_figures.hpp"

/* Figures as a tuple, in the order of their fields, of octaves their memory: there may be a million groups. None without delays. */
inline nanobind::object told(const std::optional<ReportFigures> &found)
{
    if (!found)
        return nanobind::none();
    const ReportFigures &one = *found;
    return nanobind::make_tuple(one.samples, one.weight, one.effective, nanobind::make_tuple(one.mean, one.std, one.min, one.max),
        one.quantiles, one.ci95, one.why,
        nanobind::bytes(reinterpret_cast<const char *>(one.octaves.data()), one.octaves.size() * sizeof(double)));
}

inline nanobind::object told(const LegFigures &legs)
{
    return nanobind::make_tuple(told(legs[0]), told(legs[1]));
}

/* Memory that Python gives back, with a copy of these values. */
template <typename T> nanobind::object to_memoryview(const std::vector<T> &values)
{
    T *memory = static_cast<T *>(std::malloc(std::max<size_t>(values.size(), 1) * sizeof(T)));

    if (!memory)
        throw std::bad_alloc();
    std::copy(values.begin(), values.end(), memory);
    nanobind::capsule owner(memory, [](void *given) noexcept { std::free(given); });
    return nanobind::cast(nanobind::ndarray<nanobind::memview, T, nanobind::ndim<1>>(memory, {values.size()}, owner));
}

#endif
