/* IPv4, IPv6 and extension headers. */
#ifndef WIRELAG_IP_H
#define WIRELAG_IP_H

#include "decoding.h"

/* The IP length if the header gives none: up to the end of the frame on the wire. */
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
    packet->hop_limit = c->at[8];
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
    packet->hop_limit = c->at[7];
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

/* Bits 0 and 60, the headers of options; of extensions no other has these as its lower six bits. Without a branch: each
 * doubles what the verifier walks through. */
#define WL_OPTION_HEADERS 0x1000000000000001ull

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
        row->flags |= (u16)((WL_OPTION_HEADERS >> (row->protocol & 63) & 1) * WL_OPTIONS);
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

#endif
