/* Pirate, method auto: the record of a flow, and the use of TCP timestamps (docs/reference/pirate.md, "The record", "Clocks").
 *
 * Law: a client echoes the time at which the server sent what it now acknowledges. So the echo shows how late a packet is after
 * the response, once the tick of the server's clock is known. */
#ifndef WIRELAG_PIRATE_RECORD_H
#define WIRELAG_PIRATE_RECORD_H

#include "pirate.h"

#define WL_UNITS(us) ((u32)((us) * 1000ull >> 10))
#define WL_AUTO_OLD (1u << 30)  /* units: older times are forgotten */
#define WL_AUTO_BACK (1u << 24) /* units: nothing is dated back further */
#define WL_AUTO_LONGEST 38      /* ns, as a power of two: a silence that ends everything, and the longest latency */
#define WL_AUTO_MOST 1024       /* outstanding requests */
#define WL_AUTO_CROWDS 3
#define WL_AUTO_CROWD 255          /* most requests of a crowd */
#define WL_MSS_VALID 4             /* votes */
#define WL_MSS_TOLD 255            /* by the SYN */
#define WL_TICK_LEAST (1u << 17)   /* units: the shortest measurement of a clock */
#define WL_TICK_LONGEST (1u << 20) /* units: by then a clock has ticked, if it does */
#define WL_TICK_ASSUMED 4          /* 1 ms */
#define WL_TICK_NO_DOUBT 15

#define WL_ON(f, flag) (((f)->flags & (flag)) != 0)
#define WL_MORE(count) ((count) = (u16)((count) < 65535 ? (count) + 1 : 65535))

enum wl_auto_flag {
    WL_AUTO_MEASURED = 1,      /* a measurement was certain of the server's tick */
    WL_AUTO_OPEN = 2,          /* a packet other than a SYN was seen */
    WL_AUTO_STAMPED = 4,       /* there are timestamps */
    WL_AUTO_RESPONSE = 8,      /* the size of responses is known */
    WL_AUTO_REQUEST = 16,      /* the size of requests is known, too */
    WL_AUTO_ABSOLUTE = 32,     /* bytes are counted from the first one, which was a SYN */
    WL_AUTO_HOLE = 64,         /* bytes sent before the last ones are missing */
    WL_AUTO_FULL = 128,        /* a payload of this flight filled its packet */
    WL_AUTO_DONE = 256,        /* completed is known, in this busy period */
    WL_AUTO_MISSIZED = 512,    /* the size of responses was wrong */
    WL_AUTO_IN_STEP = 1024,    /* what is outstanding is known */
    WL_AUTO_ADVANCED = 2048,   /* advanced is known */
    WL_AUTO_BUSY_KNOWN = 4096, /* busy_since is known */
    WL_AUTO_PUSHES = 8192,     /* the client marks the ends of its writes */
    WL_AUTO_SPOILT = 16384,    /* something wrong was believed in this epoch */
    WL_AUTO_NOT_TCP = 32768    /* a packet of this epoch had no TCP header */
};

