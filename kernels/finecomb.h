/* FineComb: LDA's rows plus a parity that reveals, and a stash that repairs, what crossed the edge of an interval
 * (docs/reference/crossing.md is the law; tests/oracles/finecomb.py its twin). The caller owns all memory. */
#ifndef WIRELAG_FINECOMB_H
#define WIRELAG_FINECOMB_H

#include "coin.h"

#define WL_MOST_CANDIDATES 12
#define WL_MOST_MASKS (1u << 22) /* in one repair of all rows */

struct wl_finecomb {
    u64 key, rows; /* at most 2^32 */
    u32 shift;
};

struct wl_finecomb_bucket {
    u64 count, sum, parity;
};

/* A stashed packet that may be removed from its row, at its point. */
struct wl_candidate {
    u64 row, id;
    s64 time_ns;
    u32 downstream;
};

/* The index of a packet's bucket; negative if it is not sampled. Without branches, as in lda.h. */
WL_INLINE s64 wl_finecomb_place(const struct wl_finecomb *f, u64 id)
{
    u64 coin = wl_coin(id, f->key);
    s64 outside = wl_leading_zeros(coin) < f->shift;

    return (s64)wl_scaled(coin, f->rows) - outside * (s64)f->rows;
}

WL_INLINE void wl_finecomb_add(struct wl_finecomb_bucket *bucket, u64 id, s64 time_ns)
{
    bucket->count++;
    bucket->sum += (u64)time_ns;
    bucket->parity ^= id;
}

WL_INLINE void wl_finecomb_take(struct wl_finecomb_bucket *bucket, u64 id, s64 time_ns)
{
    bucket->count--;
    bucket->sum -= (u64)time_ns;
    bucket->parity ^= id;
}

WL_INLINE int wl_finecomb_whole(const struct wl_finecomb_bucket *up, const struct wl_finecomb_bucket *down)
{
    return up->count == down->count && up->parity == down->parity;
}

/* The first mask of candidates without which both points agree, or 0; masks is the number that may still be tried.
 *
 * From one mask to the next, bits 0 to k flip, where k is the number of trailing zeros of the next: bit k is set and those below
 * are cleared. So the change for each k is known beforehand, and a mask costs one step however many candidates it has. */
WL_INLINE u32 wl_finecomb_mask(const struct wl_finecomb_bucket *up, const struct wl_finecomb_bucket *down,
    const struct wl_candidate *candidates, u32 count, u32 *masks)
{
    u64 parity = up->parity ^ down->parity, excess = up->count - down->count;
    u64 parities[WL_MOST_CANDIDATES] = {0}, excesses[WL_MOST_CANDIDATES] = {0};
    u64 parity_below = 0, excess_below = 0;

    for (u32 k = 0; k < WL_MOST_CANDIDATES && k < count; k++) {
        u64 one = candidates[k].downstream ? ~0ull : 1;

        parity_below ^= candidates[k].id;
        parities[k] = parity_below;
        excesses[k] = one - excess_below;
        excess_below += one;
    }
    for (u32 mask = 1; mask < 1u << WL_MOST_CANDIDATES && mask >> count == 0 && *masks; mask++) {
        u32 k = (u32)__builtin_ctz(mask);

        --*masks;
        parity ^= parities[k];
        excess -= excesses[k];
        if (!parity && !excess)
            return mask;
    }
    return 0;
}

#endif
