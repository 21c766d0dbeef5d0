/* Intervals in the kernel: while one is filled, user space reads and empties the previous one (intervals.py is the law).
 *
 * Each CPU turns by itself, at its first packet of a later interval: even intervals on side 0, odd ones on side 1. A time that
 * goes back stays in the open interval, unless the clock itself was set back. A side that is not emptied yet, or was emptied
 * while open, takes nothing: its packets count as missed. */
#ifndef WIRELAG_TURN_H
#define WIRELAG_TURN_H

#include "abi.h"

#define WL_BACK_NS 1000000000 /* a time that goes back by more than this means that the clock was set */

const volatile u64 interval_ns = 1000000000;
u64 closed_ns; /* user space has read all intervals that ended by then */

struct wl_turn {
    u64 start_ns;
    u32 side, refused;
    u64 name[2]; /* the number of the interval on each side, from 1; 0: empty */
    u64 missed;  /* packets whose side was taken or unnamed */
};

static __attribute__((noinline)) void wl_turn_over(struct wl_turn *turn, u64 time_ns)
{
    u64 number, ago = turn->start_ns - time_ns;

    if (time_ns < turn->start_ns && (replayed || ago <= WL_BACK_NS))
        return;
    number = time_ns / interval_ns;
    turn->start_ns = number * interval_ns;
    turn->side = number & 1;
    turn->refused = turn->name[number & 1] && turn->name[number & 1] != number + 1;
    if (!turn->refused)
        turn->name[number & 1] = number + 1;
}

/* The side that a packet belongs to; returns whether it may be used. */
WL_INLINE int wl_turn_at(struct wl_turn *turn, s64 now_ns, u32 *side)
{
    u64 closed = *(volatile u64 *)&closed_ns, time_ns = (u64)now_ns < closed ? closed : (u64)now_ns;

    if (time_ns - turn->start_ns >= interval_ns)
        wl_turn_over(turn, time_ns);
    *side = turn->side & 1;
    if (!turn->refused && turn->name[*side])
        return 1;
    turn->missed++;
    return 0;
}

#endif
