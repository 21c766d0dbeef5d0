/* Blocks of records to rows and back to columns: checks arrays and releases the GIL. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

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
    keeps = asked.keep;
    if (asked.words > WL_GROUP_WORDS)
        throw std::invalid_argument("no group has so many words");
    width = asked.words;
    by_source = asked.by_source;
    for (auto &samples : kept)
        samples.clear();
    for (size_t shard = 0; shard < shards; shard++)
        known[shard].begin(width + 1);
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

void Decoder::put_in_order(unsigned part)
{
    auto [begin, end] = parts.records(part);
    const u8 *from = begin;
    InOrder &order = orders[part];
    s64 first_ns = INT64_MAX, last_ns = INT64_MIN;

    order.begin(static_cast<size_t>(end - begin));
    for (size_t shard = 0; shard < shards; shard++)
        for (const Kept &one : kept[part * shards + shard]) {
            order.mark(static_cast<size_t>(data.data() + one.place - from));
            first_ns = std::min(first_ns, one.time_ns);
            last_ns = std::max(last_ns, one.time_ns);
            if (one.fresh)
                order.fresh.push_back(one);
        }
    order.count();
    order.first_ns = first_ns;
    order.last_ns = last_ns;
    std::sort(order.fresh.begin(), order.fresh.end(), [](const Kept &a, const Kept &b) { return a.place < b.place; });
}

std::pair<size_t, size_t> Decoder::put_in_order()
{
    size_t samples = 0, fresh = 0;

    nb::gil_scoped_release release;
    crew.run([this](unsigned part) { put_in_order(part); });
    for (const InOrder &one : orders) {
        samples += one.samples;
        fresh += one.fresh.size();
    }
    return {samples, fresh};
}

void Decoder::write_fresh(Reader &reader, const std::vector<Memory> &memory, Room<u8> leg)
{
    std::vector<Columns *> batches;
    size_t row = 0, room = std::min(leg.shape(0), memory.size() * batch_rows);

    for (const Memory &one : memory)
        batches.push_back(columns_in(one));
    nb::gil_scoped_release release;
    for (unsigned part = 0; part < parts.size(); part++) {
        const std::vector<Kept> &mine = orders[part].fresh;

        if (mine.size() > room - row)
            throw std::invalid_argument("there must be room for each row");
        for (size_t i = 0; i < mine.size(); i++)
            leg.data()[row + i] = mine[i].leg;
        parts.write_at(part, reader, data.data(), mine, batches, row);
        row += mine.size();
    }
}

std::pair<s64, s64> Decoder::gather(const std::optional<Column<u64>> &found, u32 key_words)
{
    const u64 *next = found ? found->data() : nullptr, *end = found ? next + found->shape(0) : nullptr;

    if (key_words > width)
        throw std::invalid_argument("a key is a part of the words");
    nb::gil_scoped_release release;
    std::vector<size_t> begins;
    s64 first_ns = INT64_MAX, last_ns = INT64_MIN;

    count = 0;
    for (const InOrder &one : orders) {
        begins.push_back(count);
        count += one.samples;
        first_ns = std::min(first_ns, one.first_ns);
        last_ns = std::max(last_ns, one.last_ns);
        for (const Kept &fresh : one.fresh) {
            if (static_cast<size_t>(end - next) < width)
                throw std::invalid_argument("there must be words for each fresh sample");
            u64 *to = known[fresh.flow_key >> 61].learn(fresh.group);

            to[0] = wl_group_tag(next, key_words);
            std::copy_n(next, width, to + 1);
            next += width;
        }
    }
    if (!count)
        throw std::invalid_argument("there is no sample");
    all.time_ns.resize(count);
    all.delay_ns.resize(count);
    all.flow_key.resize(count);
    all.leg.resize(count);
    all.tag.resize(width ? count : 0);
    all.words.resize(width ? count : 0);
    crew.run([&](unsigned part) { gather_part(part, begins[part]); });
    return {first_ns, last_ns};
}

void Decoder::gather_part(unsigned part, size_t first)
{
    const InOrder &order = orders[part];
    const u8 *begin = parts.records(part).first;

    for (size_t shard = 0; shard < shards; shard++)
        for (const Kept &one : kept[part * shards + shard]) {
            size_t to = first + order.number(static_cast<size_t>(data.data() + one.place - begin));

            all.time_ns[to] = one.time_ns;
            all.delay_ns[to] = one.delay_ns;
            all.flow_key[to] = one.flow_key;
            all.leg[to] = one.leg;
            if (width) {
                const u64 *words = known[one.flow_key >> 61].of(one.group);

                all.tag[to] = words[0];
                all.words[to] = words + 1;
            }
        }
}

void Decoder::add_up(const Into &into)
{
    const u8 *leg = all.leg.data();
    const u64 *tag = width ? all.tag.data() : nullptr;
    const s64 *time_ns = all.time_ns.data(), *delay_ns = all.delay_ns.data();
    auto delay_of = [delay_ns](size_t i) { return delay_ns[i] < 0 ? 0 : static_cast<u64>(delay_ns[i]); };

    if (into.groups ? into.groups->words() != width : into.times || width)
        throw std::invalid_argument("samples do not have the words of these groups");
    nb::gil_scoped_release release;
    crew.run([&](unsigned part) {
        if (part == 0 && into.groups)
            into.groups->add_each(count, [this](size_t i) { return all.words[i]; }, tag, leg, delay_ns, nullptr);
        if (part == 0 && into.times)
            for (size_t i = 0; i < count; i++)
                if (into.legs >> (leg[i] & 1) & 1)
                    into.times->add(tag[i], time_ns[i], delay_of(i), 1);
        if (part + 1 == std::min(crew.size(), 2u)) {
            if (into.connections)
                into.connections->add_each(
                    count, [](size_t i) { return i; }, all.flow_key.data(), time_ns, leg, delay_ns, nullptr, tag);
            if (into.timeline)
                for (size_t i = 0; i < count; i++) {
                    Distribution &mine = into.timeline[leg[i] & 1];

                    wl_distribute(mine.weights, mine.squares, &mine.sums, delay_of(i), 1);
                }
        }
    });
}

void Decoder::write_samples(Room<s64> time_ns, Room<s64> delay_ns, Room<u8> leg) const
{
    if (std::min({time_ns.shape(0), delay_ns.shape(0), leg.shape(0)}) < count)
        throw std::invalid_argument("there must be room for each sample");
    std::copy_n(all.time_ns.data(), count, time_ns.data());
    std::copy_n(all.delay_ns.data(), count, delay_ns.data());
    std::copy_n(all.leg.data(), count, leg.data());
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
                u32 words, bool by_source, s64 until_ns, size_t most, u32 legs, s64 least_ns, Work *meanwhile, Work *next,
                const FridgeRows *fridges) {
                return decoder.decode(reader, data, start, stop,
                    {all, sharded, keep, words, by_source, until_ns, most, legs, least_ns, fridges ? &fridges->visits() : nullptr},
                    {meanwhile, next});
            },
            "reader"_a, "data"_a, "start"_a, "stop"_a, "all"_a, "sharded"_a, "keep"_a, "words"_a, "by_source"_a, "until_ns"_a,
            "most"_a, "legs"_a, "least_ns"_a, "meanwhile"_a.none() = nb::none(), "next"_a.none() = nb::none(),
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
            "put_in_order", [](Decoder &decoder) { return decoder.put_in_order(); },
            "Put the samples that were kept into the order of the file. Returns how many there are, and the groups of how many are "
            "not known.")
        .def("write_fresh", &Decoder::write_fresh, "reader"_a, "memory"_a, "leg"_a,
            "Fill batches with the rows of samples whose groups are not known, without number and offset, and their legs.")
        .def("gather", &Decoder::gather, "found"_a.none(), "key_words"_a,
            "Take in the words of these groups, of which the first ones are the key. Returns the times of the first and the last "
            "sample.")
        .def(
            "add_up",
            [](Decoder &decoder, Groups *groups, GroupTimes *times, u32 legs, ConnectionSums *connections,
                const std::optional<Room<u64>> &timeline) {
                if (timeline && timeline->shape(0) != 2 * distribution_words)
                    throw std::invalid_argument("a timeline has two distributions");
                decoder.add_up(
                    {groups, times, legs, connections, timeline ? reinterpret_cast<Distribution *>(timeline->data()) : nullptr});
            },
            "groups"_a.none(), "times"_a.none(), "legs"_a, "connections"_a.none(), "timeline"_a.none(),
            "Add all samples, in the order of the file; those of these legs to the times of groups.")
        .def("write_samples", &Decoder::write_samples, "time_ns"_a, "delay_ns"_a, "leg"_a, "Fill in all samples.")
        .def_prop_ro(
            "changes", [](const Decoder &decoder) { return decoder.parts.changes(); },
            "Whether what ended the decoding changes the reader.")
        .def_prop_ro(
            "edge_ns", [](const Decoder &decoder) { return decoder.parts.edge_ns(); }, "The time of the packet that ended it.");
}
