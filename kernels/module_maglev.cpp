/* The table of a load balancer: checks arrays, releases the GIL and calls maglev.h. */
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "maglev.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void fill(Room<int> table, Column<u32> first, Column<u32> skip, Column<u32> weights)
{
    size_t size = table.shape(0), backends = first.shape(0);

    if (skip.shape(0) != backends || weights.shape(0) != backends)
        throw std::invalid_argument("first, skip and weights have different lengths");
    if (size < 2 || size >= 1u << 31)
        throw std::invalid_argument("a table must have at least 2 and less than 2^31 entries");
    if (backends >= 1u << 31 || std::none_of(weights.data(), weights.data() + backends, [](u32 weight) { return weight > 0; }))
        throw std::invalid_argument("no backend has a weight");
    std::vector<wl_maglev_wish> wishes(backends);
    for (size_t b = 0; b < backends; b++) {
        if (first.data()[b] >= size || skip.data()[b] < 1 || skip.data()[b] >= size)
            throw std::invalid_argument("first and skip must lie within the table");
        wishes[b] = {first.data()[b], skip.data()[b], 0};
    }
    for (size_t divisor = 2; divisor * divisor <= size; divisor++)
        if (size % divisor == 0)
            throw std::invalid_argument("the size of the table is not prime");
    nb::gil_scoped_release release;
    std::fill_n(table.data(), size, WL_MAGLEV_FREE);
    wl_maglev_fill(table.data(), static_cast<u32>(size), wishes.data(), weights.data(), static_cast<u32>(backends));
}

} // namespace

void add_maglev(nb::module_ &m)
{
    m.def("maglev_fill", &fill, "table"_a, "first"_a, "skip"_a, "weights"_a);
}
