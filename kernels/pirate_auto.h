/* Pirate, method auto: Little's law without assuming a closed loop (docs/reference/pirate.md, "auto", is the law).
 *
 * Law: mean latency = integral of N dt / completions, with N = requests sent minus responses completed. Everything else here
 * dates completions and counts requests, from the client's packets alone. Times are in units of 1.024 us, modulo 2^32; each
 * function is a rule of the law, with its name. */
#ifndef WIRELAG_PIRATE_AUTO_H
#define WIRELAG_PIRATE_AUTO_H

#include "pirate_answer.h"

#define WL_AUTO_SOON WL_UNITS(64)           /* requests of one burst are not further apart */
#define WL_AUTO_WOKEN WL_UNITS(128)         /* time for a client to read a response that its kernel has acknowledged */
#define WL_AUTO_STEP WL_UNITS(100000)       /* a time that goes back by more was set back */
#define WL_AUTO_IDLE WL_UNITS(500000)       /* a silence after which nothing is outstanding */
#define WL_AUTO_LOST_AFTER WL_UNITS(200000) /* the shortest timeout after which a request is retransmitted */
#define WL_AUTO_SEEMS_LOST WL_UNITS(150000)
#define WL_AUTO_DELAYED WL_UNITS(30000) /* an acknowledgement this late was delayed on purpose */
#define WL_AUTO_STRAY (1 << 22)         /* bytes by which a sequence number may be off */
#define WL_AUTO_JUMP (1 << 28)          /* bytes by which an acknowledgement may advance */
#define WL_AUTO_LARGEST (1 << 18)       /* payload */
#define WL_AUTO_STRAYS 8
#define WL_AUTO_MANY 32768 /* completions or requests that end an epoch: one packet brings fewer than that */
#define WL_AUTO_SURE 32    /* most votes on what packet numbers count */
#define WL_AUTO_ORDERED 4  /* votes */
#define WL_AUTO_OPENING 3  /* packets with data */

/* End the busy period at `at`, if nothing is outstanding. */
WL_INLINE void wl_auto_busy_ends(struct wl_auto_flow *f, u32 at)
{
    if (f->outstanding || f->deferred || !WL_ON(f, WL_AUTO_BUSY_KNOWN))
        return;
    f->busy_sum += at - f->busy_since;
    f->busy_count++;
}

/* c responses ended at `at`, which is not after t. */
WL_INLINE void wl_auto_complete(struct wl_auto_flow *f, u32 t, u32 c, u32 at)
{
    f->area -= (s64)c * (u32)(t - at);
    f->outstanding = (u16)(f->outstanding - c);
    f->completions = (u16)(f->completions + c);
    f->completed = at;
    f->unread = (u8)wl_min(c, 255);
    f->flags |= WL_AUTO_DONE;
    wl_auto_busy_ends(f, at);
}

WL_INLINE void wl_auto_afresh(struct wl_auto_flow *f, u32 t)
{
    f->area -= wl_auto_ages(f, f->last);
    f->crowd_size[0] = f->crowd_size[1] = f->crowd_size[2] = 0;
    f->outstanding = f->deferred = f->flight = 0;
    f->flags &= (u16) ~(WL_AUTO_ADVANCED | WL_AUTO_BUSY_KNOWN | WL_AUTO_DONE | WL_AUTO_HOLE | WL_AUTO_FULL);
    f->fresh = 0;
    f->requested = t;
}

/* Discard state that is too old, or precedes a long silence. */
WL_RULE int wl_auto_forget(struct wl_auto_flow *f, const struct wl_auto_now *n)
{
    if (!f || !n)
        return 0;
    if (n->t - f->requested > WL_AUTO_OLD)
        wl_auto_afresh(f, n->t);
    if (!WL_ON(f, WL_AUTO_IN_STEP) && n->payload && n->dt > WL_AUTO_IDLE && n->dt > 8ull * f->latency) {
        wl_auto_afresh(f, n->t);
        f->flags |= WL_AUTO_IN_STEP;
        f->in_flight = f->largest_flight = 1;
        f->opened = f->opening = 0;
    }
    return 0;
}

