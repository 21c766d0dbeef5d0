/* A queue that drains at a fixed rate.
 *
 * Law of the queue: first in, first out. A packet is inside from the arrival of its last byte until the departure of its last
 * byte; both are integer ns, and the remainder of a division is carried over within a busy period. DropTail drops a packet that
 * finds `limit` others; RED (Floyd and Jacobson, 1993) also drops by the mean length, with a coin that is a hash of the packet's
 * number and the seed, so that runs with and without references use the same coins for the same packets. */
#ifndef WIRELAG_QUEUE_H
#define WIRELAG_QUEUE_H

#include "coin.h"
#include "injection.h"

#define WL_DROPPED (-9223372036854775807ll - 1)

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

#endif
