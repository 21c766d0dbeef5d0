/* A queue that drains at a fixed rate, and the sender that puts reference packets into it (docs/reference/injection.md).
 *
 * Law of the queue: first in, first out. A packet is inside from the arrival of its last byte until the departure of its last
 * byte; both are integer ns, and the remainder of a division is carried over within a busy period. DropTail drops a packet that
 * finds `limit` others; RED (Floyd and Jacobson, 1993) also drops by the mean length, with a coin that is a hash of the packet's
 * number and the seed, so that runs with and without references use the same coins for the same packets.
 *
 * Law of injection: a reference is due when `packets since the last one * rate` reaches 1, or when tau_ns have passed since
 * then, and is sent wait_ns after the packet that made it due: directly after it, it would wait for that packet's own
 * transmission. It waits for the next packet while its bytes exceed the link's share for references, counted from the first
 * packet on; one that is due by time is then skipped. The rate falls with the utilisation, on an ellipse. Fractions are in
 * 2^-32. Not for eBPF: 128-bit arithmetic at references. */
#ifndef WIRELAG_QUEUE_H
#define WIRELAG_QUEUE_H

#include "coin.h"

#define WL_DROPPED (-9223372036854775807ll - 1)
#define WL_NEVER 9223372036854775807ll
#define WL_ONE (1ull << 32)
#define WL_SECOND 1000000000ull
#define WL_LONGEST_GAP_NS (1ll << 40) /* longest time between references, for the means */

typedef unsigned __int128 wl_wide;

struct wl_red {
    u64 from, to;      /* mean length in packets from which some, from which all are dropped; to 0: DropTail */
    u64 weight, steep; /* weight of a packet in the mean length; drop probability at `to` */
    s64 slot_ns;       /* an idle queue's mean length shrinks as if a packet came this often */
};

struct wl_queue {
    u64 bytes_per_s, limit;
    struct wl_red red;
    u64 key;
    s64 *leaving_ns; /* ring of `limit`: departure times of those inside */
    u64 head, length;
    s64 free_ns;
    u64 left_over; /* remainder of the division by bytes_per_s */
    u64 mean;      /* length, 2^-32 packets */
    s64 passed;    /* packets since the last drop, -1 below `from` */
};

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

WL_INLINE u64 wl_power(u64 base, u64 exponent)
{
    u64 result = WL_ONE;

    for (int i = 0; i < 32 && exponent; i++, exponent >>= 1) {
        if (exponent & 1)
            result = result * base >> 32;
        base = base * base >> 32;
    }
    return result;
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

WL_INLINE int wl_red_refuses(struct wl_queue *q, s64 time_ns, u64 number)
{
    struct wl_red *red = &q->red;
    u64 mean, chance;

    if (!q->length && time_ns > q->free_ns) {
        u64 slots = (u64)(time_ns - q->free_ns) / (u64)red->slot_ns;
        q->mean = slots >> 32 ? 0 : (u64)((wl_wide)q->mean * wl_power(WL_ONE - red->weight, slots) >> 32);
    }
    q->mean = wl_share(q->mean, q->length << 32, red->weight);
    mean = q->mean;
    if (mean < red->from << 32) {
        q->passed = -1;
        return 0;
    }
    if (mean >= red->to << 32)
        return 1;
    q->passed++;
    chance = (u64)((wl_wide)(mean - (red->from << 32)) * red->steep / ((red->to - red->from) << 32));
    if ((wl_wide)chance * (u64)q->passed >= WL_ONE)
        return 1;
    return (wl_coin(number, q->key) >> 32) * (WL_ONE - chance * (u64)q->passed) >> 32 < chance;
}

/* A packet arrives: returns when its last byte has left, or WL_DROPPED. Times must not go back. */
WL_INLINE s64 wl_queue_arrive(struct wl_queue *q, s64 time_ns, u32 size, u64 number)
{
    u64 work;
    u64 place;

    while (q->length && q->leaving_ns[q->head] <= time_ns) {
        q->head = q->head + 1 == q->limit ? 0 : q->head + 1;
        q->length--;
    }
    if ((q->red.to && wl_red_refuses(q, time_ns, number)) || q->length == q->limit) {
        q->passed = 0;
        return WL_DROPPED;
    }
    if (time_ns >= q->free_ns) {
        q->free_ns = time_ns;
        q->left_over = 0;
    }
    work = size * WL_SECOND + q->left_over;
    q->free_ns += (s64)(work / q->bytes_per_s);
    q->left_over = work % q->bytes_per_s;
    place = q->head + q->length++;
    q->leaving_ns[place >= q->limit ? place - q->limit : place] = q->free_ns;
    return q->free_ns;
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
