/* One frame into one row (docs/reference/columns.md is the law; naive/headers.py its independent twin).
 *
 * Safety: every read goes through wl_has(), which compares with the end of the captured bytes, and every loop has a
 * constant bound. Written this way the kernel's verifier accepts it, and that proves it cannot read out of bounds.
 * Integer only; no state between frames. */
#ifndef WIRELAG_HEADERS_H
#define WIRELAG_HEADERS_H

#include "hash.h"

#define WL_MOST_TAGS 8       /* VLAN tags and MPLS labels before one IP header */
#define WL_MOST_EXTENSIONS 8 /* extension headers of one IP packet */
#define WL_MOST_OPTIONS 40   /* bytes of TCP options, and so options */
#define WL_MOST_TUNNELS 4
#define WL_MOST_PREFIX 64

enum wl_reason { WL_OK, WL_LINK_TYPE, WL_NOT_IP, WL_CUT, WL_MALFORMED, WL_LAYERS, WL_NO_TIMESTAMP, WL_REASONS };

enum wl_kind { WL_OTHER, WL_TCP, WL_UDP, WL_ICMP, WL_DNS, WL_NTP, WL_QUIC, WL_ESP, WL_WIREGUARD, WL_STAMP };

enum wl_flag {
    WL_IPV6 = 1 << 0,
    WL_REVERSE = 1 << 1,
    WL_FRAGMENT = 1 << 2,
    WL_LATER = 1 << 3,
    WL_SHORT = 1 << 4,
    WL_TIMESTAMPS = 1 << 5,
    WL_SACK = 1 << 6,
    WL_TUNNEL = 1 << 7,
    WL_INNER = 1 << 8,
    WL_VLAN = 1 << 9,
    WL_MPLS = 1 << 10,
    WL_PPPOE = 1 << 11,
    WL_PREFIX_CUT = 1 << 12,
    WL_UNSIZED = 1 << 13,
};

/* What a packet id is made of. */
enum wl_field { WL_FIELD_FLOW = 1, WL_FIELD_LENGTH = 2, WL_FIELD_IP_ID = 4, WL_FIELD_TRANSPORT = 8 };

enum wl_link { /* as numbered in capture files */
    WL_LINK_NULL = 0,
    WL_LINK_ETHERNET = 1,
    WL_LINK_PPP = 9,
    WL_LINK_RAW_12 = 12,
    WL_LINK_RAW_14 = 14,
    WL_LINK_PPP_HDLC = 50,
    WL_LINK_PPPOE = 51,
    WL_LINK_RAW = 101,
    WL_LINK_CHDLC = 104,
    WL_LINK_LOOP = 108,
    WL_LINK_SLL = 113,
    WL_LINK_PPP_DIRECTION = 204,
    WL_LINK_IPV4 = 228,
    WL_LINK_IPV6 = 229,
    WL_LINK_SLL2 = 276,
};

enum wl_type { /* ethertypes; other layers are translated into them */
    WL_TYPE_IPV4 = 0x0800,
    WL_TYPE_BRIDGE = 0x6558, /* an Ethernet frame inside GRE or Geneve */
    WL_TYPE_VLAN = 0x8100,
    WL_TYPE_IPV6 = 0x86DD,
    WL_TYPE_MPLS = 0x8847,
    WL_TYPE_MPLS_MULTICAST = 0x8848,
    WL_TYPE_PPPOE = 0x8864,
    WL_TYPE_PPP = 0x880B,
    WL_TYPE_QINQ = 0x88A8,
    WL_TYPE_ERSPAN = 0x88BE,
    WL_TYPE_QINQ_OLD = 0x9100,
    WL_TYPE_NONE = 0xFFFF,
};

struct wl_decode_options {
    u64 seed;    /* of both hashes */
    u32 fields;  /* enum wl_field bits */
    u32 prefix;  /* payload bytes in the packet id, at most WL_MOST_PREFIX */
    u32 tunnels; /* follow tunnels to the innermost packet */
};

struct wl_row {
    u64 src_high, src_low, dst_high, dst_low;
    u64 flow_key, packet_id, transaction;
    u32 payload_length, seq, ack, tsval, tsecr;
    u16 src_port, dst_port, window, ip_id, flags, payload_offset;
    u8 protocol, traffic_class, kind, message;
};

/* What is known of an IP packet beside its row. Lengths are as claimed. */
struct wl_packet {
    u32 wire_length;
    u32 ip_length, ip_payload; /* the payload shrinks as extension headers are passed */
    u32 ip_id, fragment;       /* fragment offset in bytes + 1 if more follow */
    u32 icmp, icmp_rest;       /* type and code; bytes 4 to 7 */
};

/* Where a stage stands, and the end of what it may read. */
struct wl_cursor {
    const u8 *frame, *at, *end;
#ifdef __bpf__
    u32 left; /* the verifier accepts only the frame's own end, so the end of an IP payload is counted beside it */
#endif
};

/* A cursor between two stages. The verifier follows no pointer through memory, so there it is kept in numbers. */
#ifdef __bpf__
struct wl_place {
    u32 offset, left;
};
#else
struct wl_place {
    struct wl_cursor cursor;
};
#endif

