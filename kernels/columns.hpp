/* The columns of a packet batch in memory, for the loops of the extension. */
#ifndef WIRELAG_COLUMNS_HPP
#define WIRELAG_COLUMNS_HPP

#include <cstddef>

extern "C" {
#include "headers.h"
#include "records.h"
}

/* The columns of a packet batch, in the order of its memory: name, C type, values per row. */
#define WL_COLUMNS(X)          \
    X(time_ns, s64, 1)         \
    X(number, u64, 1)          \
    X(offset, u64, 1)          \
    X(src, u64, 2)             \
    X(dst, u64, 2)             \
    X(flow_key, u64, 1)        \
    X(packet_id, u64, 1)       \
    X(transaction, u64, 1)     \
    X(wire_length, u32, 1)     \
    X(captured_length, u32, 1) \
    X(payload_length, u32, 1)  \
    X(seq, u32, 1)             \
    X(ack, u32, 1)             \
    X(tsval, u32, 1)           \
    X(tsecr, u32, 1)           \
    X(src_port, u16, 1)        \
    X(dst_port, u16, 1)        \
    X(window, u16, 1)          \
    X(ip_id, u16, 1)           \
    X(flags, u16, 1)           \
    X(payload_offset, u16, 1)  \
    X(source, u16, 1)          \
    X(protocol, u8, 1)         \
    X(traffic_class, u8, 1)    \
    X(kind, u8, 1)             \
    X(message, u8, 1)

constexpr const char *dtype_of(s64)
{
    return "int64";
}
constexpr const char *dtype_of(u64)
{
    return "uint64";
}
constexpr const char *dtype_of(u32)
{
    return "uint32";
}
constexpr const char *dtype_of(u16)
{
    return "uint16";
}
constexpr const char *dtype_of(u8)
{
    return "uint8";
}

/* Rows of a batch. Measured: with fewer, the Python overhead shows; with more, they leave the cache. Not a power of two, or the
 * same row of every column would map to the same few cache lines. */
constexpr size_t batch_rows = 16384 + 8;

/* The memory of one batch, column by column. */
struct Columns {
#define X(name, type, width) type name[batch_rows * width];
    WL_COLUMNS(X)
#undef X

    /* Only what most agents need; the other columns are left as they are. */
    void write_few(size_t i, const wl_row &row, const wl_record &record)
    {
        time_ns[i] = record.time_ns;
        packet_id[i] = row.packet_id;
    }

    void write(size_t i, const wl_row &row, const wl_record &record, u64 record_number, u64 frame_offset)
    {
        time_ns[i] = record.time_ns;
        number[i] = record_number;
        offset[i] = frame_offset;
        src[2 * i] = row.src_high;
        src[2 * i + 1] = row.src_low;
        dst[2 * i] = row.dst_high;
        dst[2 * i + 1] = row.dst_low;
        flow_key[i] = row.flow_key;
        packet_id[i] = row.packet_id;
        transaction[i] = row.transaction;
        wire_length[i] = record.wire_length;
        captured_length[i] = record.captured_length;
        payload_length[i] = row.payload_length;
        seq[i] = row.seq;
        ack[i] = row.ack;
        tsval[i] = row.tsval;
        tsecr[i] = row.tsecr;
        src_port[i] = row.src_port;
        dst_port[i] = row.dst_port;
        window[i] = row.window;
        ip_id[i] = row.ip_id;
        flags[i] = row.flags;
        payload_offset[i] = row.payload_offset;
        source[i] = 0;
        protocol[i] = row.protocol;
        traffic_class[i] = row.traffic_class;
        kind[i] = row.kind;
        message[i] = row.message;
    }
};

#endif
