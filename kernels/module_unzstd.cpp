/* What Python sees of unzstd.hpp. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "module.hpp"
#include "unzstd.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using View = nb::ndarray<nb::memview, u8, nb::ndim<1>>;

std::optional<std::pair<View, size_t>> next(nb::handle self)
{
    Unzstd &unzstd = nb::cast<Unzstd &>(self);
    std::pair<u8 *, size_t> found;

    {
        nb::gil_scoped_release release;
        found = unzstd.next();
    }
    if (!found.first)
        return std::nullopt;
    return std::pair(View(found.first, {unzstd.bytes()}, self), found.second);
}

} // namespace

void add_unzstd(nb::module_ &m)
{
    m.def("has_libzstd", [] { return Libzstd::get() != nullptr; });
    nb::class_<Unzstd>(m, "Unzstd", "A file of zstd frames, decompressed ahead by a thread of its own.")
        .def(nb::init<int, size_t, size_t, size_t, bool>(), "file"_a, "left"_a, "bytes"_a, "most"_a, "ahead"_a)
        .def("next", &next, "The next piece, and where its bytes end.")
        .def("stop", &Unzstd::stop, nb::call_guard<nb::gil_scoped_release>(), "Decompress no more.")
        .def_prop_ro("problem", &Unzstd::problem, "Why there is no more.");
}
