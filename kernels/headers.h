/* One frame into one row (docs/reference/columns.md is the law; tests/oracles/headers.py its independent twin).
 *
 * Safety: every read goes through wl_has(), which compares with the end of the captured bytes, and every loop has a constant
 * bound. So the kernel's verifier accepts it, which proves that it cannot read out of bounds. Integer only; no state between
 * frames. */
#ifndef WIRELAG_HEADERS_H
#define WIRELAG_HEADERS_H

#include "decoding.h"
#include "ip.h"
#include "link.h"
#include "transport.h"
#include "tunnels.h"

/* ---- hashes of the finished row ---- */

/* Flow key and direction; returns the word that stands for both in the packet id. */
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

/* Hash `want` payload bytes, as far as captured; return whether all were. The cursor is at the payload. */
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

/* The payload's part of the packet id: a separate hash, so that it need not wait for the headers'. */
WL_INLINE u64 wl_payload_hash(struct wl_cursor c, const struct wl_decode_options *options, struct wl_row *row)
{
    u32 want = options->prefix < row->payload_length ? options->prefix : row->payload_length;
    u32 header = row->kind == WL_OTHER ? 0 : (u16)(row->payload_offset - wl_offset(&c));
    u64 hash = options->seed;

    if (want && header <= 60 && wl_has(&c, header)) {
        wl_pass(&c, header);
        if (!wl_hash_prefix(c, want, &hash))
            row->flags |= WL_PREFIX_CUT;
    } else if (want) {
        row->flags |= WL_PREFIX_CUT;
    }
    return wl_hash_word(hash, 0); /* it is added to other terms, so one more step, as for endpoints */
}

/* The packet id, from the result of wl_flow and the payload's part. */
WL_INLINE void wl_add_up(u64 flow, u64 payload, u32 fields, const struct wl_packet *packet, struct wl_row *row)
{
    u64 network = row->protocol, sum = payload;

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
        /* Address translation rewrites the identifier like a port. */
        sum += (packet->icmp + (fields & WL_FIELD_FLOW ? (u64)packet->icmp_rest << 32 : 0)) * WL_KEY(2);
    }
    row->packet_id = wl_mix(sum);
}

/* Flow key, direction and packet id. The cursor is at the IP payload, after extension headers. */
WL_INLINE void wl_identify(
    const struct wl_cursor *c, const struct wl_packet *packet, const struct wl_decode_options *options, struct wl_row *row)
{
    u64 flow = wl_flow(options->seed, row);

    if (options->fields || options->prefix)
        wl_add_up(flow, wl_payload_hash(*c, options, row), options->fields, packet, row);
}

/* ---- the stages ---- */

WL_STAGE int wl_stage_link(WL_CONTEXT *context, struct wl_decoding *d, u32 link)
{
    struct wl_cursor c;
    int reason;
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
    int reason;
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
    int reason;
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

/* From metadata or a pseudowire to an IP header; neither is followed twice. */
WL_RARE_STAGE int wl_stage_rare(WL_CONTEXT *context, struct wl_decoding *d)
{
    struct wl_cursor c;
    int reason;
    u16 type = WL_TYPE_NONE;

    if (!d || !wl_resume(&c, context, &d->place))
        return WL_CUT;
    reason = d->type == WL_TYPE_METADATA ? wl_metadata(&c, &type) : wl_pseudowire(&c, &type);
    d->type = type;
    wl_suspend(&c, &d->place);
    if (!reason)
        reason = wl_stage_tags(context, d);
    return reason == WL_PSEUDOWIRE ? WL_NOT_IP : reason;
}

/* From an ethertype to a row without its hashes. */
WL_INLINE int wl_network(WL_CONTEXT *context, struct wl_decoding *d)
{
    int reason = wl_stage_tags(context, d);

    if (reason == WL_PSEUDOWIRE || (reason == WL_NOT_IP && d->type == WL_TYPE_METADATA))
        reason = wl_stage_rare(context, d);
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

/* Enter the tunnel that the row describes; return whether it contains an IP packet. If not, nothing has changed. */
WL_STAGE int wl_stage_inside(WL_CONTEXT *context, struct wl_decoding *d)
{
    struct wl_decoding carrier;

    if (!d)
        return 0;
    carrier = *d;
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
            if (!(d->row.flags & WL_TUNNEL) || !wl_stage_inside(context, d))
                break;
    return wl_stage_identify(context, d, options);
}

#endif