/* End deferred responses. */
WL_RULE int wl_auto_settle(struct wl_auto_flow *f, const struct wl_auto_now *n)
{
    u32 waited, most, c;

    if (!f || !n)
        return 0;
    waited = n->t - f->deferred_at;
    most = f->latency ? 2 * f->latency : waited;
    c = f->deferred;
    if (waited > most) {
        f->area -= (s64)c * (waited - most);
        waited = most;
    }
    f->deferred = 0;
    f->completions = (u16)(f->completions + c);
    f->completed = f->deferred_at + waited;
    f->flags |= WL_AUTO_DONE;
    wl_auto_busy_ends(f, f->completed);
    return 0;
}

/* Advance time: the area grows, deferred responses end. */
WL_INLINE void wl_auto_pass(struct wl_auto_flow *f, const struct wl_auto_now *n)
{
    if (n->dt > WL_AUTO_IDLE || n->t - f->requested > WL_AUTO_OLD) /* else the call would do nothing */
        wl_auto_forget(f, n);
    f->area += (s64)(f->outstanding + f->deferred) * n->dt;
    if (f->deferred && n->dt > WL_AUTO_SOON)
        wl_auto_settle(f, n);
}

/* Vote on what a number means: add for yes, subtract for no. */
WL_INLINE u8 wl_auto_believe(u8 votes, int yes, u32 cost)
{
    if (yes)
        return (u8)(votes < WL_AUTO_SURE ? votes + 1 : WL_AUTO_SURE);
    return (u8)(votes > cost ? votes - cost : 0);
}

/* If numbers count up, a packet with an older number than one seen before left the client earlier; if they count this flow's
 * packets only, missing numbers are losses. Other hosts count everything that they send, or use random numbers. */
WL_INLINE void wl_auto_identify(struct wl_auto_flow *f, const struct wl_client_packet *p, struct wl_auto_now *n)
{
    u16 ahead = (u16)(p->ip_id - f->last_id);
    int older = ahead >= 0x8000;

    n->id_ahead = 1;
    if (!(p->has & WL_HAS_IP_ID))
        return;
    if (f->id_steps >= WL_AUTO_VALID)
        n->id_ahead = ahead;
    n->older = older && f->id_order >= WL_AUTO_ORDERED;
    f->id_order = wl_auto_believe(f->id_order, ahead - 1u < 1024, 2);
    if (!older)
        f->id_steps = wl_auto_believe(f->id_steps, ahead == 1, 4);
    if (!n->older)
        f->last_id = p->ip_id;
    else if (n->payload)
        WL_MORE(f->reordered);
}

/* When the bytes acknowledged by an advance had arrived. */
WL_INLINE u32 wl_auto_date(struct wl_auto_flow *f, struct wl_auto_now *n, u32 advance, u32 *spread)
{
    int one = f->outstanding <= 1 || (WL_ON(f, WL_AUTO_RESPONSE) ? advance <= f->response : advance >= wl_auto_mss(f));
    s64 late = wl_min(wl_max((s64)n->late - f->usual, 0), n->dt);
    u32 at = n->t;

    *spread = 0;
    if (n->ghost && f->outstanding == 1 && !f->deferred && f->latency) {
        at = f->requested + f->latency;
        if (wl_behind(at, n->t) > 0)
            at = n->t;
        if (wl_behind(at, n->t - n->dt) < 0)
            at = n->t - n->dt;
        n->ghost_at = at;
    }
    if (n->timed && n->late > n->patience && at == n->t) {
        if (one || (!n->payload && n->late > WL_AUTO_DELAYED))
            at = n->t - (u32)late;
        else
            *spread = (u32)late;
    }
    if (n->stamped && n->late <= n->patience && !n->payload)
        f->usual += (wl_behind(n->late, (u32)f->usual)) >> 3;
    return at;
}

/* Bytes after the apparent end of a response belong to it, unless it paused for long. */
WL_INLINE void wl_auto_extend(struct wl_auto_flow *f, u32 advance, u32 at)
{
    int longer = wl_behind(at, f->completed);

    if (!WL_ON(f, WL_AUTO_DONE) || advance == 1 || longer > wl_max(WL_UNITS(200000), 4ll * f->steady))
        return;
    f->area += longer;
    f->busy_sum += (u32)longer;
    f->completed = at;
}

