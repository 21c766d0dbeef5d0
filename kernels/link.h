/* From the link layer to an IP header: link types, tags, labels, PPP (docs/reference/columns.md, "From frame to IP packet"). */
#ifndef WIRELAG_LINK_H
#define WIRELAG_LINK_H

#include "decoding.h"

WL_INLINE int wl_nibble(const struct wl_cursor *c, u16 *type, int otherwise)
{
    if (!wl_has(c, 1))
        return WL_CUT;
    switch (c->at[0] >> 4) {
    case 4:
        *type = WL_TYPE_IPV4;
        return WL_OK;
    case 6:
        *type = WL_TYPE_IPV6;
        return WL_OK;
    }
    return otherwise;
}

WL_INLINE enum wl_reason wl_ppp(struct wl_cursor *c, u16 *type)
{
    u32 protocol;

    if (!wl_has(c, 1))
        return WL_CUT;
    protocol = c->at[0];
    if (protocol & 1) { /* compressed to one byte */
        wl_pass(c, 1);
    } else {
        if (!wl_has(c, 2))
            return WL_CUT;
        protocol = wl_be16(c->at);
        wl_pass(c, 2);
    }
    switch (protocol) {
    case 0x0021:
        *type = WL_TYPE_IPV4;
        return WL_OK;
    case 0x0057:
        *type = WL_TYPE_IPV6;
        return WL_OK;
    case 0x0281:
    case 0x0283:
        *type = WL_TYPE_MPLS;
        return WL_OK;
    }
    return WL_NOT_IP;
}

/* PPP with its optional HDLC address and control bytes. */
WL_INLINE enum wl_reason wl_ppp_framed(struct wl_cursor *c, u16 *type)
{
    if (wl_has(c, 2) && wl_be16(c->at) == 0xFF03)
        wl_pass(c, 2);
    return wl_ppp(c, type);
}

WL_INLINE enum wl_reason wl_family(struct wl_cursor *c, u16 *type)
{
    u32 family;

    if (!wl_has(c, 4))
        return WL_CUT;
    family = wl_be32(c->at);
    if (family > 0xFFFF) /* in the byte order of the capturing host */
        family = __builtin_bswap32(family);
    wl_pass(c, 4);
    switch (family) {
    case 2:
        *type = WL_TYPE_IPV4;
        return WL_OK;
    case 10: /* Linux; NetBSD and OpenBSD 24, FreeBSD 28, Darwin 30 */
    case 24:
    case 28:
    case 30:
        *type = WL_TYPE_IPV6;
        return WL_OK;
    }
    return WL_NOT_IP;
}

/* A header of `length` bytes with the ethertype at `where`. */
WL_INLINE enum wl_reason wl_typed(struct wl_cursor *c, u32 length, u32 where, u16 *type)
{
    if (!wl_has(c, length))
        return WL_CUT;
    *type = wl_be16(c->at + where);
    wl_pass(c, length);
    return WL_OK;
}

WL_INLINE enum wl_reason wl_snap(struct wl_cursor *c, u16 *type)
{
    if (!wl_has(c, 8) || wl_be32(c->at) != 0xAAAA0300 || wl_be16(c->at + 4) != 0)
        return WL_NOT_IP;
    *type = wl_be16(c->at + 6);
    wl_pass(c, 8);
    return WL_OK;
}

#ifndef __bpf__ /* programs in the kernel see Ethernet alone; lengths that vary would multiply what the verifier walks */
/* A data frame of IEEE 802.11 that is not encrypted; of several packets in one frame, the first. */
WL_INLINE enum wl_reason wl_80211(struct wl_cursor *c, u16 *type)
{
    u32 length = 24, qos, control;

    if (!wl_has(c, 2))
        return WL_CUT;
    control = c->at[1];
    qos = c->at[0] == 0x88;
    if ((c->at[0] != 0x08 && !qos) || control & 0x40)
        return WL_NOT_IP;
    if ((control & 3) == 3)
        length += 6;
    if (qos) {
        if (!wl_has(c, length + 2))
            return WL_CUT;
        if (c->at[length] & 0x80) /* A-MSDU: two addresses and a length before each packet */
            length += 14;
        length += control & 0x80 ? 6 : 2;
    }
    if (!wl_has(c, length))
        return WL_CUT;
    wl_pass(c, length);
    return wl_snap(c, type);
}

WL_INLINE enum wl_reason wl_radiotap(struct wl_cursor *c, u16 *type)
{
    u32 length;

    if (!wl_has(c, 4))
        return WL_CUT;
    length = c->at[2] | (u32)c->at[3] << 8;
    if (length < 8)
        return WL_MALFORMED;
    if (!wl_has(c, length))
        return WL_CUT;
    wl_pass(c, length);
    return wl_80211(c, type);
}

/* Fields up to the one that holds the packet, each with length and type in the byte order of the capturing host. */
WL_INLINE int wl_nflog(struct wl_cursor *c, u16 *type)
{
    if (!wl_has(c, 4))
        return WL_CUT;
    if (c->at[1])
        return WL_MALFORMED;
    wl_pass(c, 4);
    for (int i = 0; i < WL_MOST_FIELDS; i++) {
        u32 length, kind;

        if (!wl_has(c, 4))
            return WL_CUT;
        if (c->at[3] == 0) {
            length = c->at[0] | (u32)c->at[1] << 8;
            kind = c->at[2];
        } else {
            length = wl_be16(c->at);
            kind = wl_be16(c->at + 2);
        }
        if (length < 4)
            return WL_MALFORMED;
        if (kind == 9) {
            wl_pass(c, 4);
            return wl_nibble(c, type, WL_MALFORMED);
        }
        length = (length + 3) & ~3u;
        if (!wl_has(c, length))
            return WL_CUT;
        wl_pass(c, length);
    }
    return WL_LAYERS;
}
#endif

