/* Records of a capture file: pcap and pcapng, both byte orders, from a buffer that holds a part of the file.
 *
 * Law: wl_next() reads the bytes [at, end), consumes one record or asks for more, and never trusts a length field: a record
 * either lies inside the buffer or is not touched. No allocation: the caller keeps the interfaces. */
#ifndef WIRELAG_RECORDS_H
#define WIRELAG_RECORDS_H

#include "types.h"

#define WL_MOST_FRAME 262144u     /* captured bytes of one packet, as in libpcap and Wireshark */
#define WL_MOST_BLOCK (16u << 20) /* bytes of one pcapng block */
#define WL_MOST_INTERFACES 65536u

enum wl_format { WL_FORMAT_UNKNOWN, WL_FORMAT_PCAP, WL_FORMAT_PCAPNG };

enum wl_step {
    WL_STEP_PACKET,
    WL_STEP_INTERFACE, /* file->fresh describes it: append it to the interfaces */
    WL_STEP_SECTION,   /* forget the interfaces */
    WL_STEP_OTHER,     /* something without a packet was passed */
    WL_STEP_MORE,      /* the record does not end inside the buffer; wl_record.length is its size, if known */
    WL_STEP_BROKEN,    /* file->broken is the reason */
};

enum wl_broken {
    WL_BROKEN_NOT,
    WL_BROKEN_MAGIC,
    WL_BROKEN_VERSION,
    WL_BROKEN_LINK,
    WL_BROKEN_FRAME_SIZE,
    WL_BROKEN_BLOCK_SIZE,
    WL_BROKEN_BLOCK_END,
    WL_BROKEN_BYTE_ORDER,
    WL_BROKEN_INTERFACE,
    WL_BROKEN_INTERFACES,
};

/* The source of packets, and the unit of their timestamps. */
struct wl_interface {
    u32 link, snaplen;
    u8 resolution; /* as if_tsresol: 10^-n, or 2^-n with the top bit set */
    s64 offset_s;  /* added to the timestamps */
};

struct wl_file {
    enum wl_format format;
    int swapped; /* the file's byte order is not this machine's */
    u32 record_header;
    int lengths_swapped; /* pcap before 2.4 has captured and wire length swapped */
    u32 sections;
    const struct wl_interface *interfaces;
    u32 interface_count;
    struct wl_interface fresh;
    enum wl_broken broken;
};

struct wl_record {
    u64 length; /* length of the whole record */
    const u8 *frame;
    u32 captured_length, wire_length;
    u32 interface;
    s64 time_ns;
    int has_time;
};

WL_INLINE u16 wl_file16(const struct wl_file *file, const u8 *p)
{
    u16 x;

    __builtin_memcpy(&x, p, 2);
    return file->swapped ? __builtin_bswap16(x) : x;
}

WL_INLINE u32 wl_file32(const struct wl_file *file, const u8 *p)
{
    u32 x;

    __builtin_memcpy(&x, p, 4);
    return file->swapped ? __builtin_bswap32(x) : x;
}

WL_INLINE u64 wl_file64(const struct wl_file *file, const u8 *p)
{
    u64 x;

    __builtin_memcpy(&x, p, 8);
    return file->swapped ? __builtin_bswap64(x) : x;
}

WL_INLINE enum wl_step wl_break(struct wl_file *file, enum wl_broken why)
{
    file->broken = why;
    return WL_STEP_BROKEN;
}

WL_INLINE s64 wl_saturate(__int128 ns)
{
    if (ns > INT64_MAX)
        return INT64_MAX;
    return ns < INT64_MIN ? INT64_MIN : (s64)ns;
}

/* A timestamp in an interface's unit as ns since 1970. Exact; saturates outside of int64. */
static inline s64 wl_time_ns(u64 stamp, const struct wl_interface *interface)
{
    u32 exponent = interface->resolution & 0x7F;
    __int128 ns = stamp;

    if (interface->resolution & 0x80) {
        unsigned __int128 fraction = exponent < 64 ? stamp & ((1ull << exponent) - 1) : stamp;

        ns = exponent < 64 ? (__int128)(stamp >> exponent) * 1000000000 : 0;
        ns += (s64)(fraction * 1000000000 >> exponent);
    } else {
        for (; exponent < 9; exponent++)
            ns *= 10;
        for (; exponent > 9 && ns; exponent--)
            ns /= 10;
    }
    return wl_saturate(ns + (__int128)interface->offset_s * 1000000000);
}

/* ---- pcap ---- */

