/* Samples into sums by connection: what Python sees of connection_sums.hpp. */
#include "connection_sums.hpp"
#include "module.hpp"

namespace nb = nanobind;
using namespace nb::literals;

void add_connections(nb::module_ &m)
{
    m.attr("CONNECTION_ROW_WORDS") = ConnectionSums::row_words;
    nb::class_<ConnectionSums>(m, "ConnectionSums", "Sums of delays by connection, group and stretch of time.")
        .def(nb::init<u64>(), "most"_a)
        .def("add", &ConnectionSums::add, "flow_key"_a, "time_ns"_a, "rows"_a, "legs"_a, "delays_ns"_a, "of_each"_a, "tags"_a,
            "Add delays: the row of each in the columns of flow keys and times, its leg, weight (default: 1) and tag.")
        .def("merge", &ConnectionSums::merge, "other"_a, "Add the sums of another.")
        .def("merge_rows", &ConnectionSums::merge_rows, "rows"_a, "bits"_a, "level"_a, "first"_a, "last"_a,
            "Add the rows of another, with its length of stretches, its share of connections and its time.")
        .def("keep", &ConnectionSums::keep, "tags"_a, "other"_a, "Count groups but these to another.")
        .def("rows", &ConnectionSums::rows, "out"_a, "All rows, by flow key, tag and stretch.")
        .def("rows_by_tag", &ConnectionSums::rows_by_tag, "out"_a, "All rows by tag, those of each in any order.")
        .def_static("by_crowd_and_time", &ConnectionSums::by_crowd_and_time, "rows"_a, "legs"_a, "crowd_sums"_a, "crowd_sizes"_a,
            "slot_sums"_a, "slot_sizes"_a, "Add up the legs of rows (bits) by crowd of connections and by slot of time.")
        .def("__len__", &ConnectionSums::size)
        .def_prop_ro("level", &ConnectionSums::level)
        .def_prop_ro("bits", &ConnectionSums::bits)
        .def_prop_ro("first", &ConnectionSums::first)
        .def_prop_ro("last", &ConnectionSums::last);
}
