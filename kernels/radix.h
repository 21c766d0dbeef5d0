/* The stable order of 64-bit keys, by digits from the lowest up.
 *
 * Law: the same order as a stable comparison sort of the unsigned keys. One pass per digit; the caller gives room for keys and
 * rows twice, and swaps. Not for eBPF: it sorts nothing. */
#ifndef WIRELAG_RADIX_H
#define WIRELAG_RADIX_H

#include "types.h"

#define WL_RADIX_BITS 11 /* of a digit, at most: its counters stay in the nearest cache */
#define WL_RADIX_DIGITS (1 << WL_RADIX_BITS)

/* Keys and rows by one digit, from one room to the other. */
WL_INLINE void wl_radix_pass(
    const u64 *keys, const u32 *rows, u64 *keys_out, u32 *rows_out, u64 count, u32 shift, u32 bits, u64 *place)
{
    u64 mask = (1ull << bits) - 1, sum = 0;

    for (u64 digit = 0; digit <= mask; digit++)
        place[digit] = 0;
    for (u64 i = 0; i < count; i++)
        place[keys[i] >> shift & mask]++;
    for (u64 digit = 0; digit <= mask; digit++) {
        u64 here = place[digit];

        place[digit] = sum;
        sum += here;
    }
    for (u64 i = 0; i < count; i++) {
        u64 at = place[keys[i] >> shift & mask]++;

        keys_out[at] = keys[i];
        rows_out[at] = rows[i];
    }
}

#endif
