/* LDA: packets counted and their times summed in rows (docs/reference/crossing.md is the law; tests/oracles/lda.py its twin).
 *
 * Law: the id's coin selects bank and row, so both points put a packet into the same bucket; all arithmetic wraps, so the
 * difference of two sums is exact whatever the clock shows. No branches: the bank is random, and a processor would mispredict
 * it. The caller owns all memory. */
#ifndef WIRELAG_LDA_H
#define WIRELAG_LDA_H

#include "coin.h"

#define WL_LDA_BANKS 8
#define WL_MOST_SHIFT 31

struct wl_lda {
    u64 key, rows;
    u64 limit[WL_LDA_BANKS]; /* a bank samples coins whose half is below this; 0: no such bank */
    u8 bank[65];             /* by the coin's leading zeros: 1 for the first, 0 for packets that are not sampled */
};

struct wl_lda_bucket {
    u64 count, sum;
};

/* There are at most 2^32 rows; shifts ascend. */
WL_INLINE void wl_lda_start(struct wl_lda *l, u64 seed, u64 rows, const u32 shifts[WL_LDA_BANKS], u32 banks)
{
    l->key = wl_coin_key(seed, WL_COIN_LDA);
    l->rows = rows;
    for (u32 j = 0; j < WL_LDA_BANKS; j++)
        l->limit[j] = j < banks ? 1ull << (63 - shifts[j]) : 0;
    for (u32 zeros = 0; zeros <= 64; zeros++) {
        u8 bank = 0;

        for (u32 j = 0; j < WL_LDA_BANKS; j++)
            bank += j < banks && shifts[j] <= zeros;
        l->bank[zeros] = bank;
    }
}

/* The bank of a coin, 1 for the first; 0: not sampled. eBPF cannot count zeros, and skips missing banks. */
WL_INLINE s64 wl_lda_bank(const struct wl_lda *l, u64 coin)
{
#ifdef __bpf__
    s64 bank = 0;

#pragma unroll
    for (u32 j = 0; j < WL_LDA_BANKS; j++)
        if (coin >> 1 < l->limit[j])
            bank++;
    return bank;
#else
    return l->bank[wl_leading_zeros(coin)];
#endif
}

/* The index of a packet's bucket; negative if it is not sampled. */
WL_INLINE s64 wl_lda_place(const struct wl_lda *l, u64 id)
{
    u64 coin = wl_coin(id, l->key);
    s64 bank = wl_lda_bank(l, coin);

    return (bank - 1) * (s64)l->rows + (s64)wl_scaled(coin, l->rows);
}

WL_INLINE void wl_lda_add(struct wl_lda_bucket *bucket, s64 time_ns)
{
    bucket->count++;
    bucket->sum += (u64)time_ns;
}

#endif