/* One frame under way: what is kept from stage to stage. */
struct wl_decoding {
    struct wl_place place;   /* where the next stage reads on */
    struct wl_place options; /* the TCP options not looked at yet */
    u32 type;                /* the ethertype found last */
    struct wl_packet packet;
    struct wl_row row;
};

/* A stage of decoding. In the extension all stages are inlined. In eBPF each is a function of its own, which the verifier
 * checks once and for all inputs: the stages' costs add up, where inlined they would multiply and exceed its limit. */
#ifdef __bpf__
#ifndef WL_CONTEXT
#define WL_CONTEXT struct xdp_md
#endif
#define WL_STAGE __attribute__((noinline))
#define WL_MOST_OFFSET 0x3FFF /* the verifier wants to see a bound */
#else
struct wl_frame {
    const u8 *data, *data_end;
};
#define WL_CONTEXT struct wl_frame
#define WL_STAGE WL_INLINE
#endif

/* May the next n bytes be read? */
WL_INLINE int wl_has(const struct wl_cursor *c, u32 n)
{
#ifdef __bpf__
    if (c->left < n)
        return 0;
#endif
    return c->at + n <= c->end;
}

WL_INLINE void wl_pass(struct wl_cursor *c, u32 n)
{
    c->at += n;
#ifdef __bpf__
    c->left -= n;
#endif
}

/* From here on, nothing behind the next n bytes is read. */
WL_INLINE void wl_limit(struct wl_cursor *c, u32 n)
{
#ifdef __bpf__
    if (c->left > n)
        c->left = n;
#else
    if ((u64)(c->end - c->at) > n)
        c->end = c->at + n;
#endif
}

WL_INLINE u32 wl_offset(const struct wl_cursor *c)
{
    return (u32)(c->at - c->frame);
}

/* Take up reading at a place; whether it lies inside the frame. */
WL_INLINE int wl_resume(struct wl_cursor *c, WL_CONTEXT *context, const struct wl_place *place)
{
#ifdef __bpf__
    c->frame = (const u8 *)(long)context->data;
    c->end = (const u8 *)(long)context->data_end;
    c->left = place->left;
    if (place->offset > WL_MOST_OFFSET)
        return 0;
    c->at = c->frame + place->offset;
    return c->at <= c->end;
#else
    (void)context;
    *c = place->cursor;
    return 1;
#endif
}

WL_INLINE void wl_suspend(const struct wl_cursor *c, struct wl_place *place)
{
#ifdef __bpf__
    place->offset = wl_offset(c);
    place->left = c->left;
#else
    place->cursor = *c;
#endif
}

WL_INLINE void wl_begin(WL_CONTEXT *context, struct wl_place *place)
{
#ifdef __bpf__
    place->offset = 0;
    place->left = ~0u;
#else
    place->cursor = (struct wl_cursor){context->data, context->data, context->data_end};
#endif
}

/* ---- from the link to an ethertype ---- */

WL_INLINE enum wl_reason wl_nibble(const struct wl_cursor *c, u16 *type, enum wl_reason otherwise)
{
    if (!wl_has(c, 1))
        return WL_CUT;
    switch (c->at[0] >> 4) {
    case 4:
        *type = WL_TYPE_IPV4;
        return WL_OK;
    case 6:
        *type = WL_TYPE_IPV6;
        return WL_OK;
    }
    return otherwise;
}

WL_INLINE enum wl_reason wl_ppp(struct wl_cursor *c, u16 *type)
{
    u32 protocol;

    if (!wl_has(c, 1))
        return WL_CUT;
    protocol = c->at[0];
    if (protocol & 1) { /* compressed to one byte */
        wl_pass(c, 1);
    } else {
        if (!wl_has(c, 2))
            return WL_CUT;
        protocol = wl_be16(c->at);
        wl_pass(c, 2);
    }
    switch (protocol) {
    case 0x0021:
        *type = WL_TYPE_IPV4;
        return WL_OK;
    case 0x0057:
        *type = WL_TYPE_IPV6;
        return WL_OK;
    case 0x0281:
    case 0x0283:
        *type = WL_TYPE_MPLS;
        return WL_OK;
    }
    return WL_NOT_IP;
}

/* PPP with its optional HDLC address and control bytes. */
WL_INLINE enum wl_reason wl_ppp_framed(struct wl_cursor *c, u16 *type)
{
    if (wl_has(c, 2) && wl_be16(c->at) == 0xFF03)
        wl_pass(c, 2);
    return wl_ppp(c, type);
}

WL_INLINE enum wl_reason wl_family(struct wl_cursor *c, u16 *type)
{
    u32 family;

    if (!wl_has(c, 4))
        return WL_CUT;
    family = wl_be32(c->at);
    if (family > 0xFFFF) /* in the byte order of the capturing host */
        family = __builtin_bswap32(family);
    wl_pass(c, 4);
    switch (family) {
    case 2:
        *type = WL_TYPE_IPV4;
        return WL_OK;
    case 10: /* Linux; NetBSD and OpenBSD 24, FreeBSD 28, Darwin 30 */
    case 24:
    case 28:
    case 30:
        *type = WL_TYPE_IPV6;
        return WL_OK;
    }
    return WL_NOT_IP;
}

