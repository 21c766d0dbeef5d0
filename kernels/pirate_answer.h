/* Pirate, method auto: the result of an epoch (docs/reference/pirate.md, "The epoch ends").
 *
 * Law: mean latency = integral of N dt / completions; or the reason why that is unknown. */
#ifndef WIRELAG_PIRATE_ANSWER_H
#define WIRELAG_PIRATE_ANSWER_H

#include "pirate_sizes.h"

/* A client with long think times, and a server whose clock ticks more slowly than it responds. */
WL_INLINE int wl_auto_coarse(const struct wl_auto_flow *f, s64 sum)
{
    s64 tick = wl_tick_ns(f->echo_tick & 15) >> 10;

    return WL_ON(f, WL_AUTO_STAMPED) && (s64)f->think_sum > 2 * tick * f->think_count && sum < tick * f->completions;
}

WL_INLINE u8 wl_auto_reason(const struct wl_auto_flow *f, u32 fewest, s64 sum)
{
    int exact = wl_auto_exact(f);

    if (WL_ON(f, WL_AUTO_NOT_TCP))
        return WL_PIRATE_NOT_TCP;
    if (f->completions < fewest || !f->completions || sum < 0)
        return WL_PIRATE_TOO_FEW;
    if (!WL_ON(f, WL_AUTO_RESPONSE) && f->spontaneous * 8u > f->requests)
        return WL_PIRATE_SPONTANEOUS;
    if (!WL_ON(f, WL_AUTO_IN_STEP) || WL_ON(f, WL_AUTO_SPOILT) || sum == 0)
        return WL_PIRATE_JOINED;
    if (f->lone * 32u > f->requests || wl_auto_coarse(f, sum))
        return WL_PIRATE_THINK;
    if (f->in_flight > 1 && !exact && f->reordered * 16u > f->requests)
        return WL_PIRATE_REORDERED;
    if (!exact && f->coalesced * 8u > f->requests)
        return WL_PIRATE_COALESCED;
    return WL_PIRATE_ANSWERED;
}

WL_INLINE u8 wl_auto_traits(const struct wl_auto_flow *f)
{
    int stamped = WL_ON(f, WL_AUTO_STAMPED), known = (f->echo_tick & 15) != 0;

    return (u8)((stamped ? WL_PIRATE_STAMPED : 0) | (stamped && known && WL_ON(f, WL_AUTO_MEASURED) ? WL_PIRATE_TIMED : 0) |
                (WL_ON(f, WL_AUTO_RESPONSE) ? WL_PIRATE_SIZED : 0) | (wl_auto_exact(f) ? WL_PIRATE_EXACT : 0) |
                (WL_ON(f, WL_AUTO_IN_STEP) ? WL_PIRATE_IN_STEP : 0) | (f->far ? WL_PIRATE_FAR : 0) |
                (f->mean_request && 4 * wl_auto_decoded(f->opening) >= f->mean_request ? WL_PIRATE_LARGE_OPENING : 0));
}

/* Learn the mean latency of an epoch; the value used for decisions changes by at most a factor of two. */
WL_INLINE void wl_auto_learn_latency(struct wl_auto_flow *f, u32 mean)
{
    f->latency = mean;
    if (f->steady && mean > 2ull * f->steady)
        mean = 2 * f->steady;
    f->steady = mean < f->steady >> 1 ? f->steady >> 1 : mean;
}

/* The sum of latencies by Little's law, minus the ages of outstanding requests. -1: nothing is left. */
WL_INLINE s64 wl_auto_little(const struct wl_auto_flow *f)
{
    s64 sum = wl_min(f->area, 1ll << 50) - wl_auto_ages(f, f->last);

    return f->completions && sum >= 0 ? sum : -1;
}

/* End the epoch; return whether it has a result. */
WL_RULE int wl_auto_end(struct wl_auto_flow *f, const struct wl_pirate *settings, s64 end_ns, struct wl_epoch *out)
{
    int alone, busy, given;
    s64 sum;
    u32 count;
    u8 reason;

    if (!f || !settings || !out)
        return 0;
    given = f->requests || f->completions;
    alone = f->in_flight == 1 && f->busy_count >= settings->fewest && f->busy_count;
    sum = alone ? (int)f->busy_sum : wl_auto_little(f);
    count = alone ? f->busy_count : f->completions;
    reason = wl_auto_reason(f, settings->fewest, sum);
    sum = wl_min(wl_max(sum, 0), (s64)count << (WL_AUTO_LONGEST - 10));
    if (sum > 0 && f->completions >= settings->fewest && reason != WL_PIRATE_SPONTANEOUS && reason != WL_PIRATE_NOT_TCP &&
        !WL_ON(f, WL_AUTO_SPOILT))
        wl_auto_learn_latency(f, (u32)((u64)sum / count));
    busy = f->in_flight == 1 || (f->busy_count >= f->flight_count && f->latency >= WL_AUTO_QUICK);
    __builtin_memset(out, 0, sizeof(*out));
    out->start_ns = f->start_ns;
    out->end_ns = wl_max(f->start_ns, wl_min(end_ns, f->start_ns + 4 * settings->epoch_ns));
    out->reason = reason;
    out->method = WL_PIRATE_AUTO;
    out->in_flight = f->in_flight;
    out->requests = f->requests;
    out->lost = f->lost;
    out->network_ns = f->handshake ? (s64)f->handshake << 10 : -1;
    out->waits = f->waits;
    out->waits_before = f->waits_before;
    out->riding = (u16)(f->riding | f->trailing << 12);
    out->turns = f->turns;
    out->more = f->more;
    out->doubts = (u16)wl_min((s64)f->spontaneous + f->lone + f->reordered + f->coalesced, 65535);
    out->traits = wl_auto_traits(f);
    out->tick = f->echo_tick & 15;
    if (reason == WL_PIRATE_ANSWERED) {
        out->sum_ns = sum << 10;
        out->count = count;
        out->batch_sum_ns = wl_max((int)(busy ? f->busy_sum : f->flight_sum), 0) << 10;
        out->batch_count = busy ? f->busy_count : f->flight_count;
        out->think_sum_ns = wl_max((int)f->think_sum, 0) << 10;
        out->think_count = f->think_count;
    }
    wl_auto_begin_epoch(f, f->last);
    return given;
}

#endif
