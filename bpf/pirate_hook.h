/* Client packets into epochs, in the kernel (docs/concepts/pirate.md, "In the kernel"). A program defines WL_FLOW, WL_PACKET and
 * WL_FINISH of its method, and WL_STEP, which decides whether WL_PACKET is inlined; then it includes this.
 *
 * Law: the same packets give the same epochs as in kernels/module_pirate.cpp: the table, its groups and its evictions are the
 * same. A packet is never dropped, changed or delayed: if another processor holds a group, the packet is skipped and counted. So
 * is every other failure. */
#ifndef WIRELAG_PIRATE_HOOK_H
#define WIRELAG_PIRATE_HOOK_H

#include "coin.h"
#include "fast.h"
#include "ports.h"

#define WL_SLOTS 8   /* slots per group: its keys are one cache line, its times another */
#define WL_TRIES 64  /* for a group that another processor holds: some microseconds */
#define WL_SERVERS 8 /* servers that can be distinguished */

/* Which packets count: all; those to the side with the likelier server port; those to one of the servers. */
enum wl_clients { WL_ALL, WL_BY_PORTS, WL_TO_SERVERS };

struct wl_server {
    u64 high, low, high_mask, low_mask;
    u32 port, spare; /* port 0: any */
};

struct wl_group {
    u64 keys[WL_SLOTS];
    u64 times[WL_SLOTS]; /* times of the last packets, in ns, doubled; the lowest bit of the first: a processor holds the group */
    WL_FLOW flows[WL_SLOTS];
};

/* Endpoints: addresses; ports, whether it is a tunnel, protocol. */
struct wl_name {
    u64 words[5];
};

struct wl_names {
    struct wl_name of[WL_SLOTS];
};

/* An epoch that ended with a packet at at_ns. */
struct wl_told {
    s64 at_ns;
    struct wl_epoch epoch;
    struct wl_name name;
};

/* Per processor: its counters, and its current packet. No cache line is shared. */
struct wl_work {
    u64 packets, bad_time, opened, evicted;
    u64 other; /* neither TCP nor, if wanted, a flow without it */
    u64 from_servers;
    u64 busy;   /* packets skipped */
    u64 untold; /* epochs that did not fit into the ring */
    u64 failed; /* look-ups */
    u64 not_handed_on;
    u64 undecoded[WL_REASONS];
    struct wl_decode_options options;
    struct wl_decoding decoding;
    struct wl_client_packet packet;
    u32 slot, spare;
    struct wl_told told;
} __attribute__((aligned(64)));

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_group);
} groups SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_names);
} names SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_work);
} work SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 22);
} epochs SEC(".maps");

/* Another program, which gets the packet afterwards. */
struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, 4);
} then SEC(".maps");

const volatile u64 coin_key, address_key;
const volatile u32 group_count = 1, clients, server_count, without_tcp, tunnels, goes_on;
const volatile struct wl_server servers[WL_SERVERS];
struct wl_pirate settings = {500000000, 1000000, 4, 0};

WL_INLINE int wl_from_client(const struct wl_row *row)
{
    if (clients == WL_ALL)
        return 1;
    if (clients == WL_BY_PORTS)
        return wl_port_rank(row->dst_port) <= wl_port_rank(row->src_port);
    WL_LOOP for (u32 i = 0; i < WL_SERVERS; i++)
    {
        if (i >= server_count)
            break;
        if (!((row->dst_high ^ servers[i].high) & servers[i].high_mask) &&
            !((row->dst_low ^ servers[i].low) & servers[i].low_mask) && (!servers[i].port || servers[i].port == row->dst_port))
            return 1;
    }
    return 0;
}

WL_INLINE int wl_is_wanted(const struct wl_row *row)
{
    u8 k = row->kind;

    if (row->flags & (WL_LATER | WL_SHORT))
        return 0;
    return k == WL_TCP || (without_tcp && (k == WL_UDP || k == WL_QUIC || k == WL_ESP || k == WL_WIREGUARD || k == WL_OTHER));
}

/* Flow keys distinguish directions and, within a pair of addresses, flows by SPI or receiver index, if there is one. */
WL_INLINE u64 wl_client_key(const struct wl_row *row)
{
    u64 key = row->flow_key ^ !!(row->flags & WL_REVERSE);
    u64 inner = row->kind == WL_ESP ? row->transaction : row->kind == WL_WIREGUARD ? (u32)row->transaction : 0;

    if (inner)
        key = wl_coin(key + inner * WL_GOLDEN, address_key);
    return key ? key : 1;
}

