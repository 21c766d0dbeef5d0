/* What gap, modes, ack and window share: which packets are requests, and when an epoch ends (docs/reference/pirate-modes.md,
 * "What they share").
 *
 * Law: pure ACKs and retransmissions are not requests; a full packet is continued by the next. Integer only; the caller owns all
 * memory. */
#ifndef WIRELAG_PIRATE_FRONT_H
#define WIRELAG_PIRATE_FRONT_H

#include "pirate.h"

#define WL_PIRATE_LATEST (1ll << 62)
#define WL_FULL_LENGTH 1400          /* bytes: after such a packet the sender has more to send */
#define WL_RETRANSMITTED (1 << 24)   /* bytes by which a retransmission may lie behind */
#define WL_EPOCH_LONGEST 4           /* epoch lengths */
#define WL_MOST_GAPS 65535           /* per epoch */
#define WL_MOST_NETWORK 0xffffffffll /* ns */

enum wl_front_flag {
    WL_FRONT_WAITS = 1, /* for the ACK of a SYN */
    WL_FRONT_ANY = 2,   /* a request packet was seen */
    WL_FRONT_NEXT = 4,
    WL_FRONT_FULL = 8,
    WL_FRONT_NOT_TCP = 16,
    WL_FRONT_ACK = 32,   /* an ACK number is known */
    WL_FRONT_MOVED = 64, /* since the last request */
    WL_FRONT_OPENING = 128
};

/* What the methods share. */
struct wl_front {
    s64 start_ns, last_ns;
    u32 network_ns; /* 0: unknown */
    u32 next;
    u16 requests, gaps, lost;
    u8 flags, spare;
};

/* The meaning of a packet for a method. */
struct wl_turn {
    s64 time_ns, gap_ns; /* gap: since the previous request packet */
    u8 anew;             /* a SYN that is not a repetition: the flow begins again */
    u8 ends;             /* FIN or RST */
    u8 acks;             /* it has an ACK number */
    u8 packet;           /* it belongs to a request */
    u8 first;            /* the first request packet of the flow */
    u8 continues;        /* the previous packet was full */
};

WL_INLINE void wl_begin_telling(struct wl_epoch *out, const struct wl_pirate *s, s64 start_ns, s64 end_ns)
{
    s64 latest_ns = start_ns + WL_EPOCH_LONGEST * s->epoch_ns;

    *out = (struct wl_epoch){0};
    out->start_ns = start_ns;
    out->end_ns = end_ns < latest_ns ? end_ns : latest_ns;
    out->network_ns = -1;
}

/* Fill in the fields of an epoch that are the same in all methods. */
WL_INLINE void wl_tell(struct wl_epoch *out, u8 method, u8 reason, s64 sum_ns, u64 count)
{
    if (reason || count > ~0u)
        count = reason ? 0 : ~0u;
    if (reason)
        sum_ns = 0;
    out->method = method;
    out->reason = reason;
    out->sum_ns = out->batch_sum_ns = sum_ns;
    out->count = out->batch_count = (u32)count;
}

WL_INLINE u16 wl_burst_size(u32 requests, u32 bursts)
{
    u64 size = bursts ? (2ull * requests + bursts) / (2ull * bursts) : 0;

    return size < 65535 ? (u16)size : 65535;
}

WL_INLINE u16 wl_one_more(u16 n)
{
    return n < 65535 ? (u16)(n + 1) : n;
}

WL_INLINE int wl_bad_time(const struct wl_client_packet *p)
{
    return p->time_ns < 0 || p->time_ns >= WL_PIRATE_LATEST;
}

/* Steps 2 and 3 of the law. */
WL_INLINE void wl_front_open(struct wl_front *f, const struct wl_client_packet *p, struct wl_turn *turn)
{
    s64 since_ns = turn->time_ns - f->last_ns;
    u8 waits = f->flags & WL_FRONT_WAITS;

    if (p->has & WL_HAS_TCP && p->tcp_flags & WL_CLIENT_SYN) {
        turn->anew = !waits;
        f->lost = waits ? wl_one_more(f->lost) : f->lost;
        f->last_ns = waits ? turn->time_ns : f->last_ns;
        return;
    }
    f->flags &= (u8)~WL_FRONT_WAITS;
    f->flags |= p->has & WL_HAS_TCP ? 0 : WL_FRONT_NOT_TCP;
    turn->acks = p->has & WL_HAS_TCP && p->tcp_flags & WL_CLIENT_ACK;
    turn->ends = p->has & WL_HAS_TCP && p->tcp_flags & (WL_CLIENT_FIN | WL_CLIENT_RST);
    if (waits && turn->acks) {
        since_ns = since_ns < WL_MOST_NETWORK ? since_ns : WL_MOST_NETWORK;
        f->network_ns = since_ns > 1 ? (u32)since_ns : 1;
    }
}