struct wl_auto_flow {
    s64 start_ns;                                  /* start of the epoch */
    s64 base_ns;                                   /* the minimum of time minus echo */
    s64 area;                                      /* units: integral of N dt, with the ages that requests had before the epoch */
    u64 waits;                                     /* the last eight, see wl_auto_code; the newest lowest */
    u32 waits_before;                              /* the four before these */
    u32 busy_sum, flight_sum, think_sum;           /* units, modulo 2^32: parts of the epoch, so they fit */
    u32 last, advanced, requested, completed;      /* times of: a packet, an advance, a request, a completion */
    u32 busy_since, deferred_at, hole_at, base_at; /* base_at: when own_ahead last changed */
    u32 flight_at, flight_before_at;               /* start of this flight, and of the previous one */
    u32 turn_at, turn_before_at;                   /* the last advances before these */
    u32 crowd_at[WL_AUTO_CROWDS];                  /* requests, newest first: mean times */
    u32 tick_from, tick_gap, tick_echo, tick_own;  /* the measurement of clocks */
    u32 next_seq, counted_seq, acked, first_ack;
    u32 boundary, hole_from, fresh; /* fresh: response bytes since the last request */
    u32 response, origin, total;    /* total: requests since origin, an acknowledgement */
    u32 echo_origin, own_ahead;     /* timestamps: an echo; the minimum by which the client's clock is ahead of it */
    int usual;                      /* lateness of prompt acknowledgements */
    u32 handshake, latency, steady; /* units; steady: latency for decisions */
    u32 id_order : 6, id_steps : 6, mean_votes : 6; /* votes */
    u32 strays : 4, far : 1;                        /* far: several routers are between the client and us */
    u32 opened : 2, opening : 7; /* the first packets with data: their number, and the code of the largest size */
    u16 completions, busy_count, flight_count, requests, think_count; /* an epoch ends before they overflow */
    u16 outstanding, deferred, in_flight, flight, last_flight, largest_flight;
    u16 riding : 12;                   /* for each wait whether a request brought its end, the newest lowest */
    u16 trailing : 4;                  /* advances that brought more of a response, late: at most 15 */
    u16 turn_fresh, turn_before_fresh; /* fresh at the start of a flight, in units of 16 bytes */
    u16 last_id, spontaneous, lost, lone, reordered, coalesced;
    u16 mss, mean_request; /* mean_request: in 1/8 bytes */
    u16 request, hole_length, flags;
    u8 crowd_size[WL_AUTO_CROWDS];
    u8 turn_outstanding, turn_before_outstanding; /* at most 255 */
    u8 response_votes, request_votes, mss_votes;
    u8 echo_tick, own_tick; /* the tick's number; << 4: what a measurement gave instead */
    u8 forced, unread;      /* unread: responses that ended with the last advance */
    u8 turns, more;         /* waits of the epoch, and advances that brought more of a response: at most 255 */
};

_Static_assert(sizeof(struct wl_auto_flow) == 256, "a flow's record has 256 bytes");

/* A packet on its way through the rules. */
struct wl_auto_now {
    u32 t, dt, payload, late, patience;
    u32 ghost, ghost_at; /* bytes of a request that was lost before us, and when it was sent */
    u16 id_ahead;
    u8 older, behind, pushed; /* behind: its bytes are not the newest */
    u8 stamped, timed;        /* late is known, if the clock ticks as assumed; the clock surely does */
};

WL_INLINE s64 wl_min(s64 a, s64 b)
{
    return a < b ? a : b;
}

WL_INLINE s64 wl_max(s64 a, s64 b)
{
    return a > b ? a : b;
}

/* k requests were sent. They are remembered in crowds, three of which have about as many as are in flight. */
WL_INLINE void wl_auto_remember(struct wl_auto_flow *f, u32 at, u32 k)
{
    u32 size = f->crowd_size[0], later;

    k = k < WL_AUTO_CROWD ? k : WL_AUTO_CROWD;
    if (3 * size + 2 >= f->in_flight || size + k > WL_AUTO_CROWD) {
        f->crowd_at[2] = f->crowd_at[1];
        f->crowd_at[1] = f->crowd_at[0];
        f->crowd_size[2] = f->crowd_size[1];
        f->crowd_size[1] = f->crowd_size[0];
        size = 0;
    }
    size += k;
    later = size > k && wl_behind(at, f->crowd_at[0]) > 0 ? at - f->crowd_at[0] : 0;
    f->crowd_at[0] = size > k ? f->crowd_at[0] + (u32)((u64)later * k / size) : at;
    f->crowd_size[0] = (u8)size;
}

/* A wait or a size in one byte: eight steps per octave, each at most an eighth of it. */
WL_INLINE u8 wl_auto_code(u32 value)
{
    u32 octave = 63 - wl_leading_zeros(value | 1);

    return (u8)(octave < 3 ? value : 8 * (octave - 2) + (value >> (octave - 3) & 7));
}

/* The least value with this code. */
WL_INLINE u32 wl_auto_decoded(u32 code)
{
    return code < 8 ? code : (8 + (code & 7)) << ((code >> 3) - 1);
}

