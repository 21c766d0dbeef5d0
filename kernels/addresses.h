/* Ordered pairs of addresses: their keys, a bounded set of them, and the course of each (twopoint/sketch.py states the law).
 *
 * Not for eBPF: the tables grow. The seed decides where a pair is looked for and changes no result: whoever sends the packets
 * cannot choose pairs that meet. */
#ifndef WIRELAG_ADDRESSES_H
#define WIRELAG_ADDRESSES_H

#include "coin.h"

struct wl_address_pair {
    u64 key, address[4]; /* source, destination */
};

struct wl_pair_slot {
    u64 key;    /* a pair of key 0 is free: none has it */
    u32 number; /* where the pair is, in order of appearance */
};

struct wl_pair_slots {
    struct wl_pair_slot *slots;
    u64 mask, seed;
    u32 level; /* leading bits of a key that must be zero */
};

/* One number for an ordered pair of addresses of two words each; the two directions differ. */
WL_INLINE u64 wl_pair_key(const u64 *source, const u64 *destination, u64 coin)
{
    u64 from = wl_coin(source[0] * WL_SPREAD + source[1], coin), to = wl_coin(destination[0] * WL_SPREAD + destination[1], coin);

    return wl_coin(from + to * WL_SPREAD, coin);
}

WL_INLINE u64 wl_pair_place(const struct wl_pair_slots *all, u64 key)
{
    return wl_mix(key ^ all->seed) & all->mask;
}

WL_INLINE int wl_pair_wanted(const struct wl_pair_slots *all, u64 key)
{
    return key && wl_leading_zeros(key) >= all->level;
}

/* The slot of a key, or the free one where it belongs; one must be free. */
WL_INLINE struct wl_pair_slot *wl_pair_find(const struct wl_pair_slots *all, u64 key)
{
    u64 at = wl_pair_place(all, key);

    while (all->slots[at].key && all->slots[at].key != key)
        at = (at + 1) & all->mask;
    return &all->slots[at];
}

#endif