/* A header of `length` bytes with the ethertype at `where`. */
WL_INLINE enum wl_reason wl_typed(struct wl_cursor *c, u32 length, u32 where, u16 *type)
{
    if (!wl_has(c, length))
        return WL_CUT;
    *type = wl_be16(c->at + where);
    wl_pass(c, length);
    return WL_OK;
}

WL_INLINE enum wl_reason wl_link(struct wl_cursor *c, u32 link, u16 *type)
{
    if (link == WL_LINK_ETHERNET)
        return wl_typed(c, 14, 12, type);
    switch (link) {
    case WL_LINK_SLL:
        return wl_typed(c, 16, 14, type);
    case WL_LINK_SLL2:
        return wl_typed(c, 20, 0, type);
    case WL_LINK_CHDLC:
        return wl_typed(c, 4, 2, type);
    case WL_LINK_RAW:
    case WL_LINK_RAW_12:
    case WL_LINK_RAW_14:
    case WL_LINK_IPV4:
    case WL_LINK_IPV6:
        return wl_nibble(c, type, WL_MALFORMED);
    case WL_LINK_NULL:
    case WL_LINK_LOOP:
        return wl_family(c, type);
    case WL_LINK_PPP_DIRECTION:
        if (!wl_has(c, 1))
            return WL_CUT;
        wl_pass(c, 1);
        return wl_ppp_framed(c, type);
    case WL_LINK_PPP:
    case WL_LINK_PPP_HDLC:
        return wl_ppp_framed(c, type);
    case WL_LINK_PPPOE:
        *type = WL_TYPE_PPPOE;
        return WL_OK;
    }
    return WL_LINK_TYPE;
}

/* ---- from an ethertype to an IP header ---- */

WL_INLINE enum wl_reason wl_snap(struct wl_cursor *c, u16 *type)
{
    if (!wl_has(c, 8) || wl_be32(c->at) != 0xAAAA0300 || wl_be16(c->at + 4) != 0)
        return WL_NOT_IP;
    *type = wl_be16(c->at + 6);
    wl_pass(c, 8);
    return WL_OK;
}

WL_INLINE enum wl_reason wl_mpls(struct wl_cursor *c, u16 *type)
{
    int bottom;

    if (!wl_has(c, 4))
        return WL_CUT;
    bottom = c->at[2] & 1;
    wl_pass(c, 4);
    return bottom ? wl_nibble(c, type, WL_NOT_IP) : WL_OK;
}

/* Pass tags and labels until `type` is one of the two IP versions. */
WL_INLINE enum wl_reason wl_tags(struct wl_cursor *c, u16 *type, u16 *flags)
{
    u32 tags = 0, snaps = 0;
    enum wl_reason reason = WL_OK;

    /* All tags, one SNAP header, one PPPoE header, and the IP version behind them. */
    for (int i = 0; i < WL_MOST_TAGS + 3; i++) {
        u16 now = *type;

        if (now == WL_TYPE_IPV4 || now == WL_TYPE_IPV6)
            return WL_OK;
        if (now == WL_TYPE_VLAN || now == WL_TYPE_QINQ || now == WL_TYPE_QINQ_OLD) {
            if (tags++ == WL_MOST_TAGS)
                return WL_LAYERS;
            reason = wl_typed(c, 4, 2, type);
            *flags |= WL_VLAN;
        } else if (now == WL_TYPE_MPLS || now == WL_TYPE_MPLS_MULTICAST) {
            if (tags++ == WL_MOST_TAGS)
                return WL_LAYERS;
            reason = wl_mpls(c, type);
            *flags |= WL_MPLS;
        } else if (now == WL_TYPE_PPPOE) {
            if (!wl_has(c, 6))
                return WL_CUT;
            wl_pass(c, 6);
            reason = wl_ppp(c, type);
            *flags |= WL_PPPOE;
        } else if (now < 0x0600 && snaps++ == 0) {
            reason = wl_snap(c, type);
        } else {
            return WL_NOT_IP;
        }
        if (reason)
            return reason;
    }
    return WL_LAYERS;
}

/* ---- IP ---- */

/* The IP length where the header gives none: up to the end of the frame on the wire. */
WL_INLINE u32 wl_unsized(const struct wl_cursor *c, const struct wl_packet *packet, u32 header, struct wl_row *row)
{
    u32 before = wl_offset(c);

    row->flags |= WL_UNSIZED;
    return packet->wire_length < before + header ? header : packet->wire_length - before;
}

WL_INLINE void wl_enter_payload(struct wl_cursor *c, struct wl_packet *packet, u32 header)
{
    packet->ip_payload = packet->ip_length - header;
    wl_pass(c, header);
    wl_limit(c, packet->ip_payload);
}

WL_INLINE void wl_fragmented(struct wl_packet *packet, u32 offset, u32 more, struct wl_row *row)
{
    packet->fragment = offset + more;
    if (packet->fragment)
        row->flags |= WL_FRAGMENT;
    if (offset)
        row->flags |= WL_LATER;
}

