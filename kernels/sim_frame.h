/* The bytes of a simulated packet (docs/reference/simulate.md, "Bytes"): Ethernet, IPv4 or IPv6, TCP with Linux's options, or
 * UDP with DNS.
 *
 * Law: a frame follows from its packet, its connection and the seed alone. Its headers and the first 64 payload bytes are
 * written; all further payload is 0. Checksums cover the whole packet, however little of it is captured. Not for eBPF: nothing
 * is simulated there. */
#ifndef WIRELAG_SIM_FRAME_H
#define WIRELAG_SIM_FRAME_H

#include <string.h>

#include "types.h"

#define WL_SIM_PAYLOAD 64
#define WL_SIM_FRAME 192 /* room for the longest headers (120), and the payload */

enum { WL_SIM_SYN, WL_SIM_SYN_ACK, WL_SIM_QUERY = 5, WL_SIM_ANSWER = 6 };

struct wl_sim_packet {
    u32 connection, seq, ack, sack_start, sack_end, ticks, echo;
    u16 length, ip_id;
    u8 sender, kind, flags, crossed; /* sender: 0 client, 1 server; crossed: has passed the other point */
};

struct wl_sim_ends {
    u32 host[2]; /* client, server: counted from 0 */
    u16 port[2];
    u8 ipv6, timestamps;
};

/* One round of splitmix64. Several words are mixed one after the other, from 0. */
WL_INLINE u64 wl_sim_mix(u64 mixed, u64 word)
{
    mixed = (mixed ^ word) + 0x9E3779B97F4A7C15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    return mixed ^ (mixed >> 31);
}

WL_INLINE u8 *wl_put16(u8 *at, u32 value)
{
    u16 word = __builtin_bswap16((u16)value);

    memcpy(at, &word, 2);
    return at + 2;
}

WL_INLINE u8 *wl_put32(u8 *at, u32 value)
{
    value = __builtin_bswap32(value);
    memcpy(at, &value, 4);
    return at + 4;
}

WL_INLINE u8 *wl_put64(u8 *at, u64 value)
{
    value = __builtin_bswap64(value);
    memcpy(at, &value, 8);
    return at + 8;
}

WL_INLINE int wl_sim_is_dns(const struct wl_sim_packet *p)
{
    return p->kind == WL_SIM_QUERY || p->kind == WL_SIM_ANSWER;
}

WL_INLINE int wl_sim_is_syn(const struct wl_sim_packet *p)
{
    return p->kind == WL_SIM_SYN || p->kind == WL_SIM_SYN_ACK;
}

/* Bytes of the TCP or UDP header, with its options or the DNS message. */
WL_INLINE u32 wl_sim_transport_bytes(const struct wl_sim_packet *p, const struct wl_sim_ends *ends)
{
    if (wl_sim_is_dns(p))
        return p->kind == WL_SIM_ANSWER ? 66 : 50;
    if (wl_sim_is_syn(p))
        return ends->timestamps ? 40 : 32;
    return 20 + (ends->timestamps ? 12 : 0) + (p->sack_end ? 12 : 0);
}

WL_INLINE u32 wl_sim_header_bytes(const struct wl_sim_packet *p, const struct wl_sim_ends *ends)
{
    return 14 + (ends->ipv6 ? 40 : 20) + wl_sim_transport_bytes(p, ends);
}

/* The sum of 16-bit words in the machine's order, folded and inverted: its bytes are right in any order. `size` may be rounded
 * up to four, since zeros follow. */
WL_INLINE u16 wl_sim_checksum(const u8 *at, u32 size, u64 sum)
{
    for (u32 i = 0; i < size; i += 4) {
        u32 word;

        memcpy(&word, at + i, 4);
        sum += word;
    }
    sum = (sum & 0xFFFFFFFF) + (sum >> 32);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return (u16)~sum;
}

/* 10.0.0.1 and up; the three documentation networks in turn, then 198.18.0.0/15. */
WL_INLINE u32 wl_sim_ipv4(u32 side, u32 host)
{
    static const u32 nets[] = {0xC0000200, 0xC6336400, 0xCB007100};

    if (!side)
        return 0x0A000001 + host;
    return host < 3 * 254 ? nets[host % 3] + 1 + host / 3 : 0xC6120000 + host;
}

WL_INLINE u8 *wl_sim_ip(u8 *at, const struct wl_sim_packet *p, const struct wl_sim_ends *ends, u32 length, u32 protocol)
{
    u32 from = p->sender, to = 1 - from, hops = p->crossed ? 57 : 60;
    u8 *begin = at;
    u16 sum;

    if (ends->ipv6) {
        at = wl_put32(at, 0x60000000);
        at = wl_put16(at, length);
        *at++ = (u8)protocol;
        *at++ = (u8)hops;
        at = wl_put64(at, 0x20010DB800010000ull + (from << 16));
        at = wl_put64(at, ends->host[from] + 1ull);
        at = wl_put64(at, 0x20010DB800010000ull + (to << 16));
        return wl_put64(at, ends->host[to] + 1ull);
    }
    at = wl_put16(at, 0x4500);
    at = wl_put16(at, length + 20);
    at = wl_put16(at, p->ip_id);
    at = wl_put16(at, 0x4000); /* don't fragment */
    *at++ = (u8)hops;
    *at++ = (u8)protocol;
    at = wl_put16(at, 0);
    at = wl_put32(at, wl_sim_ipv4(from, ends->host[from]));
    at = wl_put32(at, wl_sim_ipv4(to, ends->host[to]));
    sum = wl_sim_checksum(begin, 20, 0);
    memcpy(begin + 10, &sum, 2);
    return at;
}

