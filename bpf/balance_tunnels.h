/* What leaves the balancer: frames for the MAC address of a backend, or of the router towards it, and tunnels to those that are
 * not on this Ethernet segment (docs/concepts/balancing.md, "Tunnels"; tests/oracles/encapsulation.py its twin).
 *
 * Law: tags stay as they came. Without a tunnel only MAC addresses change. A tunnel is one more header, or two, before the packet,
 * which itself does not change; DSCP, ECN, hop limit and DF are the packet's. What would be longer than the MTU is dropped and
 * counted, and its sender is told what fits. */
#ifndef WIRELAG_BALANCE_TUNNELS_H
#define WIRELAG_BALANCE_TUNNELS_H

#include "balance_connections.h"

enum { IPV4_BYTES = 20, IPV6_BYTES = 40, UDP_BYTES = 8, ICMP_BYTES = 8 };
enum { TTL = 64, QUOTED = 68, QUOTED6 = 1232, EACH_SUM = 512 }; /* QUOTED: the longest header and 8 bytes; 6: up to 1,280 in all */
enum { TOLD_MOST = 64 };                                        /* senders that are told, in each unit of the pace */

/* ---- checksums: sums of 16-bit words in network order ---- */

WL_INLINE u64 sum_of(u64 word)
{
    return (word >> 48) + (word >> 32 & 0xffff) + (word >> 16 & 0xffff) + (word & 0xffff);
}