WL_INLINE enum wl_reason wl_ipv4(struct wl_cursor *c, struct wl_packet *packet, struct wl_row *row)
{
    u32 header, bits;

    if (!wl_has(c, 20))
        return WL_CUT;
    header = (c->at[0] & 15) * 4;
    if (c->at[0] >> 4 != 4 || header < 20)
        return WL_MALFORMED;
    if (!wl_has(c, header))
        return WL_CUT;
    packet->ip_length = wl_be16(c->at + 2);
    if (packet->ip_length == 0)
        packet->ip_length = wl_unsized(c, packet, header, row);
    if (packet->ip_length < header)
        return WL_MALFORMED;
    row->traffic_class = c->at[1];
    row->ip_id = packet->ip_id = wl_be16(c->at + 4);
    row->protocol = c->at[9];
    row->src_low = 0xFFFF00000000ull | wl_be32(c->at + 12);
    row->dst_low = 0xFFFF00000000ull | wl_be32(c->at + 16);
    bits = wl_be16(c->at + 6);
    wl_fragmented(packet, (bits & 0x1FFF) * 8, bits >> 13 & 1, row);
    wl_enter_payload(c, packet, header);
    return WL_OK;
}

WL_INLINE enum wl_reason wl_ipv6(struct wl_cursor *c, struct wl_packet *packet, struct wl_row *row)
{
    if (!wl_has(c, 40))
        return WL_CUT;
    if (c->at[0] >> 4 != 6)
        return WL_MALFORMED;
    row->flags |= WL_IPV6;
    row->traffic_class = wl_be16(c->at) >> 4;
    row->protocol = c->at[6];
    row->src_high = wl_be64(c->at + 8);
    row->src_low = wl_be64(c->at + 16);
    row->dst_high = wl_be64(c->at + 24);
    row->dst_low = wl_be64(c->at + 32);
    packet->ip_length = 40 + wl_be16(c->at + 4);
    if (packet->ip_length == 40 && row->protocol != 59)
        packet->ip_length = wl_unsized(c, packet, 40, row);
    packet->ip_id = 0;
    packet->fragment = 0;
    wl_enter_payload(c, packet, 40);
    return WL_OK;
}

WL_INLINE int wl_is_extension(u8 protocol, u16 flags)
{
    if (protocol == 51)
        return 1;
    return flags & WL_IPV6 && (protocol == 0 || protocol == 43 || protocol == 44 || protocol == 60 || protocol == 135);
}

WL_INLINE void wl_extensions(struct wl_cursor *c, struct wl_packet *packet, struct wl_row *row)
{
    int fragments = 0;

    for (int i = 0; i <= WL_MOST_EXTENSIONS; i++) {
        u32 length = 8, bits;

        if (row->flags & WL_LATER || !wl_is_extension(row->protocol, row->flags))
            return;
        if (i == WL_MOST_EXTENSIONS || !wl_has(c, 8))
            break;
        if (row->protocol != 44)
            length += c->at[1] * (row->protocol == 51 ? 4u : 8u);
        if (!wl_has(c, length))
            break;
        if (row->protocol == 44 && fragments++ == 0) {
            bits = wl_be16(c->at + 2);
            packet->ip_id = wl_be32(c->at + 4);
            row->ip_id = (u16)packet->ip_id;
            wl_fragmented(packet, bits & 0xFFF8, bits & 1, row);
        }
        row->protocol = c->at[0];
        wl_pass(c, length);
        packet->ip_payload -= length;
    }
    row->flags |= WL_SHORT;
}

/* ---- transport ---- */

/* Above the transport header: what is left is the payload. */
WL_INLINE void wl_enter_transport(
    const struct wl_cursor *c, const struct wl_packet *packet, u32 header, u8 kind, struct wl_row *row)
{
    row->kind = kind;
    row->payload_length = packet->ip_payload > header ? packet->ip_payload - header : 0;
    row->payload_offset = (u16)(wl_offset(c) + header);
}

WL_INLINE void wl_timestamps(const u8 *at, struct wl_row *row)
{
    if (row->flags & WL_TIMESTAMPS)
        return;
    row->flags |= WL_TIMESTAMPS;
    row->tsval = wl_be32(at);
    row->tsecr = wl_be32(at + 4);
}

/* Pass one TCP option; whether there may be another. */
WL_INLINE int wl_tcp_option(struct wl_cursor *c, struct wl_row *row)
{
    u32 length;

    if (!wl_has(c, 2)) /* what a single byte could say changes nothing */
        return 0;
    if (c->at[0] == 1) {
        wl_pass(c, 1);
        return 1;
    }
    length = c->at[1];
    if (c->at[0] == 0 || length < 2 || !wl_has(c, length))
        return 0;
    if (c->at[0] == 5)
        row->flags |= WL_SACK;
    if (c->at[0] == 8 && length == 10 && wl_has(c, 10))
        wl_timestamps(c->at + 2, row);
    wl_pass(c, length);
    return 1;
}

/* The options: nearly all packets have two bytes of padding and the timestamps, and nothing else. */
WL_INLINE void wl_tcp_options(struct wl_cursor c, u32 header, struct wl_decoding *d)
{
    wl_pass(&c, 20);
    wl_limit(&c, header - 20);
    if (wl_has(&c, 12) && wl_be32(c.at) == 0x0101080A) {
        wl_timestamps(c.at + 4, &d->row);
        wl_pass(&c, 12);
    }
    wl_suspend(&c, &d->options);
}

