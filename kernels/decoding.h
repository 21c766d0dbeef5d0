/* The state of decoding: the row, the cursor that reads the frame, and stages.
 *
 * Safety: every read goes through wl_has(), which compares with the end of the captured bytes. */
#ifndef WIRELAG_DECODING_H
#define WIRELAG_DECODING_H

#include "hash.h"

#define WL_MOST_TAGS 8       /* VLAN tags and MPLS labels before one IP header */
#define WL_MOST_FIELDS 16    /* fields of NFLOG before its packet */
#define WL_MOST_EXTENSIONS 8 /* extension headers of one IP packet */
#define WL_MOST_OPTIONS 40   /* bytes of TCP options, which bounds their number */
#define WL_MOST_TUNNELS 4
#define WL_MOST_PREFIX 64

enum wl_reason { WL_OK, WL_LINK_TYPE, WL_NOT_IP, WL_CUT, WL_MALFORMED, WL_LAYERS, WL_NO_TIMESTAMP, WL_REASONS };

#define WL_PSEUDOWIRE (WL_REASONS + 1) /* between stages only: MPLS without an IP packet */

enum wl_kind { WL_OTHER, WL_TCP, WL_UDP, WL_ICMP, WL_DNS, WL_NTP, WL_QUIC, WL_ESP, WL_WIREGUARD, WL_STAMP };

enum wl_flag {
    WL_IPV6 = 1 << 0,
    WL_REVERSE = 1 << 1,
    WL_FRAGMENT = 1 << 2,
    WL_LATER = 1 << 3,
    WL_SHORT = 1 << 4,
    WL_TIMESTAMPS = 1 << 5,
    WL_SACK = 1 << 6,
    WL_TUNNEL = 1 << 7,
    WL_INNER = 1 << 8,
    WL_VLAN = 1 << 9,
    WL_MPLS = 1 << 10,
    WL_PPPOE = 1 << 11,
    WL_PREFIX_CUT = 1 << 12,
    WL_UNSIZED = 1 << 13,
    WL_OPTIONS = 1 << 14,
};

/* The parts of a packet id. */
enum wl_field { WL_FIELD_FLOW = 1, WL_FIELD_LENGTH = 2, WL_FIELD_IP_ID = 4, WL_FIELD_TRANSPORT = 8 };

enum wl_link { /* as numbered in capture files */
    WL_LINK_NULL = 0,
    WL_LINK_ETHERNET = 1,
    WL_LINK_PPP = 9,
    WL_LINK_RAW_12 = 12,
    WL_LINK_RAW_14 = 14,
    WL_LINK_PPP_HDLC = 50,
    WL_LINK_PPPOE = 51,
    WL_LINK_RAW = 101,
    WL_LINK_CHDLC = 104,
    WL_LINK_80211 = 105,
    WL_LINK_LOOP = 108,
    WL_LINK_SLL = 113,
    WL_LINK_RADIOTAP = 127,
    WL_LINK_PPP_DIRECTION = 204,
    WL_LINK_IPV4 = 228,
    WL_LINK_IPV6 = 229,
    WL_LINK_NFLOG = 239,
    WL_LINK_SLL2 = 276,
};

enum wl_type { /* ethertypes; other layers are translated into them */
    WL_TYPE_IPV4 = 0x0800,
    WL_TYPE_BRIDGE = 0x6558, /* an Ethernet frame inside GRE or Geneve */
    WL_TYPE_VLAN = 0x8100,
    WL_TYPE_IPV6 = 0x86DD,
    WL_TYPE_MPLS = 0x8847,
    WL_TYPE_MPLS_MULTICAST = 0x8848,
    WL_TYPE_PPPOE = 0x8864,
    WL_TYPE_PPP = 0x880B,
    WL_TYPE_QINQ = 0x88A8,
    WL_TYPE_ERSPAN = 0x88BE,
    WL_TYPE_METADATA = 0x8909,
    WL_TYPE_QINQ_OLD = 0x9100,
    WL_TYPE_NONE = 0xFFFF,
};

struct wl_decode_options {
    u64 seed;    /* for both hashes */
    u32 fields;  /* enum wl_field bits */
    u32 prefix;  /* payload bytes in the packet id, at most WL_MOST_PREFIX */
    u32 tunnels; /* follow tunnels to the innermost packet */
};