WL_INLINE u16 folded(u64 sum)
{
    sum = (sum >> 32) + (sum & 0xffffffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    return (u16)sum;
}

WL_INLINE void put16(u8 *at, u32 value)
{
    at[0] = (u8)(value >> 8);
    at[1] = (u8)value;
}

WL_INLINE void put32(u8 *at, u32 value)
{
    value = __builtin_bswap32(value);
    __builtin_memcpy(at, &value, 4);
}

WL_INLINE void put64(u8 *at, u64 value)
{
    put32(at, (u32)(value >> 32));
    put32(at + 4, (u32)value);
}

/* ---- headers ---- */

/* The link's header of a frame that leaves: two addresses, the tags that it came with, what follows. */
WL_INLINE void put_link(u8 *frame, u64 to, const u8 *own, const struct arrival *a, u32 type)
{
    __builtin_memcpy(frame, &to, 6);
    __builtin_memcpy(frame + 6, own, 6);
    if (a->tags == 0) {
        put16(frame + 12, type);
    } else if (a->tags == 1) {
        __builtin_memcpy(frame + 12, &a->tag[0], 4);
        put16(frame + 16, type);
    } else {
        __builtin_memcpy(frame + 12, &a->tag[0], 4);
        __builtin_memcpy(frame + 16, &a->tag[1], 4);
        put16(frame + 20, type);
    }
}

/* `mark`: DSCP and ECN; `rest`: packet number, DF. */
WL_INLINE void put_ipv4(u8 *ip, u8 mark, u32 bytes, u32 rest, u8 ttl, u8 protocol, u32 from, u32 to)
{
    u64 sum = (0x4500u | mark) + (u64)bytes + sum_of(rest) + (u32)(ttl << 8 | protocol) + sum_of(from) + sum_of(to);

    ip[0] = 0x45;
    ip[1] = mark;
    put16(ip + 2, bytes);
    put32(ip + 4, rest);
    ip[8] = ttl;
    ip[9] = protocol;
    put16(ip + 10, (u16)~folded(sum));
    put32(ip + 12, from);
    put32(ip + 16, to);
}

WL_INLINE void put_ipv6(
    u8 *ip, u8 mark, u32 label, u32 bytes, u8 next, u8 hops, u64 from_high, u64 from_low, u64 to_high, u64 to_low)
{
    put32(ip, 6u << 28 | (u32)mark << 20 | label);
    put16(ip + 4, bytes);
    ip[6] = next;
    ip[7] = hops;
    put64(ip + 8, from_high);
    put64(ip + 16, from_low);
    put64(ip + 24, to_high);
    put64(ip + 32, to_low);
}

/* ---- too long ---- */

/* Turn a frame into an answer: `before` bytes in front of its packet, `bytes` in all. Returns 0 if that failed. */
WL_INLINE int answer(struct xdp_md *context, u32 before, u32 bytes, u64 *router)
{
    u8 *frame = (void *)(long)context->data, *end = (void *)(long)context->data_end;
    s64 has = end - frame;

    asm("" : "+r"(has)); /* else clang takes a pointer from a number */
    if (frame + 14 > end)
        return 0;
    __builtin_memcpy(router, frame + 6, 6);
    return !bpf_xdp_adjust_head(context, -(int)before) && !bpf_xdp_adjust_tail(context, (int)bytes - (int)(has + before));
}

/* Tell the sender of an IPv4 packet the longest that fits. The packet is quoted behind the new headers. */
WL_INLINE int tell_ipv4(struct xdp_md *context, const struct balance_settings *s, const struct arrival *a, u32 fits)
{
    u32 link = 14 + 4u * a->tags, before = IPV4_BYTES + ICMP_BYTES;
    u64 router = 0;
    u8 *frame, *end, *ip;
    s64 sum;

    if (!answer(context, before, link + before + QUOTED, &router))
        return XDP_DROP;
    frame = (void *)(long)context->data;
    end = (void *)(long)context->data_end;
    ip = frame + link;
    if (frame + 22 > end || ip + IPV4_BYTES + ICMP_BYTES + QUOTED > end)
        return XDP_DROP;
    put_link(frame, router, s->mac, a, IPV4);
    put_ipv4(ip, 0, before + QUOTED, 0, TTL, ICMP, (u32)s->vip_low, (u32)a->client.low);
    put32(ip + 20, 3u << 24 | 4u << 16);
    put32(ip + 24, fits);
    sum = bpf_csum_diff(0, 0, (void *)(ip + 20), ICMP_BYTES + QUOTED, 0);
    put16(ip + 22, (u16)~__builtin_bswap16(folded((u32)sum)));
    return (int)bpf_redirect(context->ingress_ifindex, 0);
}

WL_INLINE int tell_ipv6(struct xdp_md *context, const struct balance_settings *s, const struct arrival *a, u32 fits)
{
    u32 link = 14 + 4u * a->tags, before = IPV6_BYTES + ICMP_BYTES;
    u64 router = 0, head;
    u8 *frame, *end, *ip, *quoted;
    s64 sum = 0;

    if (!answer(context, before, link + before + QUOTED6, &router))
        return XDP_DROP;
    frame = (void *)(long)context->data;
    end = (void *)(long)context->data_end;
    ip = frame + link;
    quoted = ip + IPV6_BYTES + ICMP_BYTES;
    if (frame + 22 > end || quoted + QUOTED6 > end)
        return XDP_DROP;
    put_link(frame, router, s->mac, a, IPV6);
    put_ipv6(ip, 0, 0, ICMP_BYTES + QUOTED6, ICMP6, TTL, s->vip_high, s->vip_low, a->client.high, a->client.low);
    head = (2u << 8) + sum_of(fits) + ICMP_BYTES + QUOTED6 + ICMP6 + sum_of(s->vip_high) + sum_of(s->vip_low) +
           sum_of(a->client.high) + sum_of(a->client.low);
    sum = bpf_csum_diff(0, 0, (void *)quoted, EACH_SUM, (u32)sum);
    sum = bpf_csum_diff(0, 0, (void *)(quoted + EACH_SUM), EACH_SUM, (u32)sum);
    sum = bpf_csum_diff(0, 0, (void *)(quoted + 2 * EACH_SUM), QUOTED6 - 2 * EACH_SUM, (u32)sum);
    put32(ip + 40, 2u << 24 | (u16)~folded(head + __builtin_bswap16(folded((u32)sum))));
    put32(ip + 44, fits);
    return (int)bpf_redirect(context->ingress_ifindex, 0);
}

/* Drop a packet that does not fit, and tell its sender, at a limited rate. ICMP errors and packets that routers may
 * fragment are dropped without an answer. */
WL_ONCE wl_too_long(struct xdp_md *context, u32 fits)
{
    u32 zero = 0;
    struct balance_settings *s = bpf_map_lookup_elem(&settings, &zero);
    struct work *w = bpf_map_lookup_elem(&works, &zero);

    fault(TOO_LONG);
    if (!context || !s || !w || w->arrival.error || !w->arrival.whole || w->arrival.tags > 2 ||
        !in_pace(TELLING, TOLD_MOST, (u32)(w->arrival.packet.time_ns >> SEEN_SHIFT)))
        return XDP_DROP;
    return s->vip_high || s->vip_low >> 32 != 0xffff ? tell_ipv6(context, s, &w->arrival, fits)
                                                     : tell_ipv4(context, s, &w->arrival, fits);
}

/* ---- tunnels ---- */

/* The sum of a packet, without reading it all: with its pseudo header, what follows the IP header adds up to nothing, and so does
 * an IPv4 header. 0 in `known` if it has no checksum. */
WL_INLINE u64 sum_of_packet(const u8 *ip, const u8 *end, int six, u32 bytes, int *known)
{
    u32 head = (ip[0] & 15) * 4u;
    const u8 *udp = ip + head;
    u64 pseudo;

    asm("" : "+r"(udp)); /* else clang counts from another place, of which the verifier knows no bounds */
    *known = 1;
    if (six) /* its addresses and length are in both */
        return wl_be16(ip) + wl_be16(ip + 2) + wl_be16(ip + 6) + (u16)~ip[6];
    if (ip[9] == ICMP)
        return 0;
    if (ip[9] == UDP && (udp + UDP_BYTES > end || !wl_be16(udp + 6)))
        *known = 0;
    pseudo = sum_of(wl_be32(ip + 12)) + sum_of(wl_be32(ip + 16)) + ip[9] + bytes - head;
    return (u16)~folded(pseudo);
}

/* Send it to a backend through a tunnel: one that this CPU found in `word`. */
WL_ONCE wl_encapsulate(struct xdp_md *context, u64 word, u32 number)
{
    u32 zero = 0, link, head, bytes, from_port, tags, rest = 0, outer_six, inner_six, type;
    struct balance_settings *s = bpf_map_lookup_elem(&settings, &zero);
    struct work *w = bpf_map_lookup_elem(&works, &zero);
    struct backend *b = bpf_map_lookup_elem(&backends, &number);
    u64 hash, sum;
    struct tunnel t;
    u8 *frame, *end, *ip, *outer, *udp, mark, hops, protocol;
    int gue = !!(word & GUE), known;

    if (!context || !s || !w || !b || w->arrival.tags > 2)
        return XDP_DROP;
    t = b->tunnels[word & OTHER_TUNNEL ? 1 : 0];
    outer_six = t.to_high || t.to_low >> 32 != 0xffff;
    bytes = w->arrival.packet.length;
    head = (outer_six ? IPV6_BYTES : IPV4_BYTES) + (gue ? UDP_BYTES : 0);
    if (bytes + head > s->mtu)
        return wl_too_long(context, s->mtu - head);
    if (bpf_xdp_adjust_head(context, -(int)head)) {
        fault(UNSENT);
        return XDP_DROP;
    }
    frame = (void *)(long)context->data;
    end = (void *)(long)context->data_end;
    tags = w->arrival.tags;
    link = tags == 2 ? 22 : tags == 1 ? 18 : 14;
    outer = frame + link;
    ip = outer + head;
    udp = outer + (outer_six ? IPV6_BYTES : IPV4_BYTES);
    if (frame + 22 > end || outer + IPV6_BYTES > end || udp + UDP_BYTES > end || ip + IPV4_BYTES > end)
        return XDP_DROP;
    inner_six = ip[0] >> 4 == 6;
    if (inner_six) {
        mark = (u8)(ip[0] << 4 | ip[1] >> 4);
        hops = ip[7];
        protocol = IPV6_IN;
    } else {
        mark = ip[1];
        hops = ip[8];
        rest = wl_be32(ip + 4) & 0xffff4000u;
        protocol = IPV4_IN;
    }
    hash = wl_mix(wl_endpoint_hash(s->table_seed, &w->arrival.client));
    type = outer_six ? IPV6 : IPV4;
    put_link(frame, word, s->mac, &w->arrival, type);
    if (outer_six)
        put_ipv6(outer, mark, (u32)(hash >> 12) & 0xfffff, bytes + head - IPV6_BYTES, gue ? UDP : protocol, hops, t.from_high,
            t.from_low, t.to_high, t.to_low);
    else
        put_ipv4(outer, mark, bytes + head, rest, hops, gue ? UDP : protocol, (u32)t.from_low, (u32)t.to_low);
    if (gue) {
        from_port = 0xc000u | ((u32)hash & 0x3fff);
        put32(udp, from_port << 16 | s->gue_port);
        put32(udp + 4, (bytes + UDP_BYTES) << 16);
        if (outer_six) {
            sum = sum_of_packet(ip, end, inner_six, bytes, &known);
            sum += sum_of(t.from_high) + sum_of(t.from_low) + sum_of(t.to_high) + sum_of(t.to_low) + UDP + 2 * (bytes + UDP_BYTES);
            sum = (u16)~folded(sum + from_port + s->gue_port);
            put16(udp + 6, known ? (sum ? sum : 0xffff) : 0);
        }
    }
    return (int)bpf_redirect(context->ingress_ifindex, 0);
}

/* Send it to a backend. */
WL_INLINE int forward(struct xdp_md *context, u64 word, u32 number)
{
    u8 *frame = (void *)(long)context->data, *end = (void *)(long)context->data_end;

    if (word & (IPIP | GUE))
        return wl_encapsulate(context, word, number);
    if (frame + 14 > end)
        return XDP_PASS;
    __builtin_memcpy(frame + 6, frame, 6);
    __builtin_memcpy(frame, &word, 6);
    return (int)bpf_redirect(context->ingress_ifindex, 0);
}

#endif
