/* Equal rows of words, numbered in order of appearance.
 *
 * Not for eBPF: its table grows with the rows, up to one entry for each. The seed decides where a row is looked for, and changes
 * no number: whoever sends the packets cannot choose rows that meet. */
#ifndef WIRELAG_DISTINCT_H
#define WIRELAG_DISTINCT_H

#include "hash.h"

struct wl_distinct {
    const u64 *words; /* of all rows, row after row */
    u64 seed;
    u32 width;    /* words of a row */
    u32 count;    /* distinct rows so far */
    u32 *firsts;  /* where each of them comes first */
    u32 *buckets; /* numbers + 1, behind the hash of a row or after it; 0: empty */
    u32 mask;     /* buckets - 1; at least one is always empty */
};

WL_INLINE u32 wl_distinct_bucket(const struct wl_distinct *d, const u64 *row)
{
    u64 hash = d->seed;

    for (u32 i = 0; i < d->width; i++)
        hash = wl_hash_word(hash, row[i]);
    return (u32)wl_mix(hash) & d->mask;
}

WL_INLINE int wl_distinct_equal(const struct wl_distinct *d, const u64 *a, const u64 *b)
{
    u64 differs = 0;

    for (u32 i = 0; i < d->width; i++)
        differs |= a[i] ^ b[i];
    return !differs;
}

/* The number of a row: that of the first one equal to it, or the next. */
WL_INLINE u32 wl_distinct_number(struct wl_distinct *d, u32 row)
{
    const u64 *words = d->words + (u64)row * d->width;
    u32 at = wl_distinct_bucket(d, words);

    for (; d->buckets[at]; at = (at + 1) & d->mask) {
        u32 number = d->buckets[at] - 1;

        if (wl_distinct_equal(d, d->words + (u64)d->firsts[number] * d->width, words))
            return number;
    }
    d->firsts[d->count] = row;
    d->buckets[at] = ++d->count;
    return d->count - 1;
}

/* Enter the numbers again, into buckets that are empty. */
WL_INLINE void wl_distinct_again(struct wl_distinct *d)
{
    for (u32 number = 0; number < d->count; number++) {
        u32 at = wl_distinct_bucket(d, d->words + (u64)d->firsts[number] * d->width);

        while (d->buckets[at])
            at = (at + 1) & d->mask;
        d->buckets[at] = number + 1;
    }
}

#endif