/* Whether the response that just seemed to end goes on: sizes are unknown, and no request followed it. */
WL_INLINE int wl_auto_goes_on(const struct wl_auto_flow *f, u32 at)
{
    int longer = wl_behind(at, f->completed);

    return !wl_auto_sized(f) && !f->flight && WL_ON(f, WL_AUTO_DONE) && longer >= 0 &&
           longer <= wl_max(WL_UNITS(500), f->steady >> 4);
}

WL_INLINE void wl_auto_advance(struct wl_auto_flow *f, struct wl_auto_now *n, u32 advance)
{
    u32 spread, at = wl_auto_date(f, n, advance, &spread), c;

    wl_auto_learn_mss(f, advance);
    f->fresh += advance;
    f->acked += advance;
    c = wl_auto_responses(f);
    if (!f->outstanding && !f->deferred) {
        wl_auto_extend(f, advance, at);
    } else if (c && wl_auto_goes_on(f, at)) {
        f->area += at - f->completed;
        f->completed = at;
    } else if (c && f->in_flight > 1 && n->payload && n->t - f->requested <= WL_AUTO_SOON && at == n->t) {
        if (!f->deferred)
            f->deferred_at = n->t;
        f->deferred = (u16)(f->deferred + c);
        f->outstanding = (u16)(f->outstanding - c);
    } else if (c) {
        if (c > 1)
            f->area -= (s64)c * spread >> 1;
        wl_auto_complete(f, n->t, c, at);
    }
    f->advanced = at;
    f->flags |= WL_AUTO_ADVANCED;
    if (!f->steady && WL_ON(f, WL_AUTO_BUSY_KNOWN) && wl_behind(at, f->busy_since) > 0)
        f->steady = at - f->busy_since;
    if (f->flight) {
        f->last_flight = f->flight;
        wl_auto_remember_wait(f, (u32)wl_max(wl_behind(at, f->flight_at), 0), n->payload != 0);
    } else if (advance > 1) {
        f->more = (u8)(f->more < 255 ? f->more + 1 : 255);
        if (wl_behind(at, f->flight_at) > (s64)f->handshake + (f->handshake >> 2))
            f->trailing = (u16)(f->trailing < 15 ? f->trailing + 1 : 15) & 15;
    }
    f->flight = 0;
}

/* When the request was first sent: what was lost before us was sent earlier than what we see. */
WL_INLINE u32 wl_auto_sent(struct wl_auto_flow *f, const struct wl_auto_now *n, int opens)
{
    u32 at = n->t;

    if (n->ghost) {
        at = n->ghost_at;
    } else if (n->id_ahead >= 2 && n->id_ahead < 64 && opens && WL_ON(f, WL_AUTO_ADVANCED) &&
               n->t - f->advanced > WL_AUTO_SEEMS_LOST) {
        at = n->t - WL_AUTO_LOST_AFTER - 2 * f->handshake;
        WL_MORE(f->lost);
    } else if (n->behind && !n->older) {
        at = f->hole_at;
    }
    if (WL_ON(f, WL_AUTO_ADVANCED) && at != n->t && wl_behind(at, f->advanced) < 0)
        at = f->advanced;
    return n->t - at > WL_AUTO_BACK ? n->t - WL_AUTO_BACK : at;
}

/* Reasons to doubt an estimate. */
WL_INLINE void wl_auto_doubts(struct wl_auto_flow *f, const struct wl_auto_now *n, u32 k, int opens)
{
    u32 gap = n->t - f->requested;

    if (k > 1 && !n->ghost)
        WL_MORE(f->coalesced);
    if (!n->timed && opens && WL_ON(f, WL_AUTO_ADVANCED) && (n->t - f->advanced > n->patience || n->dt > WL_AUTO_IDLE))
        WL_MORE(f->lone);
    if (opens && WL_ON(f, WL_AUTO_ADVANCED) && f->in_flight > 1)
        gap = n->t - f->advanced;
    if ((!opens || f->in_flight > 1) && f->outstanding && gap > WL_UNITS(200) && gap > f->handshake && gap > f->latency >> 4 &&
        !n->behind)
        WL_MORE(f->spontaneous);
}

