/* What the balancer measures: Pirate's `auto` or `modes`, one record per confirmed connection (docs/concepts/pirate.md).
 *
 * Law: the packets of a connection give the same epochs as in kernels/module_pirate.cpp, from its SYN on, if that was seen; else
 * from the packet that confirms it. A record of the other method, or of another backend, begins anew. */
#ifndef WIRELAG_BALANCE_MEASURE_H
#define WIRELAG_BALANCE_MEASURE_H

#include "balance_maps.h"
#include "hash.h"

const volatile u32 measures = BY_AUTO; /* enum method */

/* A packet to the service. */
struct arrival {
    struct wl_endpoint client; /* its port, and above it the service's */
    struct wl_client_packet packet;
    u32 tag[2]; /* as they came */
    u8 tags;    /* how many */
    u8 error;   /* ICMP: about a packet of the connection */
    u8 whole;   /* it must not be cut into fragments */
};

/* The packet of each CPU, and the epoch that ends with it: the stack has no room for them. Not pinned. */
struct work {
    struct arrival arrival;
    struct wl_epoch epoch;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct work);
} works SEC(".maps");

/* A connection that is not confirmed, and its packet. What is done for it are functions that the verifier checks once. */
struct newcomer {
    u64 key, word, shown; /* word, shown: what is known of it */
    s64 now_ns, began_ns; /* its packet, and the packet before */
    u32 seen, backend, seq;
    u32 set, slot; /* slot: GROUP if nothing is known of it */
};

/* What a SYN shows: its sequence number, MSS and packet number; hosts with several routers before them are marked in the word. */
WL_INLINE u64 shown_by(const struct wl_client_packet *p)
{
    return (u64)p->seq << 32 | (u32)p->mss << 16 | p->ip_id;
}

/* Begin a record, with the packet before the one that confirms the connection: of TCP only a SYN is known well enough. */
WL_INLINE void begin(struct connection *c, const struct newcomer *n, u8 protocol)
{
    struct wl_client_packet syn = {0};

    __builtin_memset(&c->flow, 0, sizeof c->flow);
    c->method = (u8)measures;
    if (measures == BY_MODES && (protocol != TCP || n->shown)) {
        c->flow.modes.front.start_ns = c->flow.modes.front.last_ns = n->began_ns;
        c->flow.modes.front.requests = protocol != TCP;
        c->flow.modes.front.flags = protocol == TCP    ? WL_FRONT_WAITS | WL_FRONT_OPENING
                                    : n->word & MARKED ? WL_FRONT_ANY | WL_FRONT_NOT_TCP | WL_FRONT_FULL
                                                       : WL_FRONT_ANY | WL_FRONT_NOT_TCP;
    }
    if (measures == BY_AUTO && n->shown) {
        syn.time_ns = n->began_ns;
        syn.seq = (u32)(n->shown >> 32);
        syn.mss = (u16)(n->shown >> 16);
        syn.ip_id = (u16)n->shown;
        syn.has = n->word & FAR ? WL_HAS_TRAVELLED : 0;
        wl_auto_open(&c->flow.by_auto, &syn, 1);
    }
}

/* Requests so far, in an epoch of this many before; `told` if the epoch ended. */
WL_INLINE u32 more_than(u32 before, u32 now, int told, u32 whole)
{
    if (told)
        return whole - before + now;
    return now >= before ? now - before : now;
}

/* Add an epoch to the backend's counters. A latency below half the round trip of the handshake is impossible. */
WL_INLINE void add_epoch(struct tally *t, const struct wl_epoch *epoch)
{
    s64 network_ns = epoch->network_ns > 0 ? epoch->network_ns : 0;

    if (!epoch->count || 2 * epoch->sum_ns < network_ns * (s64)epoch->count) {
        t->abstained++;
        return;
    }
    t->sum_ns += epoch->sum_ns;
    t->count += epoch->count;
}

/* Measure the packet; whoever calls holds the connection. */
WL_ONCE wl_measure(struct connection *c, const struct wl_pirate *pirate, struct tally *t)
{
    u32 requests, repeated, zero = 0;
    struct work *w = bpf_map_lookup_elem(&works, &zero);
    const struct wl_client_packet *p;
    struct wl_epoch *epoch;
    int told;

    if (!c || !pirate || !t || !w)
        return 0;
    p = &w->arrival.packet;
    epoch = &w->epoch;
    if (measures == BY_AUTO) {
        struct wl_auto_flow *flow = &c->flow.by_auto;

        requests = flow->requests;
        repeated = flow->lost;
        told = wl_auto_packet(flow, p, pirate, epoch);
        t->requests += more_than(requests, flow->requests, told, told ? epoch->requests : 0);
        t->repeated += more_than(repeated, flow->lost, told, told ? epoch->lost : 0);
    } else {
        struct wl_modes_flow *flow = &c->flow.modes;

        requests = flow->front.requests;
        repeated = flow->front.lost;
        told = wl_modes_packet(flow, p, pirate, epoch);
        t->requests += more_than(requests, flow->front.requests, told, told ? epoch->requests : 0);
        t->repeated += more_than(repeated, flow->front.lost, told, told ? epoch->lost : 0);
    }
    if (told)
        add_epoch(t, epoch);
    return 0;
}

#endif
