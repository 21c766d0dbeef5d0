/* Sums of delays by connection, group and stretch of time, in a table that is open addressed (connections.py states the law).
 * Not for eBPF: a stretch that gets longer moves every row. */
#ifndef WIRELAG_CONNECTIONS_H
#define WIRELAG_CONNECTIONS_H

#include "hash.h"

#define WL_STRETCHES 512       /* more, if all rows together are few */
#define WL_SHORTEST_STRETCH 10 /* bits: 1 us */

struct wl_connection_row {
    u64 flow_key, tag, stretch;
    u64 sums[4]; /* delays and weight to the server, then to the client; a row without weight is free */
    u64 unused;  /* a row is a line of the cache */
};

struct wl_connections {
    struct wl_connection_row *rows;
    u64 mask, held;
    u64 first, last; /* stretches seen; none if the first is after the last */
    u32 bits, level; /* of the length of a stretch; of the flow key, which must be zero */
};

WL_INLINE int wl_connection_free(const struct wl_connection_row *row)
{
    return !(row->sums[1] | row->sums[3]);
}

WL_INLINE int wl_connection_wanted(const struct wl_connections *all, u64 flow_key)
{
    return !all->level || !(flow_key >> (64 - all->level));
}

WL_INLINE u64 wl_connection_place(const struct wl_connections *all, u64 flow_key, u64 tag, u64 stretch)
{
    return wl_mix(flow_key ^ wl_mix(tag + stretch * WL_GOLDEN)) & all->mask;
}

/* Add sums to the row of a connection, a group and a stretch; there must be a free row. */
WL_INLINE void wl_connection_add(struct wl_connections *all, const struct wl_connection_row *more)
{
    u64 at = wl_connection_place(all, more->flow_key, more->tag, more->stretch);
    struct wl_connection_row *row = &all->rows[at];

    while (
        !wl_connection_free(row) && (row->flow_key != more->flow_key || row->tag != more->tag || row->stretch != more->stretch)) {
        at = (at + 1) & all->mask;
        row = &all->rows[at];
    }
    if (wl_connection_free(row)) {
        *row = *more;
        all->held++;
        return;
    }
    for (u32 i = 0; i < 4; i++)
        row->sums[i] += more->sums[i];
}

#endif
