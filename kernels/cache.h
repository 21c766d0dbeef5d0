/* Caches of packets, their copies, and the join of two caches (docs/reference/crossing.md is the law; tests/oracles/join.py its
 * twin).
 *
 * Law: only the id's coin and the level decide what a cache keeps, so two points keep the same packets and never evict on one
 * side only. The caller owns the memory and the loops over it. */
#ifndef WIRELAG_CACHE_H
#define WIRELAG_CACHE_H

#include "coin.h"

/* The fate of an entry in the join. */
enum wl_fate { WL_PAIRED, WL_SINGLE, WL_AMBIGUOUS };

struct wl_joined {
    u64 pairs, only_upstream, only_downstream, duplicated, ambiguous;
};

/* Whether a cache of this level keeps a packet with this coin. The highest reachable level is 65, which keeps nothing. */
WL_INLINE int wl_cache_wants(u64 coin, u32 level)
{
    return wl_leading_zeros(coin) >= level;
}

/* The number of copy n of an id. */
WL_INLINE u64 wl_copy_number(u64 id, u64 n)
{
    return n ? wl_mix(id + n * WL_GOLDEN) : id;
}

/* Join an id with this many entries at each point, at least one in total; return the fate of these entries. */
WL_INLINE enum wl_fate wl_join_id(struct wl_joined *j, u64 upstream, u64 downstream)
{
    u64 both = upstream < downstream ? upstream : downstream;

    if (upstream == downstream) {
        j->pairs += both;
        return WL_PAIRED;
    }
    j->only_upstream += upstream - both;
    j->only_downstream += downstream - both;
    if (!both)
        return WL_SINGLE;
    j->duplicated += downstream - both;
    j->ambiguous += both;
    return WL_AMBIGUOUS;
}

#endif