/* Step 5: whether the packet carries a new request, or a new part of one. */
WL_INLINE int wl_front_carries(struct wl_front *f, const struct wl_client_packet *p)
{
    u32 end = p->seq + p->payload;
    int ahead;

    if (!(p->has & WL_HAS_TCP))
        return 1;
    if (!p->payload || p->tcp_flags & WL_CLIENT_SYN)
        return 0;
    ahead = wl_behind(end, f->next);
    if (f->flags & WL_FRONT_NEXT && ahead <= 0 && ahead > -WL_RETRANSMITTED) {
        f->lost = wl_one_more(f->lost);
        return 0;
    }
    f->next = end;
    f->flags |= WL_FRONT_NEXT;
    return 1;
}

/* Step 6. */
WL_INLINE void wl_front_request(struct wl_front *f, const struct wl_client_packet *p, struct wl_turn *turn)
{
    turn->packet = 1;
    turn->first = !(f->flags & WL_FRONT_ANY);
    turn->continues = !!(f->flags & WL_FRONT_FULL);
    turn->gap_ns = turn->time_ns - f->last_ns;
    f->requests = (u16)(f->requests + !turn->continues);
    f->gaps = (u16)(f->gaps + !turn->first);
    f->start_ns = turn->first ? turn->time_ns : f->start_ns;
    f->last_ns = turn->time_ns;
    f->flags &= (u8)~WL_FRONT_FULL;
    f->flags |= (u8)(WL_FRONT_ANY | (p->length >= WL_FULL_LENGTH ? WL_FRONT_FULL : 0));
}

/* The common part of all methods for a packet. */
WL_INLINE struct wl_turn wl_front_take(struct wl_front *f, const struct wl_client_packet *p)
{
    struct wl_turn turn = {0};

    if (wl_bad_time(p))
        return turn;
    turn.time_ns = p->time_ns > f->last_ns ? p->time_ns : f->last_ns;
    wl_front_open(f, p, &turn);
    if (wl_front_carries(f, p))
        wl_front_request(f, p, &turn);
    return turn;
}

/* Step 7: whether the epoch is over. */
WL_INLINE int wl_front_over(const struct wl_front *f, const struct wl_pirate *s, const struct wl_turn *turn, u64 completions)
{
    s64 long_ns = turn->time_ns - f->start_ns;

    if (turn->ends || !turn->packet)
        return turn->ends;
    if (f->requests == WL_MOST_GAPS || f->gaps == WL_MOST_GAPS)
        return 1;
    return long_ns >= s->epoch_ns && (completions >= s->fewest || long_ns >= WL_EPOCH_LONGEST * s->epoch_ns);
}

/* The end time of the epoch that ends with this packet. */
WL_INLINE s64 wl_front_ending(const struct wl_front *f, const struct wl_turn *turn)
{
    return turn->anew ? f->last_ns : turn->time_ns;
}

/* End the epoch: 1 if there is something to report. The method adds its estimate, and resets its sums. */
WL_INLINE int wl_front_end(struct wl_front *f, const struct wl_pirate *s, s64 end_ns, struct wl_epoch *out)
{
    int told = f->requests || f->gaps || f->lost;

    wl_begin_telling(out, s, f->start_ns, end_ns);
    out->requests = f->requests;
    out->lost = f->lost;
    if (f->network_ns)
        out->network_ns = f->network_ns;
    f->start_ns = end_ns;
    f->requests = f->gaps = f->lost = 0;
    return told;
}

/* After the epoch: an ended flow is reset; after a SYN it waits, and is open. */
WL_INLINE struct wl_front wl_front_anew(const struct wl_turn *turn)
{
    struct wl_front f = {0};

    if (turn->anew) {
        f.start_ns = f.last_ns = turn->time_ns;
        f.flags = WL_FRONT_WAITS | WL_FRONT_OPENING;
    }
    return f;
}

#endif