/* The client has read what its kernel acknowledged when it sends the next request, if that is soon. */
WL_INLINE void wl_auto_read(struct wl_auto_flow *f, u32 at)
{
    int later = wl_behind(at, f->completed);

    if (WL_ON(f, WL_AUTO_DONE) && later > 0 && later <= (int)WL_AUTO_WOKEN)
        f->area += (s64)f->unread * later;
    f->unread = 0;
}

/* The time from a response to the next request: think time, unless it is too short. */
WL_INLINE void wl_auto_think(struct wl_auto_flow *f, u32 thought)
{
    f->think_count++;
    if (thought > WL_AUTO_WOKEN)
        f->think_sum += thought;
    else
        f->busy_sum += thought;
}

/* End responses that must have ended before the client sent k more requests. */
WL_INLINE void wl_auto_make_room(struct wl_auto_flow *f, const struct wl_auto_now *n, u32 k, int opens)
{
    u32 waited = n->t - f->advanced, over;

    if (f->outstanding && f->steady && opens && WL_ON(f, WL_AUTO_ADVANCED) && waited > 2ull * f->steady && waited > n->patience &&
        !WL_ON(f, WL_AUTO_RESPONSE)) {
        wl_auto_complete(f, n->t, f->outstanding, f->advanced);
        f->turn_outstanding = 0;
    }
    if (f->deferred && f->outstanding + f->deferred + k > f->in_flight) {
        over = f->outstanding + f->deferred + k - f->in_flight;
        over = over < f->deferred ? over : f->deferred;
        f->deferred = (u16)(f->deferred - over);
        f->completions = (u16)(f->completions + over);
    }
    if (f->outstanding + k <= f->in_flight)
        return;
    if (wl_auto_sized(f) || f->flight > f->in_flight || !WL_ON(f, WL_AUTO_ADVANCED)) {
        f->in_flight = (u16)(f->outstanding + k);
        return;
    }
    over = f->outstanding + k - f->in_flight;
    over = over < f->outstanding ? over : f->outstanding;
    f->forced = (u8)(f->forced + over < 255 ? f->forced + over : 255);
    wl_auto_complete(f, n->t, over, f->advanced);
}

/* A flight begins: remember the state before it, and before the previous one. */
WL_INLINE void wl_auto_turn(struct wl_auto_flow *f)
{
    f->forced = 0;
    f->turn_before_outstanding = f->turn_outstanding;
    f->turn_before_at = f->turn_at;
    f->turn_before_fresh = f->turn_fresh;
    f->turn_outstanding = (u8)wl_min(f->outstanding, 255);
    f->turn_at = f->advanced;
    f->turn_fresh = (u16)wl_min(f->fresh >> 4, 65535);
}

/* A flight is complete: a batch after a batch, or the objects of a page after the page. */
WL_INLINE void wl_auto_whole_flight(struct wl_auto_flow *f)
{
    u32 q = f->forced < f->turn_before_outstanding ? f->forced : f->turn_before_outstanding;

    if (f->flight != f->in_flight || f->in_flight == 1)
        return;
    if (f->last_flight == f->in_flight && wl_behind(f->advanced, f->flight_before_at) > 0) {
        f->flight_sum += f->advanced - f->flight_before_at;
        f->flight_count++;
    }
    if (f->last_flight == 1 && f->turn_before_fresh > f->turn_fresh)
        f->area -= (s64)q * wl_behind(f->advanced, f->turn_before_at);
}

