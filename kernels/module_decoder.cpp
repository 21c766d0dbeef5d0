/* Blocks of records to rows and back to columns: checks arrays and releases the GIL. */
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "decoder.hpp"
#include "module.hpp"

namespace nb = nanobind;
using namespace nb::literals;

u64 Decoder::decode(Reader &reader, const Bytes &block, size_t start, size_t stop, const Asked &asked)
{
    if (start > stop || stop > block.shape(0) || block.shape(0) > UINT32_MAX)
        throw std::invalid_argument("the part to read lies outside the buffer");
    data = block;
    keeps = asked.keep;
    for (auto &samples : kept)
        samples.clear();
    for (Slowest &one : by_thread)
        one.begin(asked.most, asked.legs, asked.least_ns);
    nb::gil_scoped_release release;
    at = data.data() + start;
    parts.decode(reader, data.data(), at, data.data() + stop, {asked.all, asked.sharded, asked.until_ns}, crew);
    return parts.examined();
}

std::tuple<size_t, int, u64, bool> Decoder::proceed(Reader &reader)
{
    u64 needed = 0;

    if (!at)
        throw std::invalid_argument("nothing was decoded");
    wl_step step = parts.proceed(reader, at, needed);
    int status = step == WL_STEP_MORE ? MORE : step == WL_STEP_BROKEN ? BROKEN : FULL;
    return {at - data.data(), status, needed, step == WL_STEP_PACKET};
}

size_t Decoder::write_slowest(Reader &reader, u64 base, const Memory &memory, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind)
{
    size_t room = std::min({delay_ns.shape(0), leg.shape(0), kind.shape(0), batch_rows});
    std::vector<Columns *> batches = {columns_in(memory)};
    std::vector<Slowest::Slow> all;

    if (!at)
        throw std::invalid_argument("nothing was decoded");
    nb::gil_scoped_release release;
    for (const Slowest &one : by_thread)
        all.insert(all.end(), one.slow.begin(), one.slow.end());
    if (all.size() > room)
        Slowest::keep(all, room);
    std::sort(all.begin(), all.end(), [](const auto &a, const auto &b) { return a.place < b.place; });
    for (size_t i = 0; i < all.size(); i++) {
        delay_ns.data()[i] = all[i].delay_ns;
        leg.data()[i] = all[i].leg;
        kind.data()[i] = all[i].kind;
    }
    for (size_t part = 0, first = 0, next; part < parts.size(); part++, first = next) {
        const u8 *end = parts.records(part).second;

        for (next = first; next < all.size() && data.data() + all[next].place < end; next++)
            ;
        parts.write(part, reader, data.data(), base, all.data() + first, next - first, batches, first);
    }
    return all.size();
}

size_t Decoder::samples() const
{
    size_t sum = 0;

    for (const auto &some : kept)
        sum += some.size();
    return sum;
}

/* A record has 16 bytes at least. */
const std::vector<Decoder::Slowest::Slow> &Decoder::in_order(unsigned part)
{
    auto [begin, end] = parts.records(part);
    InOrder &order = orders[part];

    order.all.clear();
    order.ordered.clear();
    order.numbers.assign(static_cast<size_t>(end - begin) / 16 + 1, 0);
    for (size_t shard = 0; shard < shards; shard++)
        for (const Slowest::Slow &one : kept[part * shards + shard]) {
            order.all.push_back(one);
            order.numbers[static_cast<size_t>(data.data() + one.place - begin) / 16] = static_cast<u32>(order.all.size());
        }
    for (u32 number : order.numbers)
        if (number)
            order.ordered.push_back(order.all[number - 1]);
    return order.ordered;
}

void Decoder::write_samples(
    Reader &reader, u64 base, const std::vector<Memory> &memory, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind)
{
    size_t count = samples();
    std::vector<Columns *> batches;

    if (delay_ns.shape(0) < count || leg.shape(0) < count || kind.shape(0) < count || memory.size() * batch_rows < count)
        throw std::invalid_argument("there must be room for each sample");
    for (const Memory &one : memory)
        batches.push_back(columns_in(one));
    nb::gil_scoped_release release;
    crew.run([&](unsigned part) {
        const std::vector<Slowest::Slow> &mine = in_order(part);
        size_t first = 0;

        for (size_t i = 0; i < part * shards; i++)
            first += kept[i].size();
        for (size_t i = 0; i < mine.size(); i++) {
            delay_ns.data()[first + i] = mine[i].delay_ns;
            leg.data()[first + i] = mine[i].leg;
            kind.data()[first + i] = mine[i].kind;
        }
        parts.write(part, reader, data.data(), base, mine.data(), mine.size(), batches, first);
    });
}

