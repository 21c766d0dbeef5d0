/* What packets show about their conversations: a byte of facts for each flow key (tests/oracles/survey.py is its twin).
 *
 * Not for eBPF: the table grows, up to the most conversations. Beyond that only keys with one more leading zero bit stay, again
 * and again: keys are hashes, so the rest is an even sample, the same in any order of packets. The seed decides where a key is
 * looked for, and changes no result. */
#ifndef WIRELAG_SURVEY_H
#define WIRELAG_SURVEY_H

#include "decoding.h"
#include "hash.h"

/* Timed: its messages show which request a response belongs to. */
enum wl_fact {
    WL_FORWARD = 1,
    WL_BACKWARD = 2,
    WL_TO_SERVER = 4,
    WL_TO_CLIENT = 8,
    WL_HAS_SYN = 16,
    WL_HAS_SYN_ACK = 32,
    WL_IS_TCP = 64,
    WL_IS_TIMED = 128
};

struct wl_conversations {
    u64 *keys;
    u8 *facts; /* 0: no conversation */
    u64 mask;  /* places - 1; at least one is always empty */
    u64 count, seed;
    u32 level; /* each conversation represents 2^level */
};

WL_INLINE int wl_sampled(u64 key, u32 level)
{
    return !level || (level < 64 && key < (1ull << (64 - level)) - 1);
}

/* The facts of one packet; ranks are those of its ports (ports.h). */
WL_INLINE u8 wl_facts(u16 flags, u8 kind, u8 message, u16 src_port, u16 dst_port, u8 src_rank, u8 dst_rank)
{
    u32 facts = flags & WL_REVERSE ? WL_BACKWARD : WL_FORWARD, opening = message & 18; /* SYN and ACK */

    if (src_port != dst_port)
        facts |= (src_rank == dst_rank ? src_port > dst_port : src_rank > dst_rank) ? WL_TO_SERVER : WL_TO_CLIENT;
    if (kind == WL_TCP)
        facts |= WL_IS_TCP | (opening == 2 ? WL_HAS_SYN : opening == 18 ? WL_HAS_SYN_ACK : 0);
    if (kind == WL_DNS || kind == WL_NTP || kind == WL_ICMP || kind == WL_QUIC)
        facts |= WL_IS_TIMED;
    return (u8)facts;
}

/* Where a key is looked for first. */
WL_INLINE u64 wl_home(const struct wl_conversations *c, u64 key)
{
    return wl_hash_word(c->seed, key) & c->mask;
}

/* Add facts; return whether the conversation is new. */
WL_INLINE int wl_converse(struct wl_conversations *c, u64 key, u8 facts)
{
    u64 at = wl_home(c, key);

    while (c->facts[at] && c->keys[at] != key)
        at = (at + 1) & c->mask;
    if (c->facts[at]) {
        c->facts[at] |= facts;
        return 0;
    }
    c->keys[at] = key;
    c->facts[at] = facts;
    c->count++;
    return 1;
}

#endif