/* k requests were sent. */
WL_INLINE void wl_auto_request(struct wl_auto_flow *f, struct wl_auto_now *n, u32 k)
{
    int opens = !f->flight, swapped = n->older && n->behind;
    u32 at, over;

    over = f->outstanding + k > WL_AUTO_MOST ? f->outstanding + k - WL_AUTO_MOST : 0;
    n->behind |= n->ghost != 0;
    k -= over;
    f->requests = (u16)(f->requests + k + over);
    if (over) {
        WL_MORE(f->spontaneous);
        if (!k)
            return;
    }
    if (opens || !swapped)
        f->flight = (u16)wl_min(f->flight + k, WL_AUTO_MOST);
    if (f->flight > f->largest_flight)
        f->largest_flight = f->flight;
    if (opens && !swapped)
        wl_auto_turn(f);
    at = wl_auto_sent(f, n, opens);
    wl_auto_read(f, at);
    wl_auto_doubts(f, n, k, opens);
    wl_auto_make_room(f, n, k, opens);
    if (opens) {
        f->flight_before_at = f->flight_at;
        f->flight_at = n->t;
    }
    wl_auto_whole_flight(f);
    if (!f->outstanding) {
        if (WL_ON(f, WL_AUTO_DONE) && !f->deferred && wl_behind(at, f->completed) >= 0)
            wl_auto_think(f, at - f->completed);
        f->flags = (u16)((f->flags & ~WL_AUTO_DONE) | WL_AUTO_BUSY_KNOWN);
        f->busy_since = at;
    }
    wl_auto_remember(f, at, k);
    f->outstanding = (u16)(f->outstanding + k);
    f->total += k;
    f->area += (s64)k * (u32)(n->t - at);
    f->requested = n->t;
    f->fresh = 0;
    if (WL_ON(f, WL_AUTO_RESPONSE) && !WL_ON(f, WL_AUTO_ABSOLUTE))
        f->boundary = f->acked;
    if (WL_ON(f, WL_AUTO_RESPONSE) && f->outstanding > 8u * f->largest_flight + 8)
        wl_auto_missized(f);
}

/* One of the first packets with data. Several requests may be hidden in the largest of them, so its size is remembered. What ends a
 * handshake (TLS) is no request, though it is half as long as what began it, or less; return whether this one is that. */
WL_RULE int wl_auto_opening(struct wl_auto_flow *f, const struct wl_auto_now *n)
{
    u32 first, code;

    if (!f || !n)
        return 0;
    first = wl_auto_decoded(f->opening);
    code = wl_auto_code((u32)wl_min(n->payload, 65535));
    f->opened = (f->opened + 1) & 3;
    if (f->opened == 2 && !f->flight && first >= 192 && n->payload >= 48 && 2 * n->payload <= first) {
        f->opening = 0;
        return 1;
    }
    if (code > f->opening)
        f->opening = code & 127;
    return 0;
}

WL_INLINE void wl_auto_payload(struct wl_auto_flow *f, const struct wl_client_packet *p, struct wl_auto_now *n)
{
    int full, continues;
    u32 k;

    if (n->ghost) {
        n->payload = n->ghost;
        n->id_ahead = 1;
    }
    if (!n->payload || !wl_auto_is_new(f, p, n))
        return;
    full = n->payload + 48 >= wl_auto_mss(f) || (n->payload >= 500 && !n->pushed && WL_ON(f, WL_AUTO_PUSHES) && !n->ghost);
    continues = wl_auto_continues(f, n, full);
    if (!continues && f->opened < WL_AUTO_OPENING && wl_auto_opening(f, n))
        return;
    k = wl_auto_requests(f, n, continues, full);
    if (f->fresh && !continues)
        wl_auto_response_size(f, k);
    wl_auto_old_totals(f);
    if (n->older && n->behind && f->in_flight == 1 && f->outstanding)
        k = 0;
    if (k)
        wl_auto_request(f, n, k);
}

/* Start a record: after a SYN all bytes are counted, otherwise the flow is joined in the middle. */
WL_INLINE void wl_auto_open(struct wl_auto_flow *f, const struct wl_client_packet *p, int syn)
{
    __builtin_memset(f, 0, sizeof(*f));
    f->start_ns = p->time_ns;
    f->last = f->requested = (u32)(p->time_ns >> 10);
    f->in_flight = f->last_flight = f->largest_flight = 1;
    f->next_seq = f->counted_seq = p->seq + (syn ? 1 : 0);
    f->last_id = p->ip_id;
    f->echo_tick = f->own_tick = WL_TICK_ASSUMED | WL_TICK_NO_DOUBT << 4;
    if (syn) {
        f->flags = WL_AUTO_IN_STEP | WL_AUTO_ABSOLUTE;
        f->mss = p->mss;
        f->far = p->has & WL_HAS_TRAVELLED ? 1 : 0;
    }
}

