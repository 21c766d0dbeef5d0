/* Delays into bins and sums (distribution.py states the guarantees). A bin is 1/128 of an octave; integer only. */
#ifndef WIRELAG_DISTRIBUTION_H
#define WIRELAG_DISTRIBUTION_H

#include "types.h"

#define WL_BIN_BITS 7
#define WL_BIN_OCTAVES 35
#define WL_BINS ((WL_BIN_OCTAVES << WL_BIN_BITS) + (2 << WL_BIN_BITS))
#define WL_LONGEST_NS ((1ull << (WL_BIN_BITS + 1 + WL_BIN_OCTAVES)) - 1)

/* Sums that do not fit into 64 bits have two words, lower word first. */
struct wl_sums {
    u64 samples;
    u64 weight;
    u64 sum_ns[2], sum_squares[2];
    u64 min_ns, max_ns;
};

WL_INLINE u32 wl_bin(u64 delay_ns)
{
    u32 shift = 0;

    if (delay_ns > WL_LONGEST_NS)
        delay_ns = WL_LONGEST_NS;
    if (delay_ns >> (WL_BIN_BITS + 1))
        shift = 64 - wl_leading_zeros(delay_ns) - (WL_BIN_BITS + 1);
    return (shift << WL_BIN_BITS) + (u32)(delay_ns >> shift);
}

#define WL_CROWD_BITS 5
#define WL_CROWDS (1 << WL_CROWD_BITS)
#define WL_COARSE_BITS 3 /* crowds use bins of eight: a variance need not be fine, and should stay in the cache */
#define WL_COARSE_BINS (WL_BINS >> WL_COARSE_BITS)

/* The crowd of a connection: the upper bits of its flow key, which no table uses. */
WL_INLINE u32 wl_crowd(u64 flow_key)
{
    return (u32)(flow_key >> (64 - WL_CROWD_BITS));
}

#define WL_EIGHTHS (41 << 3) /* up to 2^41 ns, 37 minutes */

/* The eighth of an octave in which a delay lies: floor(8 log2(delay)). */
WL_INLINE u32 wl_eighth(u64 delay_ns)
{
    /* 2^(63 + k/8), rounded up */
    static const u64 edges[7] = {0x8b95c1e3ea8bd6e7, 0x9837f0518db8a970, 0xa5fed6a9b15138eb, 0xb504f333f9de6485, 0xc5672a115506dade,
        0xd744fccad69d6af5, 0xeac0c6e7dd24392f};
    u32 zeros, eighth = 0;

    if (delay_ns >> 41)
        return WL_EIGHTHS - 1;
    if (!delay_ns)
        return 0;
    zeros = wl_leading_zeros(delay_ns);
    for (u32 k = 0; k < 7; k++)
        eighth += delay_ns << zeros >= edges[k];
    return ((63 - zeros) << 3) + eighth;
}

/* sum += a * b, in 128 bits; in eBPF, which has no such type, by halves. */
WL_INLINE void wl_add_product(u64 sum[2], u64 a, u64 b)
{
#if defined(__SIZEOF_INT128__) && !defined(__bpf__)
    unsigned __int128 whole = ((unsigned __int128)sum[1] << 64 | sum[0]) + (unsigned __int128)a * b;

    sum[0] = (u64)whole;
    sum[1] = (u64)(whole >> 64);
#else
    u64 a0 = (u32)a, a1 = a >> 32, b0 = (u32)b, b1 = b >> 32;
    u64 middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (u32)middle;
    u64 low = a * b, high = a1 * b1 + (middle >> 32) + (other >> 32);

    sum[0] += low;
    sum[1] += high + (sum[0] < low);
#endif
}

/* Add one delay to its bin (weight and square) and to the sums. */
WL_INLINE void wl_distribute_into(u64 *in_bin, u64 *squares, struct wl_sums *sums, u64 delay_ns, u64 weight)
{
    *in_bin += weight;
    *squares += weight * weight;
    sums->min_ns = sums->samples && sums->min_ns < delay_ns ? sums->min_ns : delay_ns;
    sums->max_ns = sums->max_ns > delay_ns ? sums->max_ns : delay_ns;
    sums->samples++;
    sums->weight += weight;
    wl_add_product(sums->sum_ns, delay_ns, weight);
    wl_add_product(sums->sum_squares, delay_ns * weight, delay_ns); /* a delay of 2^43 ns leaves 21 bits for the weight */
}

WL_INLINE void wl_distribute(u64 *weights, u64 *squares, struct wl_sums *sums, u64 delay_ns, u64 weight)
{
    u32 bin = wl_bin(delay_ns);

    wl_distribute_into(&weights[bin], &squares[bin], sums, delay_ns, weight);
}

#endif