/* The first response to a flight, or a part of it, ended `wait` after the flight began. */
WL_RULE int wl_auto_remember_wait(struct wl_auto_flow *f, u32 wait, int rides)
{
    if (!f)
        return 0;
    f->waits_before = f->waits_before << 8 | (u32)(f->waits >> 56);
    f->waits = f->waits << 8 | wl_auto_code(wait);
    f->riding = (u16)(f->riding << 1 | (rides & 1)) & 4095;
    f->turns = (u8)(f->turns < 255 ? f->turns + 1 : 255);
    return 0;
}

/* The sum of the ages of outstanding requests at t. The oldest known crowd stands for older ones. */
WL_INLINE s64 wl_auto_ages(const struct wl_auto_flow *f, u32 t)
{
    u32 left = (u32)f->outstanding + f->deferred;
    s64 ages = 0;

    for (int i = 0; i < WL_AUTO_CROWDS; i++) {
        u32 oldest = i == WL_AUTO_CROWDS - 1 || !f->crowd_size[i + 1];
        u32 of_these = oldest || left < f->crowd_size[i] ? left : f->crowd_size[i];

        if (!f->crowd_size[i])
            break;
        ages += of_these * wl_max(wl_behind(t, f->crowd_at[i]), 0);
        left -= of_these;
    }
    return ages;
}

/* Start an epoch at t. Everything starts at 0, except that outstanding requests keep their age, and a client that thinks
 * continues to, as one does that waits for no response. */
WL_INLINE void wl_auto_begin_epoch(struct wl_auto_flow *f, u32 t)
{
    f->area = wl_auto_ages(f, t);
    f->busy_sum = f->flight_sum = f->think_sum = 0;
    f->completions = f->busy_count = f->flight_count = f->requests = f->think_count = 0;
    f->lost = f->reordered = f->coalesced = 0;
    f->spontaneous >>= 1;
    f->waits = f->waits_before = 0;
    f->turns = f->more = 0;
    f->riding = f->trailing = 0;
    f->lone = (f->flags & (WL_AUTO_STAMPED | WL_AUTO_MEASURED)) == (WL_AUTO_STAMPED | WL_AUTO_MEASURED) ? 0 : f->lone >> 1;
    f->flags &= (u16) ~(WL_AUTO_SPOILT | WL_AUTO_NOT_TCP);
}

WL_INLINE s64 wl_tick_ns(u32 number)
{
    switch (number) {
    case 1:
        return 1000;
    case 2:
        return 10000;
    case 3:
        return 100000;
    case 4:
        return 1000000;
    case 5:
        return 2000000;
    case 6:
        return 4000000;
    case 7:
        return 10000000;
    case 8:
        return 100000000;
    default:
        return 0;
    }
}

/* The tick of a clock that moved by `ticks` in `span` units; 0 if none fits. */
WL_INLINE u8 wl_tick_of(u32 span, u32 ticks)
{
    s64 span_ns = (s64)span << 10;

    if (ticks < 8)
        return 0;
    for (u8 number = 1; number <= 8; number++) {
        s64 off = (s64)ticks * wl_tick_ns(number) - span_ns;

        if (off <= span_ns >> 2 && -off <= span_ns >> 2)
            return number;
    }
    return 0;
}

/* A clock gets another tick when two measurements in a row agree on it; return whether it now has. */
WL_INLINE int wl_tick_settle(u8 *tick, u8 measured)
{
    u8 believed = *tick & 15, doubted = *tick >> 4;

    if (measured == believed) {
        *tick = (u8)(believed | WL_TICK_NO_DOUBT << 4);
        return 0;
    }
    if (measured != doubted) {
        *tick = (u8)(believed | measured << 4);
        return 0;
    }
    *tick = (u8)(measured | WL_TICK_NO_DOUBT << 4);
    return 1;
}

WL_INLINE void wl_auto_measure_from(struct wl_auto_flow *f, const struct wl_client_packet *p, const struct wl_auto_now *n)
{
    f->tick_from = n->t;
    f->tick_gap = n->dt;
    f->tick_echo = p->tsecr;
    f->tick_own = p->tsval;
}

/* A clock gets another tick: from the first packet on, which was prompt, if no measurement had been certain of the old one; else
 * from here. */
