/* Pirate, method auto: which packets are requests, how many, and the size of responses (docs/reference/pirate.md, "Sizes").
 *
 * Law: if all requests, or all responses, have one size, bytes count them exactly; a size is valid while most of what is seen is
 * a multiple of it. */
#ifndef WIRELAG_PIRATE_SIZES_H
#define WIRELAG_PIRATE_SIZES_H

#include "pirate_record.h"

#define WL_AUTO_QUICK WL_UNITS(256) /* below this latency acknowledgements lag behind what the client reads */
#define WL_AUTO_VALID 8             /* votes that make a size valid */

/* Divisions are slow, and most of these divide a size by itself. */
WL_INLINE u32 wl_quotient(u32 a, u32 b)
{
    if (a < b)
        return 0;
    return a - b < b ? 1 : a / b;
}

WL_INLINE int wl_is_multiple(u32 a, u32 b)
{
    return a == b || a % b == 0;
}

WL_INLINE u32 wl_auto_mss(const struct wl_auto_flow *f)
{
    if (f->mss_votes >= WL_MSS_VALID)
        return f->mss;
    return WL_ON(f, WL_AUTO_STAMPED) ? 1448 : 1460;
}

WL_INLINE int wl_auto_exact(const struct wl_auto_flow *f)
{
    return (f->flags & (WL_AUTO_ABSOLUTE | WL_AUTO_RESPONSE)) == (WL_AUTO_ABSOLUTE | WL_AUTO_RESPONSE);
}

/* Whether responses are counted by their size. */
WL_INLINE int wl_auto_sized(const struct wl_auto_flow *f)
{
    return WL_ON(f, WL_AUTO_RESPONSE) && (wl_auto_exact(f) || f->latency == 0 || f->latency >= WL_AUTO_QUICK);
}

/* +1 for a multiple, -2 otherwise; a divisor replaces the candidate. 1: the candidate changed, 2: it was given up. */
WL_INLINE u32 wl_auto_vote(u32 *candidate, u8 *votes, u32 value, u32 least)
{
    if (*votes == 0) {
        *candidate = value;
        *votes = 1;
    } else if (wl_is_multiple(value, *candidate)) {
        *votes = (u8)(*votes < 32 ? *votes + 1 : 32);
    } else if (value >= least && *candidate % value == 0) {
        *candidate = value;
        *votes = 1;
        return 1;
    } else if (*votes <= 2) {
        *votes = 0;
        return 2;
    } else {
        *votes = (u8)(*votes - 2);
    }
    return 0;
}

/* Without a SYN, the advances of a long response show its segment size. */
WL_INLINE void wl_auto_learn_mss(struct wl_auto_flow *f, u32 advance)
{
    u32 candidate = f->mss;

    if (f->mss_votes == WL_MSS_TOLD || f->flight || advance < 1200 || advance > 16384)
        return;
    wl_auto_vote(&candidate, &f->mss_votes, advance, 1200);
    f->mss = (u16)candidate;
}

/* More, or far fewer, responses than requests: the assumed size of responses is wrong. */
WL_RULE int wl_auto_missized(struct wl_auto_flow *f)
{
    if (!f)
        return 0;
    f->flags = (u16)((f->flags & ~(WL_AUTO_RESPONSE | WL_AUTO_ABSOLUTE)) | WL_AUTO_MISSIZED | WL_AUTO_SPOILT);
    f->outstanding = f->flight;
    f->in_flight = f->largest_flight;
    f->boundary = f->acked;
    return 0;
}

/* How many responses an advance completes. */
WL_INLINE u32 wl_auto_responses(struct wl_auto_flow *f)
{
    u32 c = 0;

    if (wl_auto_sized(f)) {
        c = wl_quotient(f->acked - f->boundary, f->response);
        f->boundary += c * f->response;
        if (wl_auto_exact(f) && c > (u32)f->outstanding + f->deferred)
            wl_auto_missized(f);
    } else if (!wl_is_multiple(f->acked - f->boundary, wl_auto_mss(f))) {
        c = 1;
        f->boundary = f->acked;
    }
    return c < f->outstanding ? c : f->outstanding;
}

