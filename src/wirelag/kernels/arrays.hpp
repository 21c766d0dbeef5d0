/* Arrays that Python hands over, and memory that the kernels work in. */
#ifndef WIRELAG_ARRAYS_HPP
#define WIRELAG_ARRAYS_HPP

#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

extern "C" {
#include "match.h"
}

template <typename T> using Column = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T> using Room = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

/* A column of the batch, of its own type and of the batch's length. */
template <typename T> Column<T> column(nanobind::handle packets, const char *name, size_t rows)
{
    Column<T> values = nanobind::cast<Column<T>>(packets.attr(name), false);

    if (values.shape(0) != rows)
        throw std::invalid_argument(std::string("the column ") + name + " has another length than the batch");
    return values;
}

/* The columns of a batch that matching looks at. */
struct SeenColumns {
    size_t rows;
    Column<s64> time_ns;
    Column<u64> flow_key, transaction;
    Column<u32> payload_length, seq, ack, tsval, tsecr;
    Column<u16> src_port, dst_port, window, ip_id, flags;
    Column<u8> protocol, kind, message;

    explicit SeenColumns(nanobind::handle packets)
        : rows(nanobind::len(packets)), time_ns(column<s64>(packets, "time_ns", rows)),
          flow_key(column<u64>(packets, "flow_key", rows)), transaction(column<u64>(packets, "transaction", rows)),
          payload_length(column<u32>(packets, "payload_length", rows)), seq(column<u32>(packets, "seq", rows)),
          ack(column<u32>(packets, "ack", rows)), tsval(column<u32>(packets, "tsval", rows)),
          tsecr(column<u32>(packets, "tsecr", rows)), src_port(column<u16>(packets, "src_port", rows)),
          dst_port(column<u16>(packets, "dst_port", rows)), window(column<u16>(packets, "window", rows)),
          ip_id(column<u16>(packets, "ip_id", rows)), flags(column<u16>(packets, "flags", rows)),
          protocol(column<u8>(packets, "protocol", rows)), kind(column<u8>(packets, "kind", rows)),
          message(column<u8>(packets, "message", rows))
    {
    }

    wl_seen operator[](size_t i) const
    {
        return {time_ns.data()[i], flow_key.data()[i], transaction.data()[i], payload_length.data()[i], seq.data()[i],
            ack.data()[i], tsval.data()[i], tsecr.data()[i], src_port.data()[i], dst_port.data()[i], window.data()[i],
            ip_id.data()[i], flags.data()[i], protocol.data()[i], kind.data()[i], message.data()[i]};
    }
};

struct Free {
    void operator()(void *memory) const
    {
        std::free(memory);
    }
};

/* Memory that is zero and costs nothing until it is used. */
template <typename T> std::unique_ptr<T[], Free> zeroed(size_t count)
{
    T *memory = static_cast<T *>(std::calloc(count, sizeof(T)));

    if (!memory)
        throw std::bad_alloc();
    return std::unique_ptr<T[], Free>(memory);
}

#endif
