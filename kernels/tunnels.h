/* From a carrier's IP payload to the ethertype inside; WL_NOT_IP if a tunnel is not followed (columns.md, "Tunnels"). */
#ifndef WIRELAG_TUNNELS_H
#define WIRELAG_TUNNELS_H

#include "link.h"

WL_INLINE enum wl_reason wl_bridged(struct wl_cursor *c, u16 *type)
{
    return *type == WL_TYPE_BRIDGE ? wl_typed(c, 14, 12, type) : WL_OK;
}

WL_INLINE enum wl_reason wl_gre(struct wl_cursor *c, u16 *type)
{
    u32 bits, skip = 4;

    if (!wl_has(c, 4))
        return WL_CUT;
    bits = wl_be16(c->at);
    *type = wl_be16(c->at + 2);
    if (bits & 0x1000)
        skip += 4;
    if ((bits & 7) == 1 && *type == WL_TYPE_PPP) {
        skip += bits & 0x0080 ? 8 : 4;
        if (!wl_has(c, skip))
            return WL_CUT;
        wl_pass(c, skip);
        return wl_ppp_framed(c, type);
    }
    if ((bits & 7) || bits & 0x4000)
        return WL_NOT_IP;
    if (bits & 0x8000)
        skip += 4;
    if (bits & 0x2000)
        skip += 4;
    if (*type == WL_TYPE_ERSPAN) {
        *type = WL_TYPE_BRIDGE;
        if (bits & 0x1000)
            skip += 8;
    }
    if (!wl_has(c, skip))
        return WL_CUT;
    wl_pass(c, skip);
    return wl_bridged(c, type);
}

WL_INLINE enum wl_reason wl_vxlan(struct wl_cursor *c, u16 *type)
{
    if (!wl_has(c, 8) || !(c->at[0] & 8))
        return WL_NOT_IP;
    wl_pass(c, 8);
    *type = WL_TYPE_BRIDGE;
    return wl_bridged(c, type);
}

WL_INLINE enum wl_reason wl_geneve(struct wl_cursor *c, u16 *type)
{
    u32 header;

    if (!wl_has(c, 8) || c->at[0] >> 6)
        return WL_NOT_IP;
    header = 8 + 4 * (c->at[0] & 63);
    *type = wl_be16(c->at + 2);
    if (!wl_has(c, header))
        return WL_CUT;
    wl_pass(c, header);
    return wl_bridged(c, type);
}

WL_INLINE int wl_gtp(struct wl_cursor *c, u16 *type)
{
    u32 bits, next = 0;

    if (!wl_has(c, 8) || (c->at[0] & 0xF0) != 0x30 || c->at[1] != 255)
        return WL_NOT_IP;
    bits = c->at[0];
    wl_pass(c, 8);
    if (bits & 7) {
        if (!wl_has(c, 4))
            return WL_CUT;
        if (bits & 4)
            next = c->at[3];
        wl_pass(c, 4);
    }
    for (int i = 0; i < 4 && next; i++) {
        u32 length;

        if (!wl_has(c, 4))
            return WL_CUT;
        length = c->at[0] * 4;
        if (length == 0 || !wl_has(c, length))
            return WL_NOT_IP;
        wl_pass(c, length - 1);
        if (!wl_has(c, 1))
            return WL_NOT_IP;
        next = c->at[0];
        wl_pass(c, 1);
    }
    return next ? WL_NOT_IP : wl_nibble(c, type, WL_NOT_IP);
}

WL_INLINE int wl_tunnel(struct wl_cursor *c, const struct wl_row *row, u16 *type)
{
    if (row->protocol == 4 || row->protocol == 41)
        return wl_nibble(c, type, WL_NOT_IP);
    if (row->protocol == 47)
        return wl_gre(c, type);
    if (!wl_has(c, 8))
        return WL_CUT;
    wl_pass(c, 8);
    if (row->dst_port == 4789)
        return wl_vxlan(c, type);
    if (row->dst_port == 6081)
        return wl_geneve(c, type);
    return wl_gtp(c, type);
}

#endif