/* Whether the payload has new bytes of a request; a retransmission means a loss. */
WL_INLINE int wl_auto_is_new(struct wl_auto_flow *f, const struct wl_client_packet *p, struct wl_auto_now *n)
{
    int ahead = wl_behind(p->seq, f->next_seq);
    u32 end = p->seq + n->payload, into = p->seq - f->hole_from;

    if (n->ghost) {
        f->next_seq = p->seq;
        WL_MORE(f->lost);
        return 1;
    }
    if (wl_behind(end, f->next_seq) > 0) {
        if (ahead > 0 && ahead <= 65535 && !WL_ON(f, WL_AUTO_HOLE)) {
            f->flags |= WL_AUTO_HOLE;
            f->hole_from = f->next_seq;
            f->hole_length = (u16)ahead;
            f->hole_at = n->t - n->dt;
        }
        f->next_seq = end;
        return 1;
    }
    n->behind = 1;
    if (WL_ON(f, WL_AUTO_HOLE) && into < f->hole_length) {
        u32 filled = into + n->payload;

        if (filled >= f->hole_length)
            f->flags &= (u16)~WL_AUTO_HOLE;
        f->hole_from += filled;
        f->hole_length = (u16)(f->hole_length - filled);
        return 1;
    }
    if (n->older)
        return 1;
    WL_MORE(f->lost);
    return 0;
}

/* Whether this packet continues the last one. A full packet, or one whose end the client does not mark, is continued by what
 * follows before a response: a large request is written in parts. */
WL_INLINE int wl_auto_continues(struct wl_auto_flow *f, const struct wl_auto_now *n, int full)
{
    int continues = WL_ON(f, WL_AUTO_FULL) && !f->fresh;

    if (n->behind && full)
        return 1;
    if (full)
        f->flags |= WL_AUTO_FULL;
    else if (!continues)
        f->flags &= (u16)~WL_AUTO_FULL;
    return continues;
}

WL_INLINE void wl_auto_request_size(struct wl_auto_flow *f, u32 payload)
{
    u32 candidate = f->request;
    u32 fell = wl_auto_vote(&candidate, &f->request_votes, payload, 4);

    f->request = (u16)candidate;
    if (fell)
        f->flags &= (u16)~WL_AUTO_REQUEST;
    if (fell == 2 || (fell && WL_ON(f, WL_AUTO_RESPONSE)))
        f->flags &= (u16)~WL_AUTO_ABSOLUTE;
    if (f->request_votes >= WL_AUTO_VALID)
        f->flags |= WL_AUTO_REQUEST;
}

/* Requests in a payload by their mean size: a payload near a multiple of it is that many; 1 if unknown. */
WL_INLINE u32 wl_auto_by_mean(struct wl_auto_flow *f, u32 payload)
{
    u32 eighths = payload * 8, mean = f->mean_request, k = mean ? wl_quotient(eighths + mean / 2, mean) : 0;
    int off = (int)(eighths - k * mean);

    if (payload > 8191)
        return 1;
    if (k && (off < 0 ? -off : off) * 16 <= (int)((k < 4 ? k : 4) * mean)) {
        f->mean_votes = f->mean_votes < 32 ? (f->mean_votes + 1) & 63 : 32;
        if (k == 1)
            f->mean_request = (u16)(mean + (u32)(wl_behind(eighths, mean) >> 3));
        return f->mean_votes >= WL_AUTO_VALID && !WL_ON(f, WL_AUTO_REQUEST) ? k : 1;
    }
    if (eighths < mean || f->mean_votes <= 2) {
        f->mean_request = (u16)eighths;
        f->mean_votes = 1;
    } else {
        f->mean_votes = (f->mean_votes - 2) & 63;
    }
    return 1;
}

/* The number of requests that begin in the payload. Several in one packet come from a client that keeps several in flight, and
 * are no more than that; otherwise it is one large request. */
WL_INLINE u32 wl_auto_requests(struct wl_auto_flow *f, const struct wl_auto_now *n, int continues, int full)
{
    u32 k = !continues;

    if (!continues && !full && !n->ghost) {
        wl_auto_request_size(f, n->payload);
        k = wl_auto_by_mean(f, n->payload);
        k = k > f->in_flight ? 1 : k;
    }
    if (!WL_ON(f, WL_AUTO_REQUEST))
        return k;
    if (wl_auto_exact(f)) {
        k = wl_quotient(f->next_seq - f->counted_seq, f->request);
        f->counted_seq += k * f->request;
        return k > 64 ? 1 : k;
    }
    if (!continues && wl_is_multiple(n->payload, f->request))
        k = wl_quotient(n->payload, f->request);
    return k > f->in_flight || k > 64 ? 1 : k;
}

