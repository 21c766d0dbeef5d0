/* Equal rows: checks arrays, releases the GIL and loops over distinct.h. */
#include <stdexcept>

#include "arrays.hpp"
#include "module.hpp"

extern "C" {
#include "distinct.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t buckets_at_first = 1 << 8;

u32 number_rows(const Column<u64> &words, u32 width, Room<u32> numbers, Room<u32> firsts)
{
    const size_t rows = numbers.shape(0);

    if (!width || words.shape(0) != rows * width || firsts.shape(0) != rows || rows >= UINT32_MAX / 2)
        throw std::invalid_argument("there must be words, a number and room for each row, and fewer than 2^31 rows");
    nb::gil_scoped_release release;
    auto buckets = zeroed<u32>(buckets_at_first);
    wl_distinct seen = {words.data(), wl_mix(reinterpret_cast<uintptr_t>(buckets.get())), width, 0, firsts.data(), buckets.get(),
        buckets_at_first - 1};

    for (size_t row = 0; row < rows; row++) {
        if (2 * size_t{seen.count} > seen.mask) {
            buckets = zeroed<u32>(2 * (size_t{seen.mask} + 1));
            seen.buckets = buckets.get();
            seen.mask = 2 * seen.mask + 1;
            wl_distinct_again(&seen);
        }
        numbers.data()[row] = wl_distinct_number(&seen, static_cast<u32>(row));
    }
    return seen.count;
}

} // namespace

void add_distinct(nb::module_ &m)
{
    m.def("number_rows", &number_rows, "words"_a, "width"_a, "numbers"_a, "firsts"_a,
        "Number equal rows in order of appearance. Returns how many differ; firsts: where each of them comes first.");
}