static inline enum wl_step wl_pcap_header(struct wl_file *file, const u8 *at, struct wl_record *record)
{
    u32 magic, network, major, minor;

    __builtin_memcpy(&magic, at, 4);
    file->swapped = magic == 0xD4C3B2A1 || magic == 0x4D3CB2A1 || magic == 0x34CDB2A1;
    magic = wl_file32(file, at);
    major = wl_file16(file, at + 4);
    minor = wl_file16(file, at + 6);
    if (major != 2)
        return wl_break(file, WL_BROKEN_VERSION);
    network = wl_file32(file, at + 20);
    if (network & 0x03FF0000)
        return wl_break(file, WL_BROKEN_LINK);
    file->format = WL_FORMAT_PCAP;
    file->record_header = magic == 0xA1B2CD34 ? 24 : 16;
    file->lengths_swapped = minor < 3;
    file->fresh = (struct wl_interface){
        .link = network & 0xFFFF,
        .snaplen = wl_file32(file, at + 16),
        .resolution = (u8)(magic == 0xA1B23C4D ? 9 : 6),
    };
    record->length = 24;
    return WL_STEP_INTERFACE;
}

WL_INLINE enum wl_step wl_pcap_record(struct wl_file *file, const u8 *at, const u8 *end, struct wl_record *record)
{
    u32 captured, wire, unit = file->interfaces[0].resolution == 9 ? 1 : 1000;

    record->length = file->record_header;
    if ((u64)(end - at) < file->record_header)
        return WL_STEP_MORE;
    captured = wl_file32(file, at + 8);
    wire = wl_file32(file, at + 12);
    if (file->lengths_swapped) {
        u32 both = captured;

        captured = wire;
        wire = both;
    }
    if (captured > WL_MOST_FRAME)
        return wl_break(file, WL_BROKEN_FRAME_SIZE);
    record->length += captured;
    if ((u64)(end - at) < record->length)
        return WL_STEP_MORE;
    record->frame = at + file->record_header;
    record->captured_length = captured;
    record->wire_length = wire;
    record->interface = 0;
    record->time_ns = wl_file32(file, at) * 1000000000ll + (s64)wl_file32(file, at + 4) * unit;
    record->has_time = 1;
    return WL_STEP_PACKET;
}

/* ---- pcapng ---- */

#define WL_BLOCK_SECTION 0x0A0D0D0Au
#define WL_BLOCK_INTERFACE 1u
#define WL_BLOCK_PACKET 2u /* obsolete, still found */
#define WL_BLOCK_SIMPLE 3u
#define WL_BLOCK_ENHANCED 6u

static inline void wl_interface_options(struct wl_file *file, const u8 *at, const u8 *end)
{
    while (end - at >= 4) {
        u32 code = wl_file16(file, at), length = wl_file16(file, at + 2);

        at += 4;
        if (code == 0 || (u64)(end - at) < length)
            return;
        if (code == 9 && length >= 1)
            file->fresh.resolution = at[0];
        if (code == 14 && length >= 8)
            file->fresh.offset_s = (s64)wl_file64(file, at);
        length = (length + 3) & ~3u;
        if ((u64)(end - at) < length)
            return;
        at += length;
    }
}

/* A packet whose header of `header` bytes is at `body`: check that the frame lies inside the block. */
WL_INLINE enum wl_step wl_block_packet(struct wl_file *file, const u8 *body, const u8 *end, u32 header, struct wl_record *record)
{
    if (record->captured_length > WL_MOST_FRAME)
        return wl_break(file, WL_BROKEN_FRAME_SIZE);
    if ((u64)(end - body) < (u64)header + record->captured_length)
        return wl_break(file, WL_BROKEN_FRAME_SIZE);
    if (record->interface >= file->interface_count)
        return wl_break(file, WL_BROKEN_INTERFACE);
    record->frame = body + header;
    return WL_STEP_PACKET;
}