size_t Decoder::row_count() const
{
    size_t sum = 0;

    for (unsigned part = 0; part < parts.size(); part++)
        sum += parts.rows(part, 0).size();
    return sum;
}

s64 Decoder::time_ns(size_t number) const
{
    if (number >= row_count())
        throw std::out_of_range("there is no such row");
    return row(number).time_ns;
}

size_t Decoder::read(int file, const Memory &into, size_t start, size_t stop, u64 offset)
{
    std::vector<ssize_t> got(crew.size());
    std::atomic<int> problem = 0;
    size_t sum = 0;

    if (start > stop || stop > into.shape(0))
        throw std::invalid_argument("the part to read lies outside the buffer");
    size_t each = (stop - start + crew.size() - 1) / crew.size();
    {
        nb::gil_scoped_release release;
        crew.run([&](unsigned part) {
            size_t from = std::min(start + part * each, stop), to = std::min(from + each, stop), done = 0;

            while (from + done < to) {
                ssize_t n = pread(
                    file, into.data() + from + done, to - from - done, static_cast<off_t>(offset + from - start + done));

                if (n < 0 && errno == EINTR)
                    continue;
                if (n < 0)
                    problem = errno;
                if (n <= 0)
                    break;
                done += static_cast<size_t>(n);
            }
            got[part] = static_cast<ssize_t>(done);
        });
    }
    for (size_t part = 0; part < got.size(); part++) {
        sum += static_cast<size_t>(got[part]);
        if (static_cast<size_t>(got[part]) < each) /* what comes after a gap is not wanted */
            break;
    }
    if (!sum && problem) {
        errno = problem;
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    return sum;
}

void add_decoder(nb::module_ &m)
{
    nb::class_<Decoder>(m, "Decoder", "Blocks of a file, decoded by several threads into rows that a method takes as they are.")
        .def(nb::init<unsigned>(), "threads"_a)
        .def(
            "decode",
            [](Decoder &decoder, Reader &reader, const Bytes &data, size_t start, size_t stop, bool all, bool sharded, bool keep,
                s64 until_ns, size_t most, u32 legs, s64 least_ns) {
                return decoder.decode(reader, data, start, stop, {all, sharded, keep, until_ns, most, legs, least_ns});
            },
            "reader"_a, "data"_a, "start"_a, "stop"_a, "all"_a, "sharded"_a, "keep"_a, "until_ns"_a, "most"_a, "legs"_a,
            "least_ns"_a,
            "Decode a part of a block, up to a record that changes how the next are read, or to a packet at until_ns or later. "
            "Returns the packets.")
        .def("proceed", &Decoder::proceed, "reader"_a,
            "Take in what ended the decoding. Returns (stopped at, status, size of the next record, whether until_ns was reached).")
        .def("write_slowest", &Decoder::write_slowest, "reader"_a, "base"_a, "memory"_a, "delay_ns"_a, "leg"_a, "kind"_a,
            "Fill a batch with the slowest samples. Returns how many there are.")
        .def("write_samples", &Decoder::write_samples, "reader"_a, "base"_a, "memory"_a, "delay_ns"_a, "leg"_a, "kind"_a,
            "Fill batches with all samples, in the order of the file.")
        .def_prop_ro("samples", &Decoder::samples, "How many samples were kept.")
        .def_prop_ro(
            "changes", [](const Decoder &decoder) { return decoder.parts.changes(); },
            "Whether what ended the decoding changes the reader.")
        .def_prop_ro(
            "edge_ns", [](const Decoder &decoder) { return decoder.parts.edge_ns(); }, "The time of the packet that ended it.")
        .def("read", &Decoder::read, "file"_a, "data"_a, "start"_a, "stop"_a, "offset"_a, "Read a part of a file, by all threads.")
        .def("time_ns", &Decoder::time_ns, "row"_a, "The time of a row, of those in one shard.")
        .def("__len__", &Decoder::row_count, "The rows of one shard.");
}
