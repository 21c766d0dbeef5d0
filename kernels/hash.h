/* The hashes: packet id and flow key (docs/reference/columns.md, "Hashes").
 *
 * Law: a hash is the mix of a sum of independent terms, so that a processor overlaps them; a sum does not depend on order, so a
 * flow key is the same in both directions. Terms that are hashes themselves take two steps: after one, the differences of
 * neighbouring values are nearly the same, and cancel out in the sum. Integer only: the same header compiles into the extension
 * and into eBPF. */
#ifndef WIRELAG_HASH_H
#define WIRELAG_HASH_H

#include "types.h"

#define WL_GOLDEN 0x9E3779B97F4A7C15ull
#define WL_FACTOR 0xD6E8FEB86659FD93ull
#define WL_SPREAD 0xC2B2AE3D27D4EB4Full

WL_INLINE u64 wl_mix(u64 x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    x ^= x >> 31;
    return x;
}

/* The key of the i-th field of a packet id, fixed at compile time. */
#define WL_KEY(i) (wl_mix((i) * WL_GOLDEN) | 1)

/* One step: for a given hash the next one is a bijection of the word, so inputs that differ in one word never collide; the shift
 * brings the upper half of the product back into the lower one. */
WL_INLINE u64 wl_hash_word(u64 hash, u64 word)
{
    hash = (hash ^ word) * WL_FACTOR;
    return hash ^ hash >> 32;
}

/* One end of a conversation. */
struct wl_endpoint {
    u64 high, low; /* address */
    u64 port;
};

WL_INLINE u64 wl_endpoint_hash(u64 seed, const struct wl_endpoint *e)
{
    return wl_hash_word(wl_hash_word(seed + e->high * WL_SPREAD + e->port * WL_GOLDEN, e->low), 0);
}

WL_INLINE u64 wl_flow_key(u64 seed, const struct wl_endpoint *a, const struct wl_endpoint *b, u8 protocol)
{
    return wl_mix(wl_endpoint_hash(seed, a) + wl_endpoint_hash(seed, b) + protocol);
}

/* Whether a comes after b in the order of endpoints, which gives the direction bit. Without branches: traffic goes both ways,
 * and a processor would mispredict half of the time. */
WL_INLINE u32 wl_endpoint_after(const struct wl_endpoint *a, const struct wl_endpoint *b)
{
    u32 port = a->port > b->port;
    u32 low = (a->low > b->low) | ((a->low == b->low) & port);

    return (a->high > b->high) | ((a->high == b->high) & low);
}

#endif
