/* Coins of the two-point estimators (docs/reference/crossing.md, "Coins").
 *
 * Law: a coin is a hash of (packet id, seed, purpose), so both points toss the same one; never of the interval, so synopses of
 * neighbouring intervals can be added. */
#ifndef WIRELAG_COIN_H
#define WIRELAG_COIN_H

#include "hash.h"

enum wl_purpose {
    WL_COIN_CACHE = 1,
    WL_COIN_LDA = 2,
    WL_COIN_FINECOMB = 3,
    WL_COIN_MARKER = 4,
    WL_COIN_CHECK = 5,
    WL_COIN_STRATUM = 6,
    WL_COIN_RATELESS = 7,
    WL_COIN_FLOW = 8,
    WL_COIN_HOLD = 9,
    WL_COIN_THINNING = 10, /* 10, 11 and 13 are used from Python only */
    WL_COIN_REFERENCE = 11,
    WL_COIN_ADDRESS = 12,
    WL_COIN_LISTED = 13,
    WL_COIN_BANK = 16,
    WL_COIN_MINHASH = 1024,
};

/* The contribution of seed and purpose: computed once, outside of loops. */
WL_INLINE u64 wl_coin_key(u64 seed, u64 purpose)
{
    return wl_mix(seed * WL_GOLDEN + purpose);
}

WL_INLINE u64 wl_coin(u64 id, u64 key)
{
    return wl_mix(id ^ key);
}

/* A number below n, from the lower half of x. */
WL_INLINE u64 wl_scaled(u64 x, u64 n)
{
    return (u64)(u32)x * n >> 32;
}

#endif
