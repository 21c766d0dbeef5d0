/* Above the IP header: TCP, UDP and what is inside it, ICMP, ESP (docs/reference/columns.md, "Above the IP header"). */
#ifndef WIRELAG_TRANSPORT_H
#define WIRELAG_TRANSPORT_H

#include "decoding.h"

/* Enter the transport header: the rest is the payload. */
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

/* Before the options: a SYN shows how far it may still go. */
WL_INLINE u64 wl_tcp_transaction(const struct wl_packet *packet, const struct wl_row *row)
{
    return row->message & 2 ? (u64)packet->hop_limit << 16 : 0;
}

/* Pass one TCP option; return whether there may be another. */
WL_INLINE int wl_tcp_option(struct wl_cursor *c, struct wl_row *row)
{
    u32 length;

    if (!wl_has(c, 2)) /* a single byte cannot change anything */
        return 0;
    if (c->at[0] == 1) {
        wl_pass(c, 1);
        return 1;
    }
    length = c->at[1];
    if (c->at[0] == 0 || length < 2 || !wl_has(c, length))
        return 0;
    if (c->at[0] == 5) {
        row->flags |= WL_SACK;
        if (!(row->message & 2) && length >= 10 && row->transaction == 0 && wl_has(c, 10))
            row->transaction = wl_be64(c->at + 2);
    }
    if (c->at[0] == 2 && length == 4 && row->message & 2 && !(row->transaction & 0xFFFF) && wl_has(c, 4))
        row->transaction |= wl_be16(c->at + 2);
    if (c->at[0] == 8 && length == 10 && wl_has(c, 10))
        wl_timestamps(c->at + 2, row);
    wl_pass(c, length);
    return 1;
}

/* Read the options: nearly all packets have two bytes of padding and the timestamps, and nothing else. */
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
    row->transaction = wl_tcp_transaction(&d->packet, row);
    row->window = wl_be16(c->at + 14);
    wl_enter_transport(c, &d->packet, header, WL_TCP, row);
    wl_tcp_options(*c, header, d);
    return;
cut_short:
    row->flags |= WL_SHORT;
}

WL_INLINE int wl_quic_version(u32 v)
{
    return v <= 1 || v == 0x6B3343CF || v == 0x709A50C4 || v >> 8 == 0xFF0000 || v >> 8 == 0xFACEB0 || v >> 9 == 0xF0F0F0 >> 1 ||
           v >> 16 == 0x5130 || v >> 16 == 0x5430 || v >> 16 == 0x5043 || v >> 16 == 0xABCD || (v & 0x0F0F0F0F) == 0x0A0A0A0A;
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
    } else if (type == 4 && length >= 32 && (length % 16 == 0 || length >= 1280)) { /* the MTU cuts the padding */
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

/* Classify a UDP payload. The cursor is at the payload. */
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

/* Read a UDP header that was captured. */
WL_INLINE void wl_udp_header(const struct wl_cursor *c, const struct wl_packet *packet, struct wl_row *row)
{
    u32 length = wl_be16(c->at + 4);

    wl_enter_transport(c, packet, 8, WL_UDP, row);
    if (length >= 8 && length - 8 < row->payload_length)
        row->payload_length = length - 8;
}

WL_INLINE void wl_udp_inside(struct wl_cursor c, struct wl_row *row)
{
    wl_pass(&c, 8);
    wl_limit(&c, row->payload_length);
    wl_udp_payload(&c, row);
}

WL_INLINE void wl_udp(const struct wl_cursor *c, const struct wl_packet *packet, struct wl_row *row)
{
    if (!wl_has(c, 8)) {
        row->flags |= WL_SHORT;
        return;
    }
    wl_udp_header(c, packet, row);
    wl_udp_inside(*c, row);
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

#endif
