/* Who is the client of a packet, by SYNs, ports and peers (docs/reference/roles.md, rules 2 to 5).
 *
 * Not for eBPF: the sets grow, up to a bound. The seed decides where a key is looked for and changes no result. */
#ifndef WIRELAG_ROLES_H
#define WIRELAG_ROLES_H

#include "coin.h"
#include "match.h" /* flags of TCP */
#include "ports.h"

/* A set of keys other than 0, of which a slot is always free. */
struct wl_keys {
    u64 *slots;
    u64 mask, held, seed;
};

struct wl_roles {
    struct wl_keys servers, popular; /* endpoints that SYNs named; those with several peers */
};

struct wl_ends {
    u64 to, of; /* keys of receiver and sender */
    u16 to_port, of_port;
};

enum wl_role { WL_BY_SERVER, WL_BY_CLIENT, WL_NOT_TOLD };

WL_INLINE u64 *wl_keys_find(const struct wl_keys *keys, u64 key)
{
    u64 at = wl_mix(key ^ keys->seed) & keys->mask;

    while (keys->slots[at] && keys->slots[at] != key)
        at = (at + 1) & keys->mask;
    return &keys->slots[at];
}

WL_INLINE int wl_keys_have(const struct wl_keys *keys, u64 key)
{
    return *wl_keys_find(keys, key) == key;
}

/* The key of an endpoint; 0 stands for a free slot. */
WL_INLINE u64 wl_endpoint_key(const u64 *address, u16 port, u64 coin)
{
    u64 key = wl_coin(wl_coin(address[0] * WL_SPREAD + address[1], coin) + port * WL_GOLDEN, coin);

    return key ? key : 1;
}

/* The server that a packet names: one that receives a SYN (WireGuard: an initiation), or replies to one; 0: none. */
WL_INLINE u64 wl_server_named(const struct wl_ends *ends, u8 kind, u8 message)
{
    if (kind == WL_TCP && message & WL_SYN)
        return message & WL_ACK ? ends->of : ends->to;
    if (kind == WL_WIREGUARD)
        return message == 1 ? ends->to : message == 2 ? ends->of : 0;
    return 0;
}

WL_INLINE enum wl_role wl_role_of(const struct wl_roles *roles, const struct wl_ends *ends, const u8 *ranks)
{
    u32 to = ranks[ends->to_port], of = ranks[ends->of_port];
    int serves_to = wl_keys_have(&roles->servers, ends->to), serves_of = wl_keys_have(&roles->servers, ends->of);

    if (serves_to != serves_of)
        return serves_to ? WL_BY_CLIENT : WL_BY_SERVER;
    if (!to != !of)
        return to ? WL_BY_SERVER : WL_BY_CLIENT;
    if (!to && ends->to_port != ends->of_port)
        return ends->to_port < ends->of_port ? WL_BY_CLIENT : WL_BY_SERVER;
    if (roles->popular.held) {
        int peers_to = wl_keys_have(&roles->popular, ends->to);

        if (peers_to != wl_keys_have(&roles->popular, ends->of))
            return peers_to ? WL_BY_CLIENT : WL_BY_SERVER;
    }
    return to == of ? WL_NOT_TOLD : to < of ? WL_BY_CLIENT : WL_BY_SERVER;
}

#endif
