/* Samples into groups: what Python sees of group_delays.hpp and group_times.hpp. */
#include "group_delays.hpp"
#include "group_times.hpp"
#include "module.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

/* Add the delays of these legs (bits) that know the group of theirs; `rows` are those of the times. */
void add_times(GroupTimes &times, const Column<s64> &time_ns, const Column<u32> &rows, const Column<u8> &legs,
    const Column<s64> &delays_ns, const Column<s64> &of_each, const Column<u64> &tags, u32 wanted)
{
    size_t count = rows.shape(0), given = of_each.shape(0);

    if (legs.shape(0) != count || delays_ns.shape(0) != count || tags.shape(0) != count || (given != count && given != 0))
        throw std::invalid_argument("there must be a row, a leg and a tag for each delay, and a weight for each or none");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; i++) {
        u64 delay = delays_ns.data()[i] < 0 ? 0 : static_cast<u64>(delays_ns.data()[i]);

        if (rows.data()[i] < time_ns.shape(0) && wanted >> (legs.data()[i] & 1) & 1)
            times.add(tags.data()[i], time_ns.data()[rows.data()[i]], delay, given ? static_cast<u32>(of_each.data()[i]) : 1);
    }
}

bool copy_counts(const GroupTimes &times, u64 tag, Room<u32> out)
{
    size_t slots = static_cast<size_t>(times.last() - times.first() + 1);
    bool any = false;

    if (out.shape(0) != slots * WL_EIGHTHS)
        throw std::invalid_argument("there must be room for the counts of each slot");
    for (size_t i = 0; i < slots; i++)
        if (const u32 *counts = times.counts(tag, times.first() + static_cast<s64>(i))) {
            std::copy(counts, counts + WL_EIGHTHS, out.data() + i * WL_EIGHTHS);
            any = true;
        }
    return any;
}

} // namespace

void add_groups(nb::module_ &m)
{
    m.attr("GROUP_KEY_WORDS") = WL_GROUP_WORDS;
    m.attr("GROUP_RECORD_WORDS") = Groups::record_words;
    m.attr("GROUP_REGISTERS") = Groups::registers;
    m.attr("GROUP_LEAST_BYTES") = Groups::least;
    m.attr("GROUP_MOST_BYTES") = Groups::most;
    nb::class_<Groups>(m, "Groups", "Delays by group in a fixed memory.")
        .def(nb::init<size_t, u32, u32>(), "bytes"_a, "key_words"_a, "words"_a)
        .def("add", &Groups::add, "keys"_a, "legs"_a, "delays_ns"_a, "of_each"_a, "tags"_a,
            "Add delays, with their weights (default: 1), to the groups of their keys, and fill in the tags of these.")
        .def("merge", &Groups::merge, "other"_a, "Add the groups of another.")
        .def("merge_saved", &Groups::merge_saved, "records"_a, "where"_a, "weights"_a, "squares"_a, "other"_a, "ranks"_a, "floor"_a,
            "left"_a, "Add the groups of another, from what it told.")
        .def("places", &Groups::places, "out"_a, "The places of all groups, in the order they came.")
        .def("records", &Groups::records, "places"_a, "out"_a, "The records of groups.")
        .def("cells", &Groups::cells, "places"_a, "where"_a, "weights"_a, "squares"_a, "The bins of groups that hold delays.")
        .def("other", &Groups::other, "out"_a, "The delays of groups that left: two distributions.")
        .def("ranks", &Groups::ranks, "out"_a, "The registers that count groups that left.")
        .def("__len__", &Groups::size)
        .def_prop_ro("left", &Groups::left)
        .def_prop_ro("floor", &Groups::floor)
        .def_prop_ro("bytes_used", &Groups::bytes_used);
    m.attr("EIGHTHS") = WL_EIGHTHS;
    nb::class_<GroupTimes>(m, "GroupTimes", "Delays by group, slot of time and eighth of an octave.")
        .def(nb::init<size_t, s64>(), "most_cells"_a, "most_slots"_a)
        .def("add", &add_times, "time_ns"_a, "rows"_a, "legs"_a, "delays_ns"_a, "of_each"_a, "tags"_a, "wanted"_a,
            "Add delays of these legs (bits), with their weights (default: 1); rows: of their times.")
        .def("counts", &copy_counts, "tag"_a, "out"_a, "Fill in the counts of a group, slot after slot. Returns if there are any.")
        .def_prop_ro("first", &GroupTimes::first)
        .def_prop_ro("last", &GroupTimes::last)
        .def_prop_ro("length_ns", &GroupTimes::length_ns)
        .def_prop_ro("left_out", &GroupTimes::left_out);
}