WL_INLINE u8 *wl_sim_dns(u8 *at, const struct wl_sim_packet *p, u64 mixed, u32 length)
{
    int answer = p->kind == WL_SIM_ANSWER;

    at = wl_put32(at, length << 16); /* its checksum is set later */
    at = wl_put16(at, (u32)mixed);
    at = wl_put16(at, answer ? 0x8180 : 0x0100);
    at = wl_put16(at, 1);
    at = wl_put16(at, answer ? 1 : 0);
    at = wl_put32(at, 0);
    *at++ = 12;
    for (u32 i = 0; i < 12; i++)
        *at++ = (u8)('a' + (mixed >> 4 * i & 15));
    memcpy(at, "\7example\3com", 13);
    at = wl_put32(at + 13, 0x00010001); /* A, IN */
    if (!answer)
        return at;
    at = wl_put16(at, 0xC00C);
    at = wl_put32(at, 0x00010001);
    at = wl_put32(at, 300);
    at = wl_put16(at, 4);
    return wl_put32(at, 0xC0000200 + (mixed & 0xFF));
}

WL_INLINE u8 *wl_sim_tcp(
    u8 *at, const struct wl_sim_packet *p, const struct wl_sim_ends *ends, u64 mixed, u64 seed, u32 header_bytes)
{
    u32 own = (u32)wl_sim_mix(wl_sim_mix(mixed, p->sender), seed), other = (u32)wl_sim_mix(wl_sim_mix(mixed, 1 - p->sender), seed);
    int syn = wl_sim_is_syn(p);

    at = wl_put32(at, own + p->seq);
    at = wl_put32(at, p->kind == WL_SIM_SYN ? 0 : other + p->ack);
    *at++ = (u8)(header_bytes / 4 << 4);
    *at++ = p->flags;
    at = wl_put16(at, syn ? 64240 : 501);
    at = wl_put32(at, 0); /* the checksum is set later */
    if (syn) {
        at = wl_put16(at, 0x0204);
        at = wl_put16(at, ends->ipv6 ? 1440 : 1460);
        if (!ends->timestamps)
            at = wl_put16(at, 0x0101);
        at = wl_put16(at, 0x0402);
    } else if (ends->timestamps)
        at = wl_put16(at, 0x0101);
    if (ends->timestamps) {
        at = wl_put16(at, 0x080A);
        at = wl_put32(at, p->ticks);
        at = wl_put32(at, p->echo);
    }
    if (syn)
        return wl_put32(at, 0x01030307);
    if (p->sack_end) {
        at = wl_put32(at, 0x0101050A);
        at = wl_put32(at, other + p->sack_start);
        at = wl_put32(at, other + p->sack_end);
    }
    return at;
}

/* Write headers and payload into WL_SIM_FRAME bytes; what follows the first 64 payload bytes is 0. Returns the headers' bytes. */
WL_INLINE u32 wl_sim_frame(u8 *frame, const struct wl_sim_packet *p, const struct wl_sim_ends *ends, u64 seed)
{
    u32 dns = wl_sim_is_dns(p), protocol = dns ? 17 : 6, header_bytes = wl_sim_transport_bytes(p, ends);
    u32 length = header_bytes + p->length, from = p->sender, begin = ends->ipv6 ? 22 : 26;
    u64 mixed = wl_sim_mix(0, p->connection);
    u8 *at = frame, *transport;
    u16 sum;

    memset(frame, 0, WL_SIM_FRAME);
    at = wl_put32(at, 0x02000000); /* the other side's address, then the own */
    at = wl_put16(at, 2 - from);
    at = wl_put32(at, 0x02000000);
    at = wl_put16(at, 1 + from);
    at = wl_put16(at, ends->ipv6 ? 0x86DD : 0x0800);
    transport = at = wl_sim_ip(at, p, ends, length, protocol);
    at = wl_put16(at, ends->port[from]);
    at = wl_put16(at, ends->port[1 - from]);
    if (dns)
        at = wl_sim_dns(at, p, mixed, length);
    else {
        at = wl_sim_tcp(at, p, ends, mixed, seed, header_bytes);
        if (p->length) {
            u64 words[WL_SIM_PAYLOAD / 8], of_segment = wl_sim_mix(0, wl_sim_mix(wl_sim_mix(mixed, from), p->seq));

            for (u32 i = 0; i < WL_SIM_PAYLOAD / 8; i++)
                words[i] = wl_sim_mix(of_segment, i);
            memcpy(at, words, p->length < WL_SIM_PAYLOAD ? p->length : WL_SIM_PAYLOAD);
        }
    }
    /* The pseudo header: the addresses, which are right before the transport header, the length and the protocol. */
    sum = wl_sim_checksum(
        frame + begin, (u32)(at - frame) + WL_SIM_PAYLOAD - begin, (u64)__builtin_bswap16((u16)length) + (protocol << 8));
    if (dns && !sum)
        sum = 0xFFFF;
    memcpy(transport + (dns ? 6 : 16), &sum, 2);
    return (u32)(at - frame);
}

#endif