WL_INLINE void wl_tcp(const struct wl_cursor *c, struct wl_decoding *d)
{
    struct wl_row *row = &d->row;
    u32 header;

    if (!wl_has(c, 20))
        goto cut_short;
    header = (c->at[12] >> 4) * 4;
    if (header < 20 || header > d->packet.ip_payload)
        goto cut_short;
    row->seq = wl_be32(c->at + 4);
    row->ack = wl_be32(c->at + 8);
    row->message = c->at[13];
    row->window = wl_be16(c->at + 14);
    wl_enter_transport(c, &d->packet, header, WL_TCP, row);
    wl_tcp_options(*c, header, d);
    return;
cut_short:
    row->flags |= WL_SHORT;
}

WL_INLINE int wl_quic_version(u32 v)
{
    return v <= 1 || v == 0x6B3343CF || v == 0x709A50C4 || v >> 8 == 0xFF0000 || v >> 8 == 0xFACEB0 || v >> 16 == 0x5130 ||
           v >> 16 == 0x5430 || (v & 0x0F0F0F0F) == 0x0A0A0A0A;
}

WL_INLINE int wl_quic_long(const struct wl_cursor *c, struct wl_row *row)
{
    u32 length;
    u64 id = 0;

    if (!wl_has(c, 7) || !(c->at[0] & 0x80) || c->at[5] > 20 || !wl_quic_version(wl_be32(c->at + 1)))
        return 0;
    length = c->at[5] < 8 ? c->at[5] : 8;
    if (wl_has(c, 6 + length))
        for (u32 i = 0; i < 8; i++) {
            if (i >= length || !wl_has(c, 7 + i))
                break;
            id = id << 8 | c->at[6 + i];
        }
    row->kind = WL_QUIC;
    row->message = c->at[0];
    row->transaction = id;
    return 1;
}

WL_INLINE int wl_wireguard(const struct wl_cursor *c, struct wl_row *row)
{
    u32 type, length = row->payload_length;
    u64 sender = 0, receiver = 0;

    if (!wl_has(c, 16) || wl_be32(c->at) & 0x00FFFFFF)
        return 0;
    type = c->at[0];
    if (type == 1 && length == 148) {
        sender = wl_le32(c->at + 4);
    } else if (type == 2 && length == 92) {
        sender = wl_le32(c->at + 4);
        receiver = wl_le32(c->at + 8);
    } else if (type == 3 && length == 64) {
        receiver = wl_le32(c->at + 4);
    } else if (type == 4 && length >= 32 && length % 16 == 0) {
        receiver = wl_le32(c->at + 4);
        row->seq = wl_le32(c->at + 8);
    } else {
        return 0;
    }
    row->kind = WL_WIREGUARD;
    row->message = (u8)type;
    row->transaction = sender << 32 | receiver;
    return 1;
}

WL_INLINE int wl_ntp(const struct wl_cursor *c, struct wl_row *row)
{
    u8 mode;

    if (!wl_has(c, 48))
        return 0;
    mode = c->at[0] & 7;
    if (mode < 1 || mode > 5)
        return 0;
    row->kind = WL_NTP;
    row->message = mode;
    row->transaction = wl_be64(c->at + (mode == 2 || mode == 4 ? 24 : 40));
    return 1;
}

WL_INLINE int wl_either_port(const struct wl_row *row, u16 port)
{
    return row->src_port == port || row->dst_port == port;
}

/* What a UDP payload is. The cursor stands at the payload. */
WL_INLINE void wl_udp_payload(const struct wl_cursor *c, struct wl_row *row)
{
    if (!wl_has(c, 1))
        return;
    if ((wl_either_port(row, 53) || wl_either_port(row, 5353) || wl_either_port(row, 5355)) && wl_has(c, 12)) {
        row->kind = WL_DNS;
        row->message = c->at[2];
        row->transaction = wl_be16(c->at);
        return;
    }
    if (wl_either_port(row, 123) && wl_ntp(c, row))
        return;
    if (wl_either_port(row, 862) && wl_has(c, 14)) {
        row->kind = WL_STAMP;
        row->message = c->at[12];
        row->seq = wl_be32(c->at);
        row->transaction = wl_be64(c->at + 4);
        return;
    }
    if (wl_either_port(row, 4500) && wl_has(c, 8) && wl_be32(c->at)) {
        row->kind = WL_ESP;
        row->transaction = wl_be32(c->at);
        row->seq = wl_be32(c->at + 4);
        return;
    }
    if (wl_wireguard(c, row) || wl_quic_long(c, row))
        return;
    row->message = c->at[0];
    if (wl_has(c, 9)) {
        row->transaction = wl_be64(c->at + 1);
        if (c->at[0] >> 6 == 1 && (wl_either_port(row, 443) || wl_either_port(row, 4433)))
            row->kind = WL_QUIC;
    }
}

WL_INLINE void wl_udp(const struct wl_cursor *c, const struct wl_packet *packet, struct wl_row *row)
{
    struct wl_cursor inside;
    u32 length;

    if (!wl_has(c, 8)) {
        row->flags |= WL_SHORT;
        return;
    }
    length = wl_be16(c->at + 4);
    wl_enter_transport(c, packet, 8, WL_UDP, row);
    if (length >= 8 && length - 8 < row->payload_length)
        row->payload_length = length - 8;
    inside = *c;
    wl_pass(&inside, 8);
    wl_limit(&inside, row->payload_length);
    wl_udp_payload(&inside, row);
}

