/* The sender that puts reference packets between those of a link (docs/reference/injection.md is the law). The simulator and the
 * agent both run this; tests/oracles/injection.py is its twin.
 *
 * Law: a reference is due when `packets since the last one * rate` reaches 1, or when tau_ns have passed since then, and is sent
 * wait_ns after the packet that made it due: directly after it, it would wait for that packet's own transmission. It waits for
 * the next packet while its bytes exceed the link's share for references, counted from the first packet on; one that is due by
 * time is then skipped. The rate falls with the utilisation, on an ellipse. Fractions are in 2^-32. Not for eBPF: 128-bit
 * arithmetic at references. */
#ifndef WIRELAG_INJECTION_H
#define WIRELAG_INJECTION_H

#include "types.h"

#define WL_NEVER 9223372036854775807ll
#define WL_ONE (1ull << 32)
#define WL_SECOND 1000000000ull
#define WL_LONGEST_GAP_NS (1ll << 40) /* longest time between references, for the means */

typedef unsigned __int128 wl_wide;

struct wl_injection {
    u64 rate_least, rate_most, busy_least, busy_most, alpha;
    s64 tau_ns, wait_ns;                 /* tau_ns 0: never by time */
    u64 bytes_per_s, share_per_s, depth; /* depth: the most credit, at most that of 1 s; 0: no bound */
    u32 size;
    /* variable state */
    u32 started;
    u64 rate, packets, bytes;
    s64 last_ns, due_ns; /* due_ns WL_NEVER: none pending */
    u64 mean_bytes, mean_ns;
    u64 credit; /* bytes * 10^9 */
    s64 credit_ns;
};

WL_INLINE u64 wl_share(u64 mean, u64 value, u64 weight)
{
    return (u64)(((wl_wide)mean * (WL_ONE - weight) + (wl_wide)value * weight) >> 32);
}

/* Floor of the square root. */
WL_INLINE u64 wl_root(wl_wide x)
{
    u64 root = 0;

    for (int bit = 32; bit >= 0; bit--) {
        u64 next = root | 1ull << bit;

        if ((wl_wide)next * next <= x)
            root = next;
    }
    return root;
}

/* When the next reference is sent if no packet comes before. */
WL_INLINE s64 wl_injection_due(const struct wl_injection *in)
{
    if (in->due_ns != WL_NEVER)
        return in->due_ns;
    return in->started && in->tau_ns ? in->last_ns + in->tau_ns : WL_NEVER;
}

/* Decide on a reference at time_ns: pay for it and compute the new rate. */
WL_INLINE void wl_injection_decide(struct wl_injection *in, s64 time_ns)
{
    s64 passed_ns = time_ns - in->last_ns;
    u64 busy, place;
    wl_wide capacity;

    if (in->depth)
        in->credit -= in->size * WL_SECOND;
    if (passed_ns > WL_LONGEST_GAP_NS)
        passed_ns = WL_LONGEST_GAP_NS;
    if (in->bytes > (u64)WL_LONGEST_GAP_NS)
        in->bytes = (u64)WL_LONGEST_GAP_NS;
    in->mean_bytes = wl_share(in->mean_bytes, in->bytes << 16, in->alpha);
    in->mean_ns = wl_share(in->mean_ns, (u64)passed_ns << 16, in->alpha);
    in->packets = 0;
    in->bytes = 0;
    in->last_ns = time_ns;
    capacity = (wl_wide)in->mean_ns * in->bytes_per_s;
    busy = in->busy_most;
    if (capacity) {
        wl_wide used = ((wl_wide)in->mean_bytes * WL_SECOND << 32) / capacity;
        busy = used > in->busy_most ? in->busy_most : used < in->busy_least ? in->busy_least : (u64)used;
    }
    place = ((busy - in->busy_least) << 32) / (in->busy_most - in->busy_least);
    in->rate = in->rate_least +
               (u64)((wl_wide)(in->rate_most - in->rate_least) * wl_root(((wl_wide)1 << 64) - (wl_wide)place * place) >> 32);
}

WL_INLINE int wl_injection_affords(struct wl_injection *in, s64 time_ns)
{
    u64 passed_ns = (u64)(time_ns - in->credit_ns);

    if (!in->depth)
        return 1;
    if (passed_ns > WL_SECOND)
        passed_ns = WL_SECOND;
    in->credit += passed_ns * in->share_per_s;
    if (in->credit > in->depth)
        in->credit = in->depth;
    in->credit_ns = time_ns;
    return in->credit >= in->size * WL_SECOND;
}

/* Send the reference that was due; 0: due by time, and skipped. */
WL_INLINE int wl_injection_send(struct wl_injection *in)
{
    s64 time_ns = in->last_ns + in->tau_ns;

    if (in->due_ns != WL_NEVER) {
        in->due_ns = WL_NEVER;
        return 1;
    }
    if (wl_injection_affords(in, time_ns)) {
        wl_injection_decide(in, time_ns);
        return 1;
    }
    in->last_ns = time_ns;
    return 0;
}

/* A regular packet is sent. */
WL_INLINE void wl_injection_packet(struct wl_injection *in, s64 time_ns, u32 size)
{
    if (!in->started) {
        in->started = 1;
        in->last_ns = in->credit_ns = time_ns;
    }
    in->packets++;
    in->bytes += size;
    if (in->due_ns == WL_NEVER && (wl_wide)in->packets * in->rate >= WL_ONE && wl_injection_affords(in, time_ns)) {
        wl_injection_decide(in, time_ns);
        in->due_ns = time_ns + in->wait_ns;
    }
}

#endif
