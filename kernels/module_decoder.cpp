/* Blocks of records to rows and back to columns: checks arrays and releases the GIL. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "decoder.hpp"
#include "file_read.hpp"
#include "fridge_rows.hpp"
#include "module.hpp"

namespace nb = nanobind;
using namespace nb::literals;

u64 Decoder::decode(Reader &reader, const Bytes &block, size_t start, size_t stop, const Asked &asked, const Meanwhile &meanwhile)
{
    if (start > stop || stop > block.shape(0) || block.shape(0) > UINT32_MAX)
        throw std::invalid_argument("the part to read lies outside the buffer");
    data = block;
    reading = &reader;
    keeps = asked.keep;
    most = asked.most;
    for (Slowest &one : by_thread)
        one.begin(asked.most, asked.legs, asked.least_ns);
    nb::gil_scoped_release release;
    at = data.data() + start;
    parts.decode(
        reader, data.data(), at, data.data() + stop, {asked.all, asked.sharded, asked.until_ns, asked.visitor}, crew, meanwhile);
    return parts.examined();
}

std::tuple<size_t, int, bool> Decoder::proceed(Reader &reader)
{
    if (!at)
        throw std::invalid_argument("nothing was decoded");
    wl_step step = parts.proceed(reader, at);
    int status = step == WL_STEP_MORE ? MORE : step == WL_STEP_BROKEN ? BROKEN : FULL;
    return {at - data.data(), status, step == WL_STEP_PACKET};
}

std::vector<Decoder::Slow> Decoder::slowest(Reader &reader) const
{
    std::vector<Slowest::Slow> all;
    std::vector<Slow> found;

    if (!at)
        throw std::invalid_argument("nothing was decoded");
    nb::gil_scoped_release release;
    for (const Slowest &one : by_thread)
        all.insert(all.end(), one.slow.begin(), one.slow.end());
    if (all.size() > most)
        Slowest::keep(all, most);
    std::sort(all.begin(), all.end(), [](const auto &a, const auto &b) { return a.place < b.place; });
    for (size_t part = 0, first = 0, next; part < parts.size(); part++, first = next) {
        const u8 *end = parts.records(part).second;

        for (next = first; next < all.size() && data.data() + all[next].place < end; next++)
            ;
        parts.again(part, reader, data.data(), all.data() + first, next - first,
            [&](const wl_row &row, const wl_record &record, u64 number) {
                const Slowest::Slow &one = all[found.size()];
                u64 ports = static_cast<u64>(row.src_port) << 32 | static_cast<u64>(row.dst_port) << 16 | row.protocol;

                found.push_back(
                    {one.delay_ns, record.time_ns, number, {row.src_high, row.src_low, row.dst_high, row.dst_low, ports}, one.leg});
            });
    }
    return found;
}

void Decoder::learn(unsigned part, u32 place, u32 leg, Flow &flow) const
{
    parts.once_more(part, *reading, data.data() + place,
        [&](const wl_row &row) { wl_words_of_group(&shared->grouping, &row, leg, flow.words); });
    flow.tag = wl_group_tag(flow.words, shared->grouping.key_words);
}

AddingUp *Decoder::adding_up(AddingUp::Into into)
{
    const wl_grouping &how = shared->grouping;
    AddingUp::Bounds bounds;
    AddingUp::Known flows;

    if (into.groups ? into.groups->words() != how.words || into.groups->key_words() != how.key_words : into.times != nullptr)
        throw std::invalid_argument("samples do not have the words of these groups");
    if (!into.timeline.covers(found.span()))
        throw std::invalid_argument("there must be a slot for each sample");
    for (unsigned part = 0; part < parts.size(); part++) {
        auto [begin, end] = parts.records(part);
        bounds.emplace_back(begin - data.data(), end - data.data());
    }
    for (const FlowWords &one : shared->known)
        flows.push_back(one.known());
    return new AddingUp(found, std::move(bounds), std::move(flows), std::move(into));
}

void add_decoder(nb::module_ &m)
{
    nb::class_<Work>(m, "Work", "Work in pieces, for threads that have nothing better to do.");
    nb::class_<FileRead, Work>(m, "FileRead", "A part of a file, which is read as soon as threads have time.")
        .def(nb::init<int, const Memory &, size_t, size_t, u64>(), "file"_a, "data"_a, "start"_a, "stop"_a, "offset"_a)
        .def(
            "bytes",
            [](const FileRead &read) {
                size_t got = read.bytes();

                if (!got && read.error()) {
                    errno = read.error();
                    PyErr_SetFromErrno(PyExc_OSError);
                    throw nb::python_error();
                }
                return got;
            },
            "How many bytes came, once the work is done; 0: the file ended.");
    nb::class_<Decoder>(m, "Decoder", "Blocks of a file, decoded by several threads into rows that a method takes as they are.")
        .def(nb::init<unsigned>(), "threads"_a)
        .def(
            "decode",
            [](Decoder &decoder, Reader &reader, const Bytes &data, size_t start, size_t stop, bool all, bool sharded, bool keep,
                s64 until_ns, size_t most, u32 legs, s64 least_ns, Work *meanwhile, Work *then, Work *next,
                const FridgeRows *fridges) {
                return decoder.decode(reader, data, start, stop,
                    {all, sharded, keep, until_ns, most, legs, least_ns, fridges ? &fridges->visits() : nullptr},
                    {meanwhile, then, next});
            },
            "reader"_a, "data"_a, "start"_a, "stop"_a, "all"_a, "sharded"_a, "keep"_a, "until_ns"_a, "most"_a, "legs"_a,
            "least_ns"_a, "meanwhile"_a.none() = nb::none(), "then"_a.none() = nb::none(), "next"_a.none() = nb::none(),
            "fridges"_a.none() = nb::none(),
            "Decode a part of a block, up to a record that changes how the next are read, or to a packet at until_ns or later, and "
            "do other work. Returns the packets.")
        .def("beside", &Decoder::beside, nb::rv_policy::take_ownership, "Another one with the same threads, for the next block.")
        .def(
            "finish",
            [](Decoder &decoder, Work &work) {
                nb::gil_scoped_release release;
                decoder.crew.run(work);
            },
            "work"_a, "Do what is left of a work.")
        .def("proceed", &Decoder::proceed, "reader"_a,
            "Take in what ended the decoding. Returns (stopped at, status, whether until_ns was reached).")
        .def(
            "slowest",
            [](const Decoder &decoder, Reader &reader) {
                nb::list found;

                for (const Decoder::Slow &one : decoder.slowest(reader)) {
                    auto [from, from_low, to, to_low, ports] = one.ends;
                    found.append(nb::make_tuple(
                        one.delay_ns, one.time_ns, one.number, nb::make_tuple(from, from_low, to, to_low, ports), one.leg));
                }
                return found;
            },
            "reader"_a,
            "The slowest samples, in the order of the file: delay, time and number of the response, its endpoints in five words, "
            "leg.")
        .def(
            "group",
            [](Decoder &decoder, unsigned by, u32 words, u32 key_words, u64 mask4, std::pair<u64, u64> mask6) {
                if (by > WL_BY_PORT || words > WL_GROUP_WORDS || key_words > words)
                    throw std::invalid_argument("there is no such group, or it has too many words");
                decoder.group({static_cast<wl_group_by>(by), words, key_words, mask4, mask6.first, mask6.second});
            },
            "by"_a, "words"_a, "key_words"_a, "mask4"_a, "mask6"_a, "Learn from now on to which groups samples belong.")
        .def(
            "span",
            [](const Decoder &decoder) -> std::optional<std::pair<s64, s64>> {
                std::pair<s64, s64> found = decoder.found.span();
                return found.first <= found.second ? std::optional(found) : std::nullopt;
            },
            "The times of the first and the last sample that was kept, if there is any.")
        .def(
            "adding_up",
            [](Decoder &decoder, Groups *groups, GroupTimes *times, u32 legs, ConnectionSums *connections, s64 first, s64 length_ns,
                const std::vector<Room<u64>> &timeline) -> Work * {
                return decoder.adding_up({groups, times, legs, connections, {first, length_ns, timeline}});
            },
            "groups"_a.none(), "times"_a.none(), "legs"_a, "connections"_a.none(), "first"_a, "length_ns"_a, "timeline"_a,
            nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>(),
            nb::keep_alive<0, 5>(),
            "The work of adding up all samples, in the order of the file; those of these legs to the times of groups, and all to "
            "the slots of a timeline, from the first one.")
        .def_prop_ro(
            "changes", [](const Decoder &decoder) { return decoder.parts.changes(); },
            "Whether what ended the decoding changes the reader.")
        .def_prop_ro(
            "edge_ns", [](const Decoder &decoder) { return decoder.parts.edge_ns(); }, "The time of the packet that ended it.");
}
