/* Weighted Maglev: which backend each entry of a table belongs to (docs/concepts/balancing.md).
 *
 * Law: a backend wants entries in its own order: first, first + skip, first + 2 skip and so on, modulo the size. In each round
 * every backend whose turn it is takes the next free entry that it wants. The heaviest has a turn in every round; one of weight
 * w has turn n (from 0) in the first round r (from 1) with n * heaviest < r * w. So shares match the weights to about one entry,
 * and every backend with a weight has an entry, if there is room. The size is prime: with any skip from 1 to size - 1 an order
 * visits every entry. After D. E. Eisenbud and others, Maglev: A Fast and Reliable Software Network Load Balancer, 2016, section
 * 3.4. Not for eBPF: loops are as long as the table. */
#ifndef WIRELAG_MAGLEV_H
#define WIRELAG_MAGLEV_H

#include "types.h"

#define WL_MAGLEV_FREE (-1)

struct wl_maglev_wish {
    u32 next, skip; /* the next entry that it wants, and the step to the one after */
    u64 taken;
};

/* Fill an empty table. Weights are below 2^32, one of them is not 0; sizes are below 2^31. */
WL_INLINE void wl_maglev_fill(int *table, u32 size, struct wl_maglev_wish *wishes, const u32 *weights, u32 backends)
{
    u64 heaviest = 0;
    u32 left = size;

    for (u32 b = 0; b < backends; b++)
        heaviest = weights[b] > heaviest ? weights[b] : heaviest;
    for (u64 round = 1;; round++) {
        for (u32 b = 0; b < backends; b++) {
            struct wl_maglev_wish *wish = &wishes[b];

            if (wish->taken * heaviest >= round * weights[b])
                continue;
            while (table[wish->next] != WL_MAGLEV_FREE) {
                wish->next += wish->skip;
                wish->next -= wish->next >= size ? size : 0;
            }
            table[wish->next] = (int)b;
            wish->taken++;
            if (!--left)
                return;
        }
    }
}

#endif