/* Whether an ICMP message carries an identifier and a sequence number. */
WL_INLINE int wl_is_echo(u8 protocol, u8 type)
{
    if (protocol == 58)
        return type == 128 || type == 129;
    return type == 0 || type == 8 || (type >= 13 && type <= 18);
}

WL_INLINE void wl_icmp(const struct wl_cursor *c, struct wl_packet *packet, struct wl_row *row)
{
    if (!wl_has(c, 8)) {
        row->flags |= WL_SHORT;
        return;
    }
    row->message = c->at[0];
    packet->icmp = wl_be16(c->at);
    packet->icmp_rest = wl_be32(c->at + 4);
    if (wl_is_echo(row->protocol, row->message)) {
        row->transaction = packet->icmp_rest >> 16;
        row->seq = packet->icmp_rest & 0xFFFF;
    }
    wl_enter_transport(c, packet, 8, WL_ICMP, row);
}

WL_INLINE void wl_esp(const struct wl_cursor *c, const struct wl_packet *packet, struct wl_row *row)
{
    if (!wl_has(c, 8)) {
        row->flags |= WL_SHORT;
        return;
    }
    row->transaction = wl_be32(c->at);
    row->seq = wl_be32(c->at + 4);
    wl_enter_transport(c, packet, 8, WL_ESP, row);
}

WL_INLINE void wl_ports(const struct wl_cursor *c, struct wl_row *row)
{
    if (!wl_has(c, 4)) {
        row->flags |= WL_SHORT;
        return;
    }
    row->src_port = wl_be16(c->at);
    row->dst_port = wl_be16(c->at + 2);
}

WL_INLINE int wl_is_tunnel(const struct wl_row *row)
{
    if (row->flags & (WL_LATER | WL_SHORT))
        return 0;
    if (row->protocol == 17)
        return row->dst_port == 4789 || row->dst_port == 6081 || wl_either_port(row, 2152);
    return row->protocol == 4 || row->protocol == 41 || row->protocol == 47;
}

WL_INLINE void wl_transport(const struct wl_cursor *c, struct wl_decoding *d)
{
    struct wl_packet *packet = &d->packet;
    struct wl_row *row = &d->row;

    row->payload_length = packet->ip_payload;
    if (row->flags & (WL_LATER | WL_SHORT))
        return;
    if (row->protocol == 6) {
        wl_ports(c, row);
        wl_tcp(c, d);
        return;
    }
    switch (row->protocol) {
    case 17:
        wl_ports(c, row);
        wl_udp(c, packet, row);
        break;
    case 33:
    case 132:
    case 136:
        wl_ports(c, row);
        break;
    case 1:
    case 58:
        wl_icmp(c, packet, row);
        break;
    case 50:
        wl_esp(c, packet, row);
        break;
    }
    if (wl_is_tunnel(row))
        row->flags |= WL_TUNNEL;
}

/* ---- tunnels: from a carrier's IP payload to the ethertype inside; WL_NOT_IP where it is not followed ---- */

WL_INLINE enum wl_reason wl_bridged(struct wl_cursor *c, u16 *type)
{
    return *type == WL_TYPE_BRIDGE ? wl_typed(c, 14, 12, type) : WL_OK;
}

WL_INLINE enum wl_reason wl_gre(struct wl_cursor *c, u16 *type)
{
    u32 bits, skip = 4;

    if (!wl_has(c, 4))
        return WL_CUT;
    bits = wl_be16(c->at);
    *type = wl_be16(c->at + 2);
    if (bits & 0x1000)
        skip += 4;
    if ((bits & 7) == 1 && *type == WL_TYPE_PPP) {
        skip += bits & 0x0080 ? 8 : 4;
        if (!wl_has(c, skip))
            return WL_CUT;
        wl_pass(c, skip);
        return wl_ppp_framed(c, type);
    }
    if ((bits & 7) || bits & 0x4000)
        return WL_NOT_IP;
    if (bits & 0x8000)
        skip += 4;
    if (bits & 0x2000)
        skip += 4;
    if (*type == WL_TYPE_ERSPAN) {
        *type = WL_TYPE_BRIDGE;
        if (bits & 0x1000)
            skip += 8;
    }
    if (!wl_has(c, skip))
        return WL_CUT;
    wl_pass(c, skip);
    return wl_bridged(c, type);
}

WL_INLINE enum wl_reason wl_vxlan(struct wl_cursor *c, u16 *type)
{
    if (!wl_has(c, 8) || !(c->at[0] & 8))
        return WL_NOT_IP;
    wl_pass(c, 8);
    *type = WL_TYPE_BRIDGE;
    return wl_bridged(c, type);
}

WL_INLINE enum wl_reason wl_geneve(struct wl_cursor *c, u16 *type)
{
    u32 header;

    if (!wl_has(c, 8) || c->at[0] >> 6)
        return WL_NOT_IP;
    header = 8 + 4 * (c->at[0] & 63);
    *type = wl_be16(c->at + 2);
    if (!wl_has(c, header))
        return WL_CUT;
    wl_pass(c, header);
    return wl_bridged(c, type);
}

