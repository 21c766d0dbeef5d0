/* Fast path for the frames that make up nearly all traffic: Ethernet, IPv4 without options or IPv6 without extension headers,
 * unfragmented packets, TCP with no options but timestamps, UDP.
 *
 * Law: for a frame that it accepts, the row is that of wl_decode, bit for bit (tests compare them); any other frame is left to
 * wl_decode. In eBPF unused parts are not even computed, because everything is inlined: wl_decode's stages, which the verifier
 * checks one by one, must write every row to memory. */
#ifndef WIRELAG_FAST_H
#define WIRELAG_FAST_H

#include "headers.h"

#define WL_ETHERNET_HEADER 14

/* Read the IP header and move the cursor behind it; return whether it is a plain one. */
WL_INLINE int wl_fast_ip(struct wl_cursor *c, struct wl_packet *packet, struct wl_row *row)
{
    u32 type = wl_be16(c->at + 12);

    wl_pass(c, WL_ETHERNET_HEADER);
    if (type == WL_TYPE_IPV4) {
        packet->ip_length = wl_be16(c->at + 2);
        if (c->at[0] != 0x45 || packet->ip_length < 20 || wl_be16(c->at + 6) & 0x3FFF)
            return 0;
        row->traffic_class = c->at[1];
        row->ip_id = packet->ip_id = wl_be16(c->at + 4);
        packet->hop_limit = c->at[8];
        row->protocol = c->at[9];
        row->src_low = 0xFFFF00000000ull | wl_be32(c->at + 12);
        row->dst_low = 0xFFFF00000000ull | wl_be32(c->at + 16);
        wl_enter_payload(c, packet, 20);
        return 1;
    }
    if (type != WL_TYPE_IPV6 || !wl_has(c, 40) || c->at[0] >> 4 != 6 || !wl_be16(c->at + 4))
        return 0;
    wl_ipv6(c, packet, row);
    return 1;
}

WL_INLINE int wl_fast_tcp(const struct wl_cursor *c, const struct wl_packet *packet, struct wl_row *row)
{
    u32 header;

    if (!wl_has(c, 20))
        return 0;
    header = (c->at[12] >> 4) * 4;
    if (header == 32 && wl_has(c, 32) && wl_be32(c->at + 20) == 0x0101080A)
        wl_timestamps(c->at + 24, row);
    else if (header != 20)
        return 0;
    row->seq = wl_be32(c->at + 4);
    row->ack = wl_be32(c->at + 8);
    row->message = c->at[13];
    row->transaction = wl_tcp_transaction(packet, row);
    row->window = wl_be16(c->at + 14);
    wl_enter_transport(c, packet, header, WL_TCP, row);
    return 1;
}

/* Flow key, direction and packet id, if the id takes 16 bytes of the payload or there is no payload. The cursor is at the IP
 * payload. */
WL_INLINE int wl_fast_identify(
    struct wl_cursor c, const struct wl_packet *packet, const struct wl_decode_options *options, struct wl_row *row)
{
    u32 want = options->prefix < row->payload_length ? options->prefix : row->payload_length;
    u64 flow = wl_flow(options->seed, row), hash = options->seed;

    if (!options->fields && !options->prefix)
        return 1;
    if (want == 16) {
        wl_pass(&c, (u32)(row->payload_offset - wl_offset(&c)) & 63);
        if (!wl_has(&c, 16))
            return 0;
        hash = wl_hash_word(wl_hash_word(hash, wl_be64(c.at)), wl_be64(c.at + 8));
    } else if (want) {
        return 0;
    }
    wl_add_up(flow, wl_hash_word(hash, 0), options->fields, packet, row);
    return 1;
}

/* Decode one frame; 0 if wl_decode must. */
WL_INLINE int wl_fast(const u8 *frame, const u8 *end, const struct wl_decode_options *options, struct wl_row *row)
{
#ifdef __bpf__
    struct wl_cursor c = {frame, frame, end, ~0u};
#else
    struct wl_cursor c = {frame, frame, end};
#endif
    struct wl_packet packet = {0};

    *row = (struct wl_row){0};
    if (!wl_has(&c, WL_ETHERNET_HEADER + 20) || !wl_fast_ip(&c, &packet, row))
        return 0;
    if ((row->protocol != 6 && row->protocol != 17) || !wl_has(&c, 8))
        return 0;
    row->src_port = wl_be16(c.at);
    row->dst_port = wl_be16(c.at + 2);
    if (row->protocol == 6)
        return wl_fast_tcp(&c, &packet, row) && wl_fast_identify(c, &packet, options, row);
    wl_udp_header(&c, &packet, row);
    if (wl_is_tunnel(row)) {
        if (options->tunnels)
            return 0;
        row->flags |= WL_TUNNEL;
    }
    if (!wl_fast_identify(c, &packet, options, row)) /* the contents of UDP do not change the id */
        return 0;
    wl_udp_inside(c, row);
    return 1;
}

#endif
