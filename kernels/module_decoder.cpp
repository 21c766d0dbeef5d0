/* Blocks of records to rows and back to columns: checks arrays and releases the GIL. */
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "decoder.hpp"
#include "module.hpp"

namespace nb = nanobind;
using namespace nb::literals;

u64 Decoder::decode(
    Reader &reader, const Bytes &block, size_t start, size_t stop, bool all, bool sharded, size_t most, u32 legs, s64 least_ns)
{
    if (start > stop || stop > block.shape(0) || block.shape(0) > UINT32_MAX)
        throw std::invalid_argument("the part to read lies outside the buffer");
    data = block;
    for (Slowest &one : by_thread)
        one.begin(most, legs, least_ns);
    nb::gil_scoped_release release;
    at = data.data() + start;
    parts.decode(reader, data.data(), at, data.data() + stop, {all, sharded}, crew);
    return parts.examined();
}

std::tuple<size_t, size_t, int, u64> Decoder::finish(
    Reader &reader, u64 base, const Memory &memory, Room<s64> delay_ns, Room<u8> leg, Room<u8> kind)
{
    size_t room = std::min({delay_ns.shape(0), leg.shape(0), kind.shape(0), batch_rows});
    Columns *columns = columns_in(memory);
    std::vector<Slowest::Slow> all;
    std::vector<u32> places;
    u64 needed = 0;

    if (!at)
        throw std::invalid_argument("nothing was decoded");
    nb::gil_scoped_release release;
    for (const Slowest &one : by_thread)
        all.insert(all.end(), one.slow.begin(), one.slow.end());
    if (all.size() > room)
        Slowest::keep(all, room);
    std::sort(all.begin(), all.end(), [](const auto &a, const auto &b) { return a.place < b.place; });
    for (size_t i = 0; i < all.size(); i++) {
        places.push_back(all[i].place);
        delay_ns.data()[i] = all[i].delay_ns;
        leg.data()[i] = all[i].leg;
        kind.data()[i] = all[i].kind;
    }
    parts.write(reader, data.data(), base, places.data(), places.size(), columns, 0);
    wl_step step = parts.proceed(reader, at, needed);
    return {all.size(), at - data.data(), step == WL_STEP_OTHER ? FULL : step == WL_STEP_MORE ? MORE : BROKEN, needed};
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
        .def("decode", &Decoder::decode, "reader"_a, "data"_a, "start"_a, "stop"_a, "all"_a, "sharded"_a, "most"_a, "legs"_a,
            "least_ns"_a, "Decode a part of a block, up to a record that changes how the next are read. Returns the packets.")
        .def("finish", &Decoder::finish, "reader"_a, "base"_a, "memory"_a, "delay_ns"_a, "leg"_a, "kind"_a,
            "Fill a batch with the slowest samples. Returns (rows, stopped at, status, size of the next record).")
        .def("read", &Decoder::read, "file"_a, "data"_a, "start"_a, "stop"_a, "offset"_a, "Read a part of a file, by all threads.")
        .def("time_ns", &Decoder::time_ns, "row"_a, "The time of a row, of those in one shard.")
        .def("__len__", &Decoder::row_count, "The rows of one shard.");
}