WL_INLINE enum wl_reason wl_gtp(struct wl_cursor *c, u16 *type)
{
    u32 bits, next = 0;

    if (!wl_has(c, 8) || (c->at[0] & 0xF0) != 0x30 || c->at[1] != 255)
        return WL_NOT_IP;
    bits = c->at[0];
    wl_pass(c, 8);
    if (bits & 7) {
        if (!wl_has(c, 4))
            return WL_CUT;
        if (bits & 4)
            next = c->at[3];
        wl_pass(c, 4);
    }
    for (int i = 0; i < 4 && next; i++) {
        u32 length;

        if (!wl_has(c, 4))
            return WL_CUT;
        length = c->at[0] * 4;
        if (length == 0 || !wl_has(c, length))
            return WL_NOT_IP;
        wl_pass(c, length - 1);
        if (!wl_has(c, 1))
            return WL_NOT_IP;
        next = c->at[0];
        wl_pass(c, 1);
    }
    return next ? WL_NOT_IP : wl_nibble(c, type, WL_NOT_IP);
}

WL_INLINE enum wl_reason wl_tunnel(struct wl_cursor *c, const struct wl_row *row, u16 *type)
{
    if (row->protocol == 4 || row->protocol == 41)
        return wl_nibble(c, type, WL_NOT_IP);
    if (row->protocol == 47)
        return wl_gre(c, type);
    if (!wl_has(c, 8))
        return WL_CUT;
    wl_pass(c, 8);
    if (row->dst_port == 4789)
        return wl_vxlan(c, type);
    if (row->dst_port == 6081)
        return wl_geneve(c, type);
    return wl_gtp(c, type);
}

/* ---- hashes of the finished row ---- */

/* Flow key and direction; gives back the word that stands for both in the packet id. */
WL_INLINE u64 wl_flow(u64 seed, struct wl_row *row)
{
    struct wl_endpoint src = {row->src_high, row->src_low, row->src_port};
    struct wl_endpoint dst = {row->dst_high, row->dst_low, row->dst_port};
    u64 from, to;

    if (row->kind == WL_ICMP && wl_is_echo(row->protocol, row->message))
        src.port = dst.port = row->transaction;
    from = wl_endpoint_hash(seed, &src) + row->protocol;
    to = wl_endpoint_hash(seed, &dst);
    row->flow_key = wl_mix(from + to);
    row->flags |= (u16)(wl_endpoint_after(&src, &dst) * WL_REVERSE);
    return from + 2 * to;
}

/* Hash `want` payload bytes, as far as captured; whether all of them were. The cursor stands at the payload. */
WL_INLINE int wl_hash_prefix(struct wl_cursor c, u32 want, u64 *hash)
{
    u64 word = 0;
    u32 bytes = 0;

    for (int i = 0; i < WL_MOST_PREFIX / 8; i++) {
        if (want < 8 || !wl_has(&c, 8))
            break;
        *hash = wl_hash_word(*hash, wl_be64(c.at));
        wl_pass(&c, 8);
        want -= 8;
    }
    for (; bytes < 7; bytes++) {
        if (bytes == want || !wl_has(&c, 1))
            break;
        word = word << 8 | c.at[0];
        wl_pass(&c, 1);
    }
    if (bytes)
        *hash = wl_hash_word(*hash, word << (64 - 8 * bytes));
    return bytes == want;
}

/* The payload's part of the packet id: a hash of its own, so that it need not wait for the headers'. */
WL_INLINE u64 wl_payload_hash(struct wl_cursor c, const struct wl_decode_options *options, struct wl_row *row)
{
    u32 want = options->prefix < row->payload_length ? options->prefix : row->payload_length;
    u32 header = row->kind == WL_OTHER ? 0 : (u16)(row->payload_offset - wl_offset(&c));
    u64 hash = options->seed;

    if (want == 0)
        return hash;
    if (header > 60 || !wl_has(&c, header)) {
        row->flags |= WL_PREFIX_CUT;
        return hash;
    }
    wl_pass(&c, header);
    if (!wl_hash_prefix(c, want, &hash))
        row->flags |= WL_PREFIX_CUT;
    return hash;
}

/* Flow key, direction and packet id. The cursor stands at the IP payload, behind extension headers. */
WL_INLINE void wl_identify(
    const struct wl_cursor *c, const struct wl_packet *packet, const struct wl_decode_options *options, struct wl_row *row)
{
    u32 fields = options->fields;
    u64 flow = wl_flow(options->seed, row), network = row->protocol, sum;

    if (fields == 0 && options->prefix == 0)
        return;
    sum = wl_payload_hash(*c, options, row);
    if (fields & WL_FIELD_FLOW)
        sum += flow;
    if (fields & WL_FIELD_LENGTH)
        network += (u64)packet->ip_length << 32;
    if (fields & WL_FIELD_IP_ID)
        network += ((u64)packet->ip_id << 8) + packet->fragment * WL_GOLDEN;
    sum += network * WL_KEY(1);
    if (fields & WL_FIELD_TRANSPORT && row->kind == WL_TCP) {
        sum += ((u64)row->ack << 32 | row->seq) * WL_KEY(2);
        sum += ((u64)row->tsecr << 32 | row->tsval) * WL_KEY(3);
        sum += ((u32)row->window << 8 | (row->message & 0x3F)) * WL_KEY(4);
    } else if (fields & WL_FIELD_TRANSPORT && row->kind == WL_ICMP) {
        /* Address translation rewrites the identifier as it does a port. */
        sum += (packet->icmp + (fields & WL_FIELD_FLOW ? (u64)packet->icmp_rest << 32 : 0)) * WL_KEY(2);
    }
    row->packet_id = wl_mix(sum);
}

