/* The words that stand for the group of a sample: first its key, which tells groups apart, then what else its name needs. Of
 * batches packets/grouping.py finds the same. Not for eBPF: groups of samples are kept in files and live captures only. */
#ifndef WIRELAG_GROUP_WORDS_H
#define WIRELAG_GROUP_WORDS_H

#include "decoding.h"
#include "groups.h"

enum wl_group_by { WL_BY_NOTHING, WL_BY_FLOW, WL_BY_CLIENT, WL_BY_SERVER, WL_BY_SUBNET, WL_BY_PORT };

struct wl_grouping {
    enum wl_group_by by;
    u32 words, key_words;
    u64 mask4, mask6_high, mask6_low; /* of networks */
};

#define WL_GROUP_PING (1ull << 63) /* in place of ports: the rest is an identifier */

WL_INLINE void wl_group_end(const struct wl_row *row, u32 source, u64 *words)
{
    words[0] = source ? row->src_high : row->dst_high;
    words[1] = source ? row->src_low : row->dst_low;
}

/* The words of a sample from the row of its response, which comes from the side that the delay is to: from the server on leg 0. */
WL_INLINE void wl_words_of_group(const struct wl_grouping *how, const struct wl_row *row, u32 leg, u64 *words)
{
    u32 from_server = !leg;
    u64 client_port = from_server ? row->dst_port : row->src_port, server_port = from_server ? row->src_port : row->dst_port;

    switch (how->by) {
    case WL_BY_FLOW:
        words[0] = row->flow_key;
        wl_group_end(row, !from_server, words + 1);
        wl_group_end(row, from_server, words + 3);
        words[5] = row->kind == WL_ICMP ? WL_GROUP_PING | row->transaction
                                        : (u64)row->protocol << 32 | client_port << 16 | server_port;
        break;
    case WL_BY_CLIENT:
        wl_group_end(row, !from_server, words);
        break;
    case WL_BY_SERVER:
        wl_group_end(row, from_server, words);
        break;
    case WL_BY_SUBNET: {
        u32 ipv4 = !row->src_high && row->src_low >> 32 == 0xFFFF;

        words[0] = ipv4 ? row->src_high : row->src_high & how->mask6_high;
        words[1] = row->src_low & (ipv4 ? how->mask4 : how->mask6_low);
        break;
    }
    case WL_BY_PORT:
        words[0] = server_port;
        break;
    case WL_BY_NOTHING:
        break;
    }
}

#endif