/* Copy a row into w->packet, if it is a client's. */
WL_INLINE int wl_take_row(struct wl_work *w, const struct wl_row *row, u32 length)
{
    u32 tcp = row->kind == WL_TCP, numbered = !(row->flags & (WL_IPV6 | WL_FRAGMENT)) && row->ip_id, shown;

    if (!wl_is_wanted(row)) {
        w->other++;
        return 0;
    }
    if (!wl_from_client(row)) {
        w->from_servers++;
        return 0;
    }
    w->packet.key = wl_client_key(row);
    w->packet.seq = row->seq;
    w->packet.ack = row->ack;
    w->packet.tsval = row->tsval;
    w->packet.tsecr = row->tsecr;
    w->packet.length = length;
    w->packet.payload = row->payload_length;
    w->packet.ip_id = row->ip_id;
    shown = tcp && row->message & WL_CLIENT_SYN ? (u32)row->transaction : 0; /* MSS, hop limit */
    w->packet.mss = (u16)shown;
    w->packet.tcp_flags = row->message;
    w->packet.has = (u8)(tcp * WL_HAS_TCP | !!(row->flags & WL_TIMESTAMPS) * WL_HAS_TIMESTAMPS | numbered * WL_HAS_IP_ID |
                         wl_has_travelled(shown >> 16 & 255) * WL_HAS_TRAVELLED);
    return 1;
}

/* All 64 bits are used: else the compiler keeps halves of pointers, which the verifier does not allow. */
WL_INLINE u32 wl_length(const struct xdp_md *context)
{
    u64 length = (u64)((const u8 *)(long)context->data_end - (const u8 *)(long)context->data);

    __asm__ volatile("" : "+r"(length));
    return (u32)length;
}

/* Any frame, into w->decoding. */
__attribute__((noinline)) int wl_decode_any(struct xdp_md *context, struct wl_work *w)
{
    if (!w)
        return WL_CUT;
    w->options = (struct wl_decode_options){0, 0, 0, tunnels};
    return wl_decode(context, wl_length(context), WL_LINK_ETHERNET, &w->options, &w->decoding);
}

/* A frame that the fast decoder does not handle. */
WL_INLINE int wl_take_any(struct xdp_md *context, struct wl_work *w)
{
    u32 reason = wl_decode_any(context, w);

    if (!reason)
        return wl_take_row(w, &w->decoding.row, wl_length(context));
    if (reason < WL_REASONS)
        w->undecoded[reason]++;
    return 0;
}

WL_INLINE void wl_give(struct wl_work *w, const struct wl_name *name, u64 key)
{
    w->told.at_ns = w->packet.time_ns;
    w->told.epoch.key = key;
    w->told.name = *name;
    if (bpf_ringbuf_output(&epochs, &w->told, sizeof(w->told), 0))
        w->untold++;
}

/* Report an epoch that ended with the packet. */
__attribute__((noinline)) int wl_tell_epoch(struct wl_work *w, u32 group, u32 slot)
{
    struct wl_names *n = bpf_map_lookup_elem(&names, &group);

    if (!w)
        return 0;
    if (n && slot < WL_SLOTS)
        wl_give(w, &n->of[slot], w->packet.key);
    else
        w->failed++;
    return 0;
}

WL_INLINE s64 wl_slot_ns(const struct wl_group *g, u32 slot)
{
    return (s64)(g->times[slot] >> 1);
}