/* ---- the stages ---- */

WL_STAGE int wl_stage_link(WL_CONTEXT *context, struct wl_decoding *d, u32 link)
{
    struct wl_cursor c;
    enum wl_reason reason;
    u16 type = WL_TYPE_NONE;

    if (!d || !wl_resume(&c, context, &d->place))
        return WL_CUT;
    reason = wl_link(&c, link, &type);
    d->type = type;
    wl_suspend(&c, &d->place);
    return reason;
}

WL_STAGE int wl_stage_tags(WL_CONTEXT *context, struct wl_decoding *d)
{
    struct wl_cursor c;
    enum wl_reason reason;
    u16 type;

    if (!d || !wl_resume(&c, context, &d->place))
        return WL_CUT;
    type = (u16)d->type;
    reason = wl_tags(&c, &type, &d->row.flags);
    d->type = type;
    wl_suspend(&c, &d->place);
    return reason;
}

WL_STAGE int wl_stage_ip(WL_CONTEXT *context, struct wl_decoding *d)
{
    struct wl_cursor c;
    enum wl_reason reason;

    if (!d || !wl_resume(&c, context, &d->place))
        return WL_CUT;
    reason = d->type == WL_TYPE_IPV4 ? wl_ipv4(&c, &d->packet, &d->row) : wl_ipv6(&c, &d->packet, &d->row);
    if (!reason)
        wl_extensions(&c, &d->packet, &d->row);
    wl_suspend(&c, &d->place);
    return reason;
}

/* The position stays at the IP payload. */
WL_STAGE int wl_stage_transport(WL_CONTEXT *context, struct wl_decoding *d)
{
    struct wl_cursor c;

    if (!d || !wl_resume(&c, context, &d->place))
        return WL_CUT;
    wl_transport(&c, d);
    return WL_OK;
}

WL_STAGE int wl_stage_option(WL_CONTEXT *context, struct wl_decoding *d)
{
    struct wl_cursor c;
    int more;

    if (!d || !wl_resume(&c, context, &d->options))
        return 0;
    more = wl_tcp_option(&c, &d->row);
    wl_suspend(&c, &d->options);
    return more;
}

WL_STAGE int wl_stage_tunnel(WL_CONTEXT *context, struct wl_decoding *d)
{
    struct wl_cursor c;
    enum wl_reason reason;
    u16 type = WL_TYPE_NONE;

    if (!d || !wl_resume(&c, context, &d->place))
        return WL_CUT;
    reason = wl_tunnel(&c, &d->row, &type);
    d->type = type;
    wl_suspend(&c, &d->place);
    return reason;
}

WL_STAGE int wl_stage_identify(WL_CONTEXT *context, struct wl_decoding *d, const struct wl_decode_options *options)
{
    struct wl_cursor c;

    if (!d || !options || !wl_resume(&c, context, &d->place))
        return WL_CUT;
    wl_identify(&c, &d->packet, options, &d->row);
    return WL_OK;
}

/* From an ethertype to a row without its hashes. */
WL_INLINE int wl_network(WL_CONTEXT *context, struct wl_decoding *d)
{
    int reason = wl_stage_tags(context, d);

    if (!reason)
        reason = wl_stage_ip(context, d);
    if (!reason)
        reason = wl_stage_transport(context, d);
    if (!reason && d->row.kind == WL_TCP)
        for (int i = 0; i < WL_MOST_OPTIONS; i++)
            if (!wl_stage_option(context, d))
                break;
    return reason;
}

/* Go inside the tunnel that the row describes; whether there was an IP packet. If not, nothing has changed. */
WL_INLINE int wl_inside(WL_CONTEXT *context, struct wl_decoding *d)
{
    struct wl_decoding carrier = *d;

    if (!wl_stage_tunnel(context, d)) {
        d->row = (struct wl_row){.flags = (u16)(WL_INNER | (carrier.row.flags & (WL_VLAN | WL_MPLS | WL_PPPOE)))};
        if (!wl_network(context, d))
            return 1;
    }
    *d = carrier;
    return 0;
}

/* Decode one frame into d->row. On any result but WL_OK the row is meaningless. */
WL_INLINE int wl_decode(
    WL_CONTEXT *context, u32 wire_length, u32 link, const struct wl_decode_options *options, struct wl_decoding *d)
{
    int reason;

    *d = (struct wl_decoding){.packet = {.wire_length = wire_length}};
    wl_begin(context, &d->place);
    reason = wl_stage_link(context, d, link);
    if (!reason)
        reason = wl_network(context, d);
    if (reason)
        return reason;
    if (options->tunnels)
        for (int i = 0; i < WL_MOST_TUNNELS; i++)
            if (!(d->row.flags & WL_TUNNEL) || !wl_inside(context, d))
                break;
    return wl_stage_identify(context, d, options);
}

#endif
