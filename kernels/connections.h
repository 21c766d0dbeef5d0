/* Sums of delays by connection, group and stretch of time (connections.py states the law): rows, and what finds them.
 *
 * Delays come nearly in order of time, and a row is hardly added to once the next stretch has begun. So rows are put one behind
 * the other, and the index, open addressed, knows only those of the last stretch: both stay in the caches. Once a delay of an
 * earlier stretch comes, the index has to know all rows. Not for eBPF: a stretch that gets longer moves every row. */
#ifndef WIRELAG_CONNECTIONS_H
#define WIRELAG_CONNECTIONS_H

#include "hash.h"

#define WL_STRETCHES 512       /* more, if all rows together are few */
#define WL_SHORTEST_STRETCH 10 /* bits: 1 us */

struct wl_connection_row {
    u64 flow_key, tag, stretch;
    u64 sums[4]; /* delays and weight to the server, then to the client */
};

struct wl_connections {
    struct wl_connection_row *rows;
    u64 held, indexed; /* rows; those before this one are not in the index */
    u32 *index;        /* 1 + the number of a row; up to `indexed` it is free */
    u64 mask;
    u64 open;        /* the stretch of the last row, if not all are in the index */
    u32 in_order;    /* whether rows are in order of their stretches */
    u32 bits, level; /* of the length of a stretch; of the flow key, which must be zero */
    u64 first, last; /* stretches seen; none if the first is after the last */
};

WL_INLINE int wl_connection_wanted(const struct wl_connections *all, u64 flow_key)
{
    return !all->level || !(flow_key >> (64 - all->level));
}

WL_INLINE u64 wl_connection_place(const struct wl_connections *all, u64 flow_key, u64 tag, u64 stretch)
{
    return wl_mix(flow_key ^ (tag + stretch * WL_GOLDEN)) & all->mask;
}

/* Where the number of a row is in the index, or would be. */
WL_INLINE u32 *wl_connection_find(const struct wl_connections *all, const struct wl_connection_row *wanted)
{
    u64 at = wl_connection_place(all, wanted->flow_key, wanted->tag, wanted->stretch);

    for (;; at = (at + 1) & all->mask) {
        u32 number = all->index[at];
        const struct wl_connection_row *row;

        if (number <= all->indexed)
            return &all->index[at];
        row = &all->rows[number - 1];
        if (row->flow_key == wanted->flow_key && row->tag == wanted->tag && row->stretch == wanted->stretch)
            return &all->index[at];
    }
}

/* Put a row that is not in it into the index, which has room. */
WL_INLINE void wl_connection_index(struct wl_connections *all, u64 number)
{
    *wl_connection_find(all, &all->rows[number]) = (u32)number + 1;
}

/* Whether a delay of this stretch needs all rows in the index; if not, it may begin the next stretch. */
WL_INLINE int wl_connection_late(struct wl_connections *all, u64 stretch)
{
    if (!all->in_order || stretch == all->open)
        return 0;
    if (stretch < all->open)
        return 1;
    all->open = stretch;
    all->indexed = all->held;
    return 0;
}

/* Add sums to the row of a connection, a group and a stretch, a new one if need be: the index and the rows have room. */
WL_INLINE void wl_connection_add(struct wl_connections *all, const struct wl_connection_row *more)
{
    u32 *found = wl_connection_find(all, more);

    if (*found <= all->indexed) {
        all->rows[all->held] = *more;
        *found = (u32)++all->held;
        return;
    }
    for (u32 i = 0; i < 4; i++)
        all->rows[*found - 1].sums[i] += more->sums[i];
}

#endif