struct wl_row {
    u64 src_high, src_low, dst_high, dst_low;
    u64 flow_key, packet_id, transaction;
    u32 payload_length, seq, ack, tsval, tsecr;
    u16 src_port, dst_port, window, ip_id, flags, payload_offset;
    u8 protocol, traffic_class, kind, message;
};

/* Fields of an IP packet that are not in its row. Lengths are as claimed. */
struct wl_packet {
    u32 wire_length;
    u32 ip_length, ip_payload; /* the payload shrinks as extension headers are passed */
    u32 ip_id, fragment;       /* fragment offset in bytes + 1 if more follow */
    u32 icmp, icmp_rest;       /* type and code; bytes 4 to 7 */
    u32 hop_limit;             /* IPv4: time to live */
};

/* The position of a stage, and the end of what it may read. */
struct wl_cursor {
    const u8 *frame, *at, *end;
#ifdef __bpf__
    u32 left; /* the verifier accepts only the frame's own end, so the end of an IP payload is counted separately */
#endif
};

/* A cursor between two stages. The verifier does not track pointers through memory, so in eBPF it is stored as numbers. */
#ifdef __bpf__
struct wl_place {
    u32 offset, left;
};
#else
struct wl_place {
    struct wl_cursor cursor;
};
#endif

/* A frame being decoded: the state kept from stage to stage. */
struct wl_decoding {
    struct wl_place place;   /* where the next stage continues */
    struct wl_place options; /* the TCP options not read yet */
    u32 type;                /* the ethertype found last */
    struct wl_packet packet;
    struct wl_row row;
};

/* A stage of decoding. In the extension all stages are inlined. In eBPF each is a separate function, which the verifier checks
 * once for all inputs: so the stages' costs add up; inlined they would multiply and exceed its limit. */
#ifdef __bpf__
#ifndef WL_CONTEXT
#define WL_CONTEXT struct xdp_md
#endif
#define WL_STAGE __attribute__((noinline))
#define WL_RARE_STAGE WL_STAGE
#define WL_MOST_OFFSET 0x3FFF /* the verifier needs a bound */
#else
struct wl_frame {
    const u8 *data, *data_end;
};
#define WL_CONTEXT struct wl_frame
#define WL_STAGE WL_INLINE
#define WL_RARE_STAGE static __attribute__((noinline, cold, unused))
#endif

/* Whether the next n bytes may be read. */
WL_INLINE int wl_has(const struct wl_cursor *c, u32 n)
{
#ifdef __bpf__
    if (c->left < n)
        return 0;
#endif
    return c->at + n <= c->end;
}

WL_INLINE void wl_pass(struct wl_cursor *c, u32 n)
{
    c->at += n;
#ifdef __bpf__
    c->left -= n;
#endif
}

/* Read nothing after the next n bytes. */
WL_INLINE void wl_limit(struct wl_cursor *c, u32 n)
{
#ifdef __bpf__
    if (c->left > n)
        c->left = n;
#else
    if ((u64)(c->end - c->at) > n)
        c->end = c->at + n;
#endif
}

WL_INLINE u32 wl_offset(const struct wl_cursor *c)
{
    return (u32)(c->at - c->frame);
}

/* Continue reading at a place; return whether it lies inside the frame. */
WL_INLINE int wl_resume(struct wl_cursor *c, WL_CONTEXT *context, const struct wl_place *place)
{
#ifdef __bpf__
    c->frame = (const u8 *)(long)context->data;
    c->end = (const u8 *)(long)context->data_end;
    c->left = place->left;
    if (place->offset > WL_MOST_OFFSET)
        return 0;
    c->at = c->frame + place->offset;
    return c->at <= c->end;
#else
    (void)context;
    *c = place->cursor;
    return 1;
#endif
}

WL_INLINE void wl_suspend(const struct wl_cursor *c, struct wl_place *place)
{
#ifdef __bpf__
    place->offset = wl_offset(c);
    place->left = c->left;
#else
    place->cursor = *c;
#endif
}

WL_INLINE void wl_begin(WL_CONTEXT *context, struct wl_place *place)
{
#ifdef __bpf__
    place->offset = 0;
    place->left = ~0u;
#else
    place->cursor = (struct wl_cursor){context->data, context->data, context->data_end};
#endif
}

#endif