WL_INLINE int wl_link(struct wl_cursor *c, u32 link, u16 *type)
{
    if (link == WL_LINK_ETHERNET)
        return wl_typed(c, 14, 12, type);
    switch (link) {
    case WL_LINK_SLL:
        return wl_typed(c, 16, 14, type);
    case WL_LINK_SLL2:
        return wl_typed(c, 20, 0, type);
    case WL_LINK_CHDLC:
        return wl_typed(c, 4, 2, type);
    case WL_LINK_RAW:
    case WL_LINK_RAW_12:
    case WL_LINK_RAW_14:
    case WL_LINK_IPV4:
    case WL_LINK_IPV6:
        return wl_nibble(c, type, WL_MALFORMED);
    case WL_LINK_NULL:
    case WL_LINK_LOOP:
        return wl_family(c, type);
    case WL_LINK_PPP_DIRECTION:
        if (!wl_has(c, 1))
            return WL_CUT;
        wl_pass(c, 1);
        return wl_ppp_framed(c, type);
    case WL_LINK_PPP:
    case WL_LINK_PPP_HDLC:
        return wl_ppp_framed(c, type);
    case WL_LINK_PPPOE:
        *type = WL_TYPE_PPPOE;
        return WL_OK;
#ifndef __bpf__
    case WL_LINK_80211:
        return wl_80211(c, type);
    case WL_LINK_RADIOTAP:
        return wl_radiotap(c, type);
    case WL_LINK_NFLOG:
        return wl_nflog(c, type);
#endif
    }
    return WL_LINK_TYPE;
}

/* Whether an Ethernet frame that leads to an IP packet seems to begin `where` bytes on. */
WL_INLINE int wl_is_framed(const struct wl_cursor *c, u32 where)
{
    if (!wl_has(c, where + 15))
        return 0;
    switch (wl_be16(c->at + where + 12)) {
    case WL_TYPE_IPV4:
        return c->at[where + 14] >> 4 == 4;
    case WL_TYPE_IPV6:
        return c->at[where + 14] >> 4 == 6;
    case WL_TYPE_VLAN:
    case WL_TYPE_QINQ:
    case WL_TYPE_QINQ_OLD:
    case WL_TYPE_MPLS:
    case WL_TYPE_PPPOE:
        return 1;
    }
    return 0;
}

/* Below the last label is an IP packet or, perhaps, a pseudowire. */
WL_INLINE int wl_mpls(struct wl_cursor *c, u16 *type)
{
    int bottom;

    if (!wl_has(c, 4))
        return WL_CUT;
    bottom = c->at[2] & 1;
    wl_pass(c, 4);
    return bottom ? wl_nibble(c, type, WL_PSEUDOWIRE) : WL_OK;
}

/* An Ethernet frame inside MPLS, perhaps behind a control word. */
WL_INLINE enum wl_reason wl_pseudowire(struct wl_cursor *c, u16 *type)
{
    if (wl_has(c, 2) && wl_be16(c->at) == 0 && wl_is_framed(c, 4))
        wl_pass(c, 4);
    else if (!wl_is_framed(c, 0))
        return WL_NOT_IP;
    return wl_typed(c, 14, 12, type);
}

/* Cisco's metadata, the group of the sender: version, number of options, one option of 4 bytes, ethertype.
 * It and pseudowires are not among the tags, since their sizes would multiply the paths that the verifier walks. */
WL_INLINE enum wl_reason wl_metadata(struct wl_cursor *c, u16 *type)
{
    if (!wl_has(c, 8))
        return WL_CUT;
    return wl_be16(c->at) == 0x0101 ? wl_typed(c, 8, 6, type) : WL_NOT_IP;
}

/* Pass tags and labels until `type` is one of the two IP versions, or MPLS holds something else: WL_PSEUDOWIRE. */
WL_INLINE int wl_tags(struct wl_cursor *c, u16 *type, u16 *flags)
{
    u32 tags = 0, snaps = 0;
    int reason = WL_OK;

    /* All tags, one SNAP header, one PPPoE header, and the IP version after them. */
    for (int i = 0; i < WL_MOST_TAGS + 3; i++) {
        u16 now = *type;

        if (now == WL_TYPE_IPV4 || now == WL_TYPE_IPV6)
            return WL_OK;
        if (now == WL_TYPE_VLAN || now == WL_TYPE_QINQ || now == WL_TYPE_QINQ_OLD) {
            if (tags++ == WL_MOST_TAGS)
                return WL_LAYERS;
            reason = wl_typed(c, 4, 2, type);
            *flags |= WL_VLAN;
        } else if (now == WL_TYPE_MPLS || now == WL_TYPE_MPLS_MULTICAST) {
            if (tags++ == WL_MOST_TAGS)
                return WL_LAYERS;
            *flags |= WL_MPLS;
            reason = wl_mpls(c, type);
        } else if (now == WL_TYPE_PPPOE) {
            if (!wl_has(c, 6))
                return WL_CUT;
            wl_pass(c, 6);
            reason = wl_ppp(c, type);
            *flags |= WL_PPPOE;
        } else if (now < 0x0600 && snaps++ == 0) {
            reason = wl_snap(c, type);
        } else {
            return WL_NOT_IP;
        }
        if (reason)
            return reason;
    }
    return WL_LAYERS;
}

#endif
