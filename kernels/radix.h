/* The stable order of 64-bit keys, by digits from the lowest up.
 *
 * Law: the same order as a stable comparison sort. A word holds a piece of the key above the number of its row; one pass per
 * digit moves the words from one room to the other. Not for eBPF: it sorts nothing. */
#ifndef WIRELAG_RADIX_H
#define WIRELAG_RADIX_H

#include "types.h"

#define WL_RADIX_BITS 11 /* of a digit, at most: its counters stay in the nearest cache */
#define WL_RADIX_DIGITS (1 << WL_RADIX_BITS)

/* Words by one digit, of `bits` bits from `shift` up; `place` has room for WL_RADIX_DIGITS. */
WL_INLINE void wl_radix_pass(const u64 *from, u64 *to, u64 count, u32 shift, u32 bits, u64 *place)
{
    u64 mask = (1ull << bits) - 1, sum = 0;

    for (u64 digit = 0; digit <= mask; digit++)
        place[digit] = 0;
    for (u64 i = 0; i < count; i++)
        place[from[i] >> shift & mask]++;
    for (u64 digit = 0; digit <= mask; digit++) {
        u64 here = place[digit];

        place[digit] = sum;
        sum += here;
    }
    for (u64 i = 0; i < count; i++)
        to[place[from[i] >> shift & mask]++] = from[i];
}

#endif
