/* Shortest paths from one router, cut at the routers that can measure (docs/reference/plan.md).
 *
 * Law: the paths to measure are all shortest paths, of all ordered pairs, without a measuring router in between. They need no
 * list: those from one source are walks in the graph of its shortest paths, and walks are counted by summation, forwards (ways
 * to a router) and backwards (ways on from it). A router is in between on `ways * on` of them, and that many are removed when it
 * can measure, because the two parts of each are there already. Law of numbers: a count is capped at WL_MOST_WAYS and flagged;
 * below, everything is exact. Products and sums of them fit into 128 bits. Not for eBPF: loops grow with the network. Weights
 * are at least 1, or walks would not end. */
#ifndef WIRELAG_ROUTES_H
#define WIRELAG_ROUTES_H

#include "types.h"

#define WL_MOST_WAYS (1ull << 55) /* times itself, twice, for each of 2^16 sources: below 2^128 */
#define WL_MOST_ROUTERS (1u << 16)
#define WL_FAR 0x7fffffffffffffffll

typedef unsigned __int128 wl_sum;

/* Links by the router at one end: those of r are first[r] up to first[r + 1]. */
struct wl_links {
    u32 routers;
    const u32 *first, *other;
    const s64 *weight;
};

struct wl_ahead {
    s64 cost;
    u32 router;
};

/* The counts from one source, for each router. */
struct wl_ways {
    u64 *ways, *hops;        /* paths from the source to it, and the sum of their hops */
    u64 *on, *on_hops;       /* ways on from it to any router, and their hops */
    u32 *shortest, *longest; /* shortest and longest path to it, in hops */
    u32 capped;              /* a count was capped */
};

WL_INLINE u64 wl_capped(u64 value, u32 *capped)
{
    if (value < WL_MOST_WAYS)
        return value;
    *capped = 1;
    return WL_MOST_WAYS;
}

WL_INLINE u32 wl_bit(const u64 *bits, u32 i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

WL_INLINE void wl_set_bit(u64 *bits, u32 i)
{
    bits[i / 64] |= 1ull << (i % 64);
}

WL_INLINE void wl_set_ahead(struct wl_ahead *heap, u32 *length, s64 cost, u32 router)
{
    u32 i = (*length)++;

    for (; i && heap[(i - 1) / 2].cost > cost; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i].cost = cost;
    heap[i].router = router;
}

WL_INLINE struct wl_ahead wl_next_ahead(struct wl_ahead *heap, u32 *length)
{
    struct wl_ahead top = heap[0], last = heap[--*length];
    u32 i = 0, child;

    while ((child = 2 * i + 1) < *length) {
        if (child + 1 < *length && heap[child + 1].cost < heap[child].cost)
            child++;
        if (heap[child].cost >= last.cost)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* Dijkstra. `cost` of each router, WL_FAR if unreachable; `order`: reachable routers, nearest first. The heap has room for one
 * router per link plus one. Returns the number of reachable routers. */
WL_INLINE u32 wl_shortest(const struct wl_links *out, u32 source, s64 *cost, u32 *order, struct wl_ahead *heap)
{
    u32 length = 0, reached = 0;

    for (u32 r = 0; r < out->routers; r++)
        cost[r] = WL_FAR;
    cost[source] = 0;
    wl_set_ahead(heap, &length, 0, source);
    while (length) {
        struct wl_ahead at = wl_next_ahead(heap, &length);

        if (at.cost > cost[at.router])
            continue;
        order[reached++] = at.router;
        for (u32 e = out->first[at.router]; e < out->first[at.router + 1]; e++) {
            u32 next = out->other[e];
            s64 found = at.cost + out->weight[e];

            if (found < cost[next]) {
                cost[next] = found;
                wl_set_ahead(heap, &length, found, next);
            }
        }
    }
    return reached;
}

/* The links (by their place in `in`) on shortest paths from the source. */
WL_INLINE void wl_mark_links(const struct wl_links *in, const s64 *cost, const u32 *order, u32 reached, u64 *marked)
{
    for (u32 i = 0; i < reached; i++)
        for (u32 e = in->first[order[i]]; e < in->first[order[i] + 1]; e++)
            if (cost[in->other[e]] != WL_FAR && cost[in->other[e]] + in->weight[e] == cost[order[i]])
                wl_set_bit(marked, e);
}

/* Whether paths of `source` continue over this link: they end at routers that can measure. */
WL_INLINE u32 wl_goes_on(const struct wl_links *in, u32 source, u32 e, const u64 *marked, const u8 *cut)
{
    u32 from = in->other[e];

    return wl_bit(marked, e) && (from == source || !cut[from]);
}

/* Count the paths from order[0] to each router of `order`. Routers that no path reaches, or not in `order`, have no ways. */
WL_INLINE void wl_ways_to(
    const struct wl_links *in, const u32 *order, u32 reached, const u64 *marked, const u8 *cut, struct wl_ways *w)
{
    u32 source = order[0];

    for (u32 r = 0; r < in->routers; r++)
        w->ways[r] = 0;
    for (u32 i = 0; i < reached; i++) {
        u32 r = order[i];
        u64 ways = i == 0, hops = 0;
        u32 shortest = i ? ~0u : 0, longest = 0;

        for (u32 e = in->first[r]; i && e < in->first[r + 1]; e++) {
            u32 from = in->other[e];

            if (!wl_goes_on(in, source, e, marked, cut) || !w->ways[from])
                continue;
            ways = wl_capped(ways + w->ways[from], &w->capped);
            hops = wl_capped(hops + w->hops[from] + w->ways[from], &w->capped);
            if (w->shortest[from] + 1 < shortest)
                shortest = w->shortest[from] + 1;
            if (w->longest[from] + 1 > longest)
                longest = w->longest[from] + 1;
        }
        w->ways[r] = ways;
        w->hops[r] = hops;
        w->shortest[r] = shortest;
        w->longest[r] = longest;
        w->on[r] = w->on_hops[r] = 0;
    }
}

/* Count the ways on from each router, after wl_ways_to. on[source] is the number of paths, on_hops[source] their hops. */
WL_INLINE void wl_ways_on(
    const struct wl_links *in, const u32 *order, u32 reached, const u64 *marked, const u8 *cut, struct wl_ways *w)
{
    u32 source = order[0];

    for (u32 i = reached; i-- > 1;) {
        u32 r = order[i];

        if (!w->ways[r])
            continue;
        for (u32 e = in->first[r]; e < in->first[r + 1]; e++) {
            u32 from = in->other[e];

            if (!wl_goes_on(in, source, e, marked, cut) || !w->ways[from])
                continue;
            w->on[from] = wl_capped(w->on[from] + w->on[r] + 1, &w->capped);
            w->on_hops[from] = wl_capped(w->on_hops[from] + w->on_hops[r] + w->on[r] + 1, &w->capped);
        }
    }
}

#endif
