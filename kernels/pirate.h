/* Pirate: response latency from client packets alone: what all methods share (docs/reference/pirate.md is the law).
 *
 * Law: a method processes the packets that one client sends to one server, one at a time, and returns for every epoch an
 * estimate, or the reason for having none. Integer only; the caller owns all memory. */
#ifndef WIRELAG_PIRATE_H
#define WIRELAG_PIRATE_H

#include "types.h"

#ifdef __cplusplus
#define _Static_assert static_assert
#endif

/* A larger rule. In eBPF it is a separate function, which the verifier checks once for all inputs, including null; loops are not
 * unrolled, because the verifier would walk every path. */
#ifdef __bpf__
#define WL_RULE __attribute__((noinline))
#define WL_LOOP _Pragma("clang loop unroll(disable)")
#else
#define WL_RULE WL_INLINE
#define WL_LOOP
#endif

enum wl_pirate_method {
    WL_PIRATE_GAP,
    WL_PIRATE_MODES,
    WL_PIRATE_ACK,
    WL_PIRATE_IN_FLIGHT,
    WL_PIRATE_SYN,
    WL_PIRATE_AUTO,
    WL_PIRATE_BLIND,
    WL_PIRATE_METHODS
};

enum wl_pirate_reason {
    WL_PIRATE_ANSWERED,
    WL_PIRATE_TOO_FEW,
    WL_PIRATE_SPONTANEOUS, /* open loop: requests that no response triggered */
    WL_PIRATE_JOINED,      /* in mid-flow: packets in flight unknown */
    WL_PIRATE_THINK,       /* think time that cannot be told from latency */
    WL_PIRATE_REORDERED,
    WL_PIRATE_COALESCED, /* several requests in a packet */
    WL_PIRATE_NO_GAP,    /* no prominent gap */
    WL_PIRATE_CROWD,     /* several connections in one flow */
    WL_PIRATE_INITIAL,   /* an opening flight cut by the initial congestion window */
    WL_PIRATE_NOT_TCP,   /* the method needs TCP headers */
    WL_PIRATE_TOO_FAST,  /* these three are the caller's: faster than half a round trip */
    WL_PIRATE_MULTICAST, /* to a multicast or broadcast address */
    WL_PIRATE_TUNNEL,    /* a tunnel, which may carry several connections */
    WL_PIRATE_PACED,     /* open loop: packets at a pace of their own */
    WL_PIRATE_ACKS,      /* small packets that may be requests or acknowledgements */
    WL_PIRATE_REASONS
};

/* What a confidence rests on, besides waits. */
enum wl_pirate_trait {
    WL_PIRATE_STAMPED = 1,       /* the client sends timestamps */
    WL_PIRATE_TIMED = 2,         /* and the tick of the server's clock was measured */
    WL_PIRATE_SIZED = 4,         /* the size of responses is known */
    WL_PIRATE_EXACT = 8,         /* and all bytes are counted */
    WL_PIRATE_IN_STEP = 16,      /* what is outstanding is known */
    WL_PIRATE_FAR = 32,          /* several routers are between the client and the point */
    WL_PIRATE_LARGE_OPENING = 64 /* the connection began with a packet in which several requests may be hidden */
};

enum wl_client_has { WL_HAS_TCP = 1, WL_HAS_TIMESTAMPS = 2, WL_HAS_IP_ID = 4, WL_HAS_TRAVELLED = 8 /* see wl_has_travelled */ };

/* Bits of tcp_flags. */
enum wl_client_flag { WL_CLIENT_FIN = 1, WL_CLIENT_SYN = 2, WL_CLIENT_RST = 4, WL_CLIENT_PSH = 8, WL_CLIENT_ACK = 16 };

/* A packet from the client to the server. */
struct wl_client_packet {
    s64 time_ns;
    u64 key;
    u32 seq, ack, tsval, tsecr;
    u32 length, payload; /* length of the IP packet; payload above the transport header */
    u16 ip_id, mss;      /* mss: of a SYN, else 0 */
    u8 tcp_flags, has;
};

struct wl_pirate {
    s64 epoch_ns, gap_ns; /* gap_ns: the threshold of method gap */
    u32 fewest;           /* completions that an epoch needs */
    u8 literal;           /* modes: Algorithm 2 read literally */
};

/* The result of a flow for an epoch. */
struct wl_epoch {
    u64 key;
    s64 start_ns, end_ns;
    s64 sum_ns;                                 /* sum of `count` latencies */
    s64 batch_sum_ns, think_sum_ns, network_ns; /* network_ns: SYN -> ACK, -1: unknown */
    u64 waits;                                  /* auto: the last eight, one byte each, the newest lowest; 0 in other methods */
    u32 count, batch_count, think_count;        /* count 0: abstained */
    u32 requests, lost;
    u32 waits_before;                /* the four before these */
    u16 in_flight, riding, doubts;   /* riding: a bit per wait; << 12: trailing */
    u8 turns, more;                  /* of auto: waits of the epoch; acknowledgements that came after them */
    u8 reason, method, traits, tick; /* of auto: enum wl_pirate_trait; the number of the server's tick */
};

/* Whether a packet passed more than two routers: systems begin with 64, 128 or 255. */
WL_INLINE int wl_has_travelled(u32 hop_limit)
{
    u32 first = hop_limit <= 64 ? 64 : hop_limit <= 128 ? 128 : 255;

    return hop_limit && first - hop_limit > 2;
}

/* How far a is behind b, modulo 2^32: times, sequence numbers, timestamps. */
WL_INLINE int wl_behind(u32 a, u32 b)
{
    return (int)(a - b);
}

#endif