/* A slot for a new flow: an empty one, or that of the flow that was silent longest. */
__attribute__((noinline)) u32 wl_open(struct wl_work *w, struct wl_group *g, u32 group)
{
    struct wl_names *n = bpf_map_lookup_elem(&names, &group);
    const struct wl_row *row;
    u32 slot = 0;
    s64 oldest_ns;

    if (!w || !g)
        return WL_SLOTS;
    if (!n) {
        w->failed++;
        return WL_SLOTS;
    }
    oldest_ns = wl_slot_ns(g, 0);
    WL_LOOP for (u32 i = 0; i < WL_SLOTS; i++)
    {
        if (g->keys[i] && wl_slot_ns(g, i) >= oldest_ns)
            continue;
        slot = i;
        oldest_ns = wl_slot_ns(g, i);
        if (!g->keys[i])
            break;
    }
    if (g->keys[slot]) {
        if (WL_FINISH(&g->flows[slot], &settings, wl_slot_ns(g, slot), &w->told.epoch))
            wl_give(w, &n->of[slot], g->keys[slot]);
        w->evicted++;
    }
    w->opened++;
    g->keys[slot] = w->packet.key;
    __builtin_memset(&g->flows[slot], 0, sizeof(g->flows[slot]));
    row = &w->decoding.row;
    n->of[slot].words[0] = row->src_high;
    n->of[slot].words[1] = row->src_low;
    n->of[slot].words[2] = row->dst_high;
    n->of[slot].words[3] = row->dst_low;
    n->of[slot].words[4] = (u64)row->src_port << 32 | (u64)row->dst_port << 16 |
                           (u64)(row->kind == WL_ESP || row->kind == WL_WIREGUARD) << 8 | row->protocol;
    return slot;
}

/* Process the packet; return whether an epoch ended. */
WL_STEP int wl_step(WL_FLOW *flow, struct wl_work *w)
{
    return flow && w ? WL_PACKET(flow, &w->packet, &settings, &w->told.epoch) : 0;
}

/* Try to lock the group; return whether this processor now holds it. */
WL_INLINE int wl_enter_group(struct wl_group *g)
{
    WL_LOOP for (u32 i = 0; i < WL_TRIES; i++)
    {
        u64 seen = *(volatile u64 *)&g->times[0];

        if (!(seen & 1) && __sync_val_compare_and_swap(&g->times[0], seen, seen | 1) == seen)
            return 1;
    }
    return 0;
}

WL_INLINE void wl_leave_group(struct wl_group *g)
{
    WL_PUBLISH(&g->times[0], g->times[0] & ~1ull);
}

/* Follow the packet's flow, in a group that this processor holds. */
WL_INLINE void wl_follow(struct xdp_md *context, struct wl_work *w, struct wl_group *g, u32 group)
{
    u64 key = w->packet.key;
    u32 slot = WL_SLOTS;

    for (u32 i = 0; i < WL_SLOTS; i++)
        slot = g->keys[i] == key ? i : slot;
    if (slot >= WL_SLOTS) {
        wl_decode_any(context, w); /* for its name */
        slot = wl_open(w, g, group);
    }
    *(volatile u32 *)&w->slot = slot; /* else the verifier would continue from here once per slot */
    slot = *(volatile u32 *)&w->slot;
    if (slot >= WL_SLOTS)
        return;
    g->times[slot] = (u64)w->packet.time_ns << 1 | !slot;
    if (wl_step(&g->flows[slot], w))
        wl_tell_epoch(w, group, slot);
}

WL_INLINE void wl_meter(struct xdp_md *context)
{
    const u8 *frame = (const u8 *)(long)context->data, *end = (const u8 *)(long)context->data_end;
    struct wl_decode_options options = {0, 0, 0, tunnels};
    struct wl_row row;
    struct wl_group *g;
    struct wl_work *w;
    u32 processor = bpf_get_smp_processor_id(), group;

    w = bpf_map_lookup_elem(&work, &processor);
    if (!w)
        return;
    if (wl_fast(frame, end, &options, &row)) {
        if (!wl_take_row(w, &row, wl_length(context)))
            return;
    } else if (!wl_take_any(context, w)) {
        return;
    }
    w->packets++;
    w->packet.time_ns = wl_now_ns();
    if (w->packet.time_ns < 0 || w->packet.time_ns >> 62) {
        w->bad_time++;
        return;
    }
    group = (u32)wl_scaled(wl_coin(w->packet.key, coin_key), group_count);
    g = bpf_map_lookup_elem(&groups, &group);
    if (!g) {
        w->failed++;
        return;
    }
    if (!wl_enter_group(g)) {
        w->busy++;
        return;
    }
    wl_follow(context, w, g, group);
    wl_leave_group(g);
}

SEC("xdp")
int wl_pirate(struct xdp_md *context)
{
    wl_meter(context);
    if (goes_on) {
        u32 processor = bpf_get_smp_processor_id();
        struct wl_work *w = bpf_map_lookup_elem(&work, &processor);

        bpf_tail_call(context, &then, 0);
        if (w)
            w->not_handed_on++;
    }
    return XDP_PASS;
}

char wl_license[] SEC("license") = "Dual BSD/GPL";

#endif