/* The first packet that is not a SYN. */
WL_INLINE void wl_auto_begin(struct wl_auto_flow *f, const struct wl_client_packet *p, const struct wl_auto_now *n)
{
    u32 stamps = p->has & WL_HAS_TIMESTAMPS && p->tsecr;

    if (WL_ON(f, WL_AUTO_ABSOLUTE) && n->dt <= WL_TICK_LONGEST)
        f->handshake = n->dt ? n->dt : 1;
    f->flags |= WL_AUTO_OPEN | (stamps ? WL_AUTO_STAMPED : 0);
    if (f->mss >= 88) {
        f->mss = (u16)(f->mss - (stamps ? 12 : 0));
        f->mss_votes = WL_MSS_TOLD;
    }
    f->acked = f->first_ack = f->boundary = f->origin = p->ack;
    f->start_ns = p->time_ns;
    f->last = n->t;
    wl_auto_first_clock(f, p, n->t);
    wl_auto_measure_from(f, p, n);
}

/* Whether the numbers cannot belong to a packet of this connection. */
WL_INLINE int wl_auto_is_stray(const struct wl_auto_flow *f, const struct wl_client_packet *p)
{
    int ahead = wl_behind(p->seq, f->next_seq);

    return ahead > WL_AUTO_STRAY || ahead < -WL_AUTO_STRAY || p->payload > WL_AUTO_LARGEST ||
           (p->tcp_flags & WL_CLIENT_ACK && wl_behind(p->ack, f->acked) > WL_AUTO_JUMP);
}

/* Process a TCP packet, in the order of the law. */
WL_INLINE void wl_auto_take(struct wl_auto_flow *f, const struct wl_client_packet *p, struct wl_auto_now *n)
{
    int advance = p->tcp_flags & WL_CLIENT_ACK ? wl_behind(p->ack, f->acked) : 0;
    int ahead = wl_behind(p->seq, f->next_seq);

    wl_auto_pass(f, n);
    if (WL_ON(f, WL_AUTO_STAMPED) && p->has & WL_HAS_TIMESTAMPS) {
        wl_auto_tick(f, p, n, advance > 0);
        n->stamped = (f->echo_tick & 15) != 0;
        n->late = n->stamped ? wl_auto_late(f, p, n) : 0;
        n->timed = n->stamped && WL_ON(f, WL_AUTO_MEASURED);
    }
    n->patience = wl_auto_patience(f);
    wl_auto_identify(f, p, n);
    if (!n->payload && !(p->tcp_flags & WL_CLIENT_FIN) && ahead > 0 && ahead <= 65535)
        n->ghost = (u32)ahead;
    n->ghost_at = WL_ON(f, WL_AUTO_ADVANCED) && wl_behind(f->advanced, f->requested) > 0 ? f->advanced : f->requested;
    if (n->pushed && n->payload)
        f->flags |= WL_AUTO_PUSHES;
    if (advance > 0)
        wl_auto_advance(f, n, (u32)advance);
    wl_auto_payload(f, p, n);
    if (p->tcp_flags & WL_CLIENT_FIN) {
        u32 end = p->seq + n->payload + 1;

        if (wl_behind(end, f->next_seq) > 0)
            f->next_seq = end;
        if (f->outstanding && WL_ON(f, WL_AUTO_ADVANCED) && wl_behind(f->advanced, f->requested) > 0)
            wl_auto_complete(f, n->t, f->outstanding, f->advanced);
    }
    f->last = n->t;
}

/* A clock was set back: what is outstanding stays so, but its start is unknown. */
WL_INLINE void wl_auto_step_back(struct wl_auto_flow *f, const struct wl_client_packet *p, u32 t)
{
    u16 outstanding = (u16)(f->outstanding + f->deferred);

    wl_auto_afresh(f, t);
    f->outstanding = outstanding;
    f->flags |= WL_AUTO_SPOILT;
    f->last = t;
    f->start_ns = p->time_ns;
}