/* Adopt a response size once bytes and requests agree on it; what is outstanding follows from it, if all bytes were seen. */
WL_INLINE void wl_auto_adopt(struct wl_auto_flow *f, u32 k)
{
    u32 bytes = f->acked - f->origin, parts, sent, done;
    s64 off;
    int open;

    if (!bytes)
        return;
    parts = (u32)(((u64)f->response * f->total + bytes / 2) / bytes);
    parts = parts ? parts : 1;
    if (f->response % parts || f->response / parts < 2)
        return;
    off = (s64)bytes - (s64)f->total * (f->response / parts);
    if ((off < 0 ? -off : off) > (s64)(f->in_flight + 1) * (f->response / parts))
        return;
    f->response /= parts;
    f->flags |= WL_AUTO_RESPONSE;
    f->boundary = f->acked;
    if (!WL_ON(f, WL_AUTO_ABSOLUTE) || !WL_ON(f, WL_AUTO_REQUEST)) {
        f->flags &= (u16)~WL_AUTO_ABSOLUTE;
        return;
    }
    sent = (f->next_seq - f->counted_seq) / f->request;
    done = (f->acked - f->first_ack) / f->response;
    open = wl_behind(sent - k, done);
    if (open < 0 || open > 8 * f->in_flight + 8 || open > WL_AUTO_MOST) {
        f->flags &= (u16)~WL_AUTO_ABSOLUTE;
        return;
    }
    f->counted_seq += sent * f->request;
    f->boundary = f->first_ack + done * f->response;
    f->in_flight = open > f->in_flight ? (u16)open : f->in_flight;
    if (open == f->outstanding + f->deferred)
        return;
    f->outstanding = (u16)open;
    f->deferred = 0;
    f->flags |= WL_AUTO_SPOILT;
}

/* Where bytes count responses, requests follow whole ones at least every ninth time. */
WL_INLINE void wl_auto_still_sized(struct wl_auto_flow *f)
{
    if (f->acked == f->boundary)
        f->response_votes = (u8)(f->response_votes < 24 ? f->response_votes + 8 : 32);
    else if (--f->response_votes == 0)
        wl_auto_missized(f);
}

/* The bytes brought by a round of requests vote for the size of responses: those of this round or, if the next response had
 * begun to arrive, all since the size came up. */
WL_INLINE void wl_auto_response_size(struct wl_auto_flow *f, u32 k)
{
    u32 bytes = f->fresh, all = f->acked - f->origin;
    s64 off;

    if (wl_auto_exact(f)) {
        wl_auto_still_sized(f);
        return;
    }
    if (!WL_ON(f, WL_AUTO_RESPONSE) && f->response_votes && !wl_is_multiple(bytes, f->response) && f->response % bytes) {
        off = (s64)all - (s64)f->total * f->response;
        if (f->in_flight > 1 && all % f->response == 0)
            bytes = all;
        else if (f->in_flight > 1 && off < f->response && -off < f->response)
            return;
        else
            f->response_votes = 0; /* two sizes mean no size */
    }
    if (wl_auto_vote(&f->response, &f->response_votes, bytes, 16) && WL_ON(f, WL_AUTO_RESPONSE))
        wl_auto_missized(f);
    if (f->response_votes == 1) {
        f->origin = f->acked;
        f->total = 0;
    }
    if (f->response_votes >= WL_AUTO_VALID && !(f->flags & (WL_AUTO_RESPONSE | WL_AUTO_MISSIZED)) && f->total >= 16 &&
        f->total >= 4u * f->in_flight)
        wl_auto_adopt(f, k);
}

/* Totals are kept below 2^31 bytes. */
WL_INLINE void wl_auto_old_totals(struct wl_auto_flow *f)
{
    if (f->acked - f->origin >= 1u << 31) {
        f->origin += 1u << 30;
        f->total >>= 1;
    }
    if ((f->acked - f->first_ack >= 1u << 31 || f->next_seq - f->counted_seq >= 1u << 31) && !wl_auto_exact(f))
        f->flags &= (u16)~WL_AUTO_ABSOLUTE;
}

#endif
