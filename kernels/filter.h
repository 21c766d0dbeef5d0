/* The packets that a command wants. Alternatives of one kind are joined by "or", the kinds by "and". */
#ifndef WIRELAG_FILTER_H
#define WIRELAG_FILTER_H

#include "headers.h"

#define WL_MOST_NETS 64
#define WL_PORT_WORDS (65536 / 64)

struct wl_net {
    u64 high, low, mask_high, mask_low;
};

struct wl_filter {
    s64 from_ns, to_ns; /* [from, to) */
    u32 net_count, port_count, protocol_count;
    struct wl_net nets[WL_MOST_NETS];
    u64 ports[WL_PORT_WORDS]; /* one bit each */
    u64 protocols[4];         /* one bit each */
};

WL_INLINE int wl_wants_time(const struct wl_filter *filter, s64 time_ns)
{
    return time_ns >= filter->from_ns && time_ns < filter->to_ns;
}

WL_INLINE int wl_in_net(const struct wl_net *net, u64 high, u64 low)
{
    return (high & net->mask_high) == net->high && (low & net->mask_low) == net->low;
}

WL_INLINE int wl_wants_address(const struct wl_filter *filter, const struct wl_row *row)
{
    for (u32 i = 0; i < filter->net_count; i++)
        if (wl_in_net(&filter->nets[i], row->src_high, row->src_low) || wl_in_net(&filter->nets[i], row->dst_high, row->dst_low))
            return 1;
    return filter->net_count == 0;
}

WL_INLINE int wl_wants_port(const struct wl_filter *filter, const struct wl_row *row)
{
    if (!filter->port_count)
        return 1;
    return (filter->ports[row->src_port >> 6] >> (row->src_port & 63) | filter->ports[row->dst_port >> 6] >> (row->dst_port & 63)) &
           1;
}

WL_INLINE int wl_wants(const struct wl_filter *filter, const struct wl_row *row)
{
    if (filter->protocol_count && !(filter->protocols[row->protocol >> 6] >> (row->protocol & 63) & 1))
        return 0;
    return wl_wants_port(filter, row) && wl_wants_address(filter, row);
}

#endif