/* If time goes back, or jumps, nothing is measured. */
WL_INLINE void wl_auto_step(struct wl_auto_flow *f, const struct wl_client_packet *p, struct wl_auto_now *n, s64 elapsed)
{
    if (elapsed > 1ll << WL_AUTO_LONGEST || elapsed < -(1ll << WL_AUTO_LONGEST)) {
        wl_auto_afresh(f, n->t);
        f->flags |= WL_AUTO_IN_STEP;
        f->last = n->t;
        f->start_ns = p->time_ns;
    }
    if (wl_behind(n->t, f->last) < -(int)WL_AUTO_STEP)
        wl_auto_step_back(f, p, n->t);
    if (wl_behind(n->t, f->last) < 0)
        n->t = f->last;
    n->dt = n->t - f->last;
}

/* Whether the packet belongs to the record's connection. */
WL_INLINE int wl_auto_belongs(struct wl_auto_flow *f, const struct wl_client_packet *p)
{
    if (!(p->has & WL_HAS_TCP) || !WL_ON(f, WL_AUTO_OPEN) || !wl_auto_is_stray(f, p)) {
        f->strays = 0;
        return 1;
    }
    f->strays = (f->strays + 1) & 15;
    WL_MORE(f->lost);
    return 0;
}

/* Whether the epoch is over. It ends with a request, if there is one: by then the client has read what came before. A spoilt one
 * ends at once. */
WL_INLINE int wl_auto_is_over(const struct wl_auto_flow *f, const struct wl_client_packet *p, const struct wl_pirate *settings)
{
    s64 elapsed = p->time_ns - f->start_ns;

    if (WL_ON(f, WL_AUTO_SPOILT) || f->requests >= WL_AUTO_MANY || f->completions >= WL_AUTO_MANY)
        return 1;
    if (p->payload && f->completions >= settings->fewest)
        return elapsed >= settings->epoch_ns;
    return elapsed >= 4 * settings->epoch_ns;
}

/* End a flow. The caller knows its key without a packet. */
WL_INLINE int wl_auto_finish(struct wl_auto_flow *f, const struct wl_pirate *settings, s64 now_ns, struct wl_epoch *out)
{
    int given = WL_ON(f, WL_AUTO_OPEN) && wl_auto_end(f, settings, now_ns, out);

    f->start_ns = wl_max(f->start_ns, now_ns);
    return given;
}

/* One packet; 1 if an epoch ended before it or with it. */
WL_INLINE int wl_auto_packet(
    struct wl_auto_flow *f, const struct wl_client_packet *p, const struct wl_pirate *settings, struct wl_epoch *out)
{
    struct wl_auto_now n = {.t = (u32)(p->time_ns >> 10),
        .payload = (u32)wl_min(p->payload, WL_AUTO_LARGEST),
        .pushed = (p->tcp_flags & WL_CLIENT_PSH) != 0};
    u8 flags = p->has & WL_HAS_TCP ? p->tcp_flags : 0;
    int given = 0;
    s64 elapsed;

    if (p->time_ns < 0 || p->time_ns >> 62)
        return 0;
    elapsed = f->flags ? p->time_ns - f->start_ns : 0;
    if (p->time_ns - f->start_ns > 4 * settings->epoch_ns)
        given = wl_auto_finish(f, settings, p->time_ns, out);
    if (flags & (WL_CLIENT_SYN | WL_CLIENT_RST) || !wl_auto_belongs(f, p)) {
        int again = !(flags & (WL_CLIENT_SYN | WL_CLIENT_RST));

        if (again && f->strays < WL_AUTO_STRAYS)
            goto out;
        if (!given)
            given = wl_auto_finish(f, settings, p->time_ns, out);
        if (flags & WL_CLIENT_SYN)
            wl_auto_open(f, p, 1);
        if (!again)
            goto out;
        f->flags = 0;
    }
    if (!f->flags) {
        wl_auto_open(f, p, 0);
        elapsed = 0;
    }
    wl_auto_step(f, p, &n, elapsed);
    if (!WL_ON(f, WL_AUTO_OPEN))
        wl_auto_begin(f, p, &n);
    if (p->has & WL_HAS_TCP) {
        wl_auto_take(f, p, &n);
    } else {
        f->requests++;
        f->flags |= WL_AUTO_NOT_TCP;
        f->last = n.t;
    }
    if (!given && (flags & WL_CLIENT_FIN || wl_auto_is_over(f, p, settings)))
        given = wl_auto_finish(f, settings, p->time_ns, out);
out:
    if (given)
        out->key = p->key;
    return given;
}

#endif