static inline enum wl_step wl_pcapng_block(struct wl_file *file, const u8 *at, const u8 *end, struct wl_record *record)
{
    const u8 *body = at + 8, *tail;
    u32 type, length;

    record->length = 12;
    if (end - at < 12)
        return WL_STEP_MORE;
    type = wl_file32(file, at);
    if (type == WL_BLOCK_SECTION) { /* the same in both byte orders; a new section may change the order */
        u32 order;

        __builtin_memcpy(&order, body, 4);
        if (order != 0x1A2B3C4D && order != 0x4D3C2B1A)
            return wl_break(file, file->sections ? WL_BROKEN_BYTE_ORDER : WL_BROKEN_MAGIC);
        file->swapped = order == 0x4D3C2B1A;
    }
    length = wl_file32(file, at + 4);
    if (length < 12 || length > WL_MOST_BLOCK)
        return wl_break(file, WL_BROKEN_BLOCK_SIZE);
    length = (length + 3) & ~3u;
    record->length = length;
    if ((u64)(end - at) < length)
        return WL_STEP_MORE;
    tail = at + length - 4;
    if (wl_file32(file, tail) != wl_file32(file, at + 4))
        return wl_break(file, WL_BROKEN_BLOCK_END);

    switch (type) {
    case WL_BLOCK_SECTION:
        if (tail - body < 16)
            return wl_break(file, WL_BROKEN_BLOCK_SIZE);
        if (wl_file16(file, body + 4) != 1 || (wl_file16(file, body + 6) != 0 && wl_file16(file, body + 6) != 2))
            return wl_break(file, WL_BROKEN_VERSION);
        file->format = WL_FORMAT_PCAPNG;
        file->sections++;
        return WL_STEP_SECTION;
    case WL_BLOCK_INTERFACE:
        if (tail - body < 8)
            return wl_break(file, WL_BROKEN_BLOCK_SIZE);
        if (file->interface_count >= WL_MOST_INTERFACES)
            return wl_break(file, WL_BROKEN_INTERFACES);
        file->fresh = (struct wl_interface){
            .link = wl_file16(file, body),
            .snaplen = wl_file32(file, body + 4),
            .resolution = 6,
        };
        wl_interface_options(file, body + 8, tail);
        return WL_STEP_INTERFACE;
    case WL_BLOCK_ENHANCED:
    case WL_BLOCK_PACKET:
        if (tail - body < 20)
            return wl_break(file, WL_BROKEN_BLOCK_SIZE);
        record->interface = type == WL_BLOCK_ENHANCED ? wl_file32(file, body) : wl_file16(file, body);
        record->captured_length = wl_file32(file, body + 12);
        record->wire_length = wl_file32(file, body + 16);
        if (wl_block_packet(file, body, tail, 20, record) != WL_STEP_PACKET)
            return WL_STEP_BROKEN;
        record->time_ns = wl_time_ns(
            (u64)wl_file32(file, body + 4) << 32 | wl_file32(file, body + 8), &file->interfaces[record->interface]);
        record->has_time = record->time_ns != INT64_MAX && record->time_ns != INT64_MIN;
        return WL_STEP_PACKET;
    case WL_BLOCK_SIMPLE:
        if (tail - body < 4)
            return wl_break(file, WL_BROKEN_BLOCK_SIZE);
        if (file->interface_count == 0)
            return wl_break(file, WL_BROKEN_INTERFACE);
        record->interface = 0;
        record->wire_length = record->captured_length = wl_file32(file, body);
        if (file->interfaces[0].snaplen && record->captured_length > file->interfaces[0].snaplen)
            record->captured_length = file->interfaces[0].snaplen;
        record->has_time = 0;
        record->time_ns = 0;
        return wl_block_packet(file, body, tail, 4, record);
    }
    return WL_STEP_OTHER;
}

/* ---- either ---- */

static inline enum wl_step wl_file_begin(struct wl_file *file, const u8 *at, const u8 *end, struct wl_record *record)
{
    u32 magic;

    record->length = 24; /* enough for either header */
    if (end - at < 24)
        return WL_STEP_MORE;
    __builtin_memcpy(&magic, at, 4);
    switch (magic) {
    case 0xA1B2C3D4: /* us */
    case 0xD4C3B2A1:
    case 0xA1B23C4D: /* ns */
    case 0x4D3CB2A1:
    case 0xA1B2CD34: /* with an interface index in each record */
    case 0x34CDB2A1:
        return wl_pcap_header(file, at, record);
    case WL_BLOCK_SECTION:
        return wl_pcapng_block(file, at, end, record);
    }
    return wl_break(file, WL_BROKEN_MAGIC);
}

WL_INLINE enum wl_step wl_next(struct wl_file *file, const u8 *at, const u8 *end, struct wl_record *record)
{
    if (file->format == WL_FORMAT_PCAP)
        return wl_pcap_record(file, at, end, record);
    if (file->format == WL_FORMAT_PCAPNG)
        return wl_pcapng_block(file, at, end, record);
    return wl_file_begin(file, at, end, record);
}

#endif