WL_INLINE void wl_auto_clock_from(struct wl_auto_flow *f, const struct wl_client_packet *p, u32 t)
{
    f->usual = (int)(wl_tick_ns(f->echo_tick & 15) >> 11);
    if (!WL_ON(f, WL_AUTO_MEASURED)) {
        f->base_ns = p->time_ns - ((s64)(t - f->base_at) << 10);
        return;
    }
    f->base_ns = p->time_ns;
    f->echo_origin = p->tsecr;
    f->own_ahead = p->tsval - p->tsecr;
    f->base_at = t;
}

WL_INLINE void wl_auto_first_clock(struct wl_auto_flow *f, const struct wl_client_packet *p, u32 t)
{
    f->echo_origin = p->tsecr;
    f->own_ahead = p->tsval - p->tsecr;
    f->base_at = t;
    wl_auto_clock_from(f, p, t);
}

/* Measure both clocks between advances. A packet is late by at most the silence before it: silences bound the error. */
WL_INLINE void wl_auto_tick(struct wl_auto_flow *f, const struct wl_client_packet *p, const struct wl_auto_now *n, int advances)
{
    u32 span;
    int changed, own_changed;

    span = n->t - f->tick_from;
    if (n->dt > f->tick_gap)
        f->tick_gap = n->dt;
    if (!advances)
        return;
    if ((span < 2ull * f->tick_gap && n->dt < f->tick_gap >> 3) || span > WL_AUTO_OLD) {
        wl_auto_measure_from(f, p, n);
        return;
    }
    if (span < WL_TICK_LEAST || span < 4ull * f->tick_gap || (p->tsecr - f->tick_echo < 8 && span < WL_TICK_LONGEST))
        return;
    changed = wl_tick_settle(&f->echo_tick, wl_tick_of(span, p->tsecr - f->tick_echo));
    own_changed = wl_tick_settle(&f->own_tick, wl_tick_of(span, p->tsval - f->tick_own));
    if (changed) {
        f->flags |= WL_AUTO_SPOILT;
        wl_auto_clock_from(f, p, n->t);
    }
    if (WL_ON(f, WL_AUTO_MEASURED) ? own_changed : f->echo_tick >> 4 == WL_TICK_NO_DOUBT) {
        f->flags |= WL_AUTO_MEASURED;
        f->base_at = n->t;
    }
    wl_auto_measure_from(f, p, n);
}

/* How late the packet is after the response that it echoes; at most what the client's own clock shows. */
WL_INLINE u32 wl_auto_late(struct wl_auto_flow *f, const struct wl_client_packet *p, const struct wl_auto_now *n)
{
    s64 tick = wl_tick_ns(f->echo_tick & 15), seen, late;

    if (wl_behind(p->tsecr, f->echo_origin) >= 1 << 30) {
        f->echo_origin += 1u << 30;
        f->base_ns += tick << 30;
    }
    seen = p->time_ns - wl_behind(p->tsecr, f->echo_origin) * tick;
    f->base_ns = wl_min(f->base_ns + (n->dt >> 5), seen);
    late = (seen - f->base_ns) >> 10;
    if (WL_ON(f, WL_AUTO_MEASURED) && (f->own_tick & 15) == (f->echo_tick & 15)) {
        u32 ahead = p->tsval - p->tsecr;

        if (n->t - f->base_at > WL_UNITS(16000000)) {
            f->own_ahead++;
            f->base_at = n->t;
        }
        if (wl_behind(ahead, f->own_ahead) < 0) {
            f->own_ahead = ahead;
            f->base_at = n->t;
        }
        late = wl_min(late, (((s64)wl_behind(ahead, f->own_ahead) + 1) * tick) >> 10);
    }
    return (u32)wl_min(late, WL_AUTO_OLD);
}

/* A packet later than this is late because the client waited. */
WL_INLINE u32 wl_auto_patience(const struct wl_auto_flow *f)
{
    s64 patience = wl_max(3 * WL_UNITS(1000) / 2, 3 * wl_tick_ns(f->echo_tick & 15) >> 11);

    return (u32)wl_max(patience, wl_max(f->steady >> 2, f->handshake >> 1));
}

#endif
