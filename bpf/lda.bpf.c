/* LDA in the kernel: every packet's time into its bucket (kernels/lda.h), and a sample of packets for the tail
 * (kernels/cache.h).
 *
 * Each CPU has its own buckets and sample, twice: nothing is shared or locked, and user space adds them up. Entries that a full
 * cache drops stay in place, below its level: user space skips them. */
#include "hook.h"

#include "cache.h"
#include "lda.h"
#include "turn.h"

#define WL_ZEROS 128 /* a power of two, for the verifier; a coin has at most 64 */

const volatile struct wl_lda lda;
const volatile u64 tail_key;
const volatile u32 bucket_count, tail_most, tail_room; /* per side */
const volatile u64 source_net[4], destination_net[4];  /* which packets: address, mask */

/* Counters of a side besides its buckets. */
struct wl_lda_side {
    u64 packets;
    u32 level, live, kept, overflowed; /* the tail's level, entries of that level, all entries, those that did not fit */
    u32 by_zeros[WL_ZEROS];
};

struct wl_lda_cpu {
    struct wl_turn turn;
    struct wl_lda_side side[2];
    u64 skipped[WL_REASONS + 1], failed;
};

struct wl_kept {
    u64 id;
    s64 time_ns;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_lda_cpu);
} counters SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_lda_bucket);
} buckets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_kept);
} tails SEC(".maps");

WL_INLINE int wl_travels(const struct wl_row *row)
{
    return (row->src_high & source_net[2]) == source_net[0] && (row->src_low & source_net[3]) == source_net[1] &&
           (row->dst_high & destination_net[2]) == destination_net[0] && (row->dst_low & destination_net[3]) == destination_net[1];
}

/* Keep a packet as a cache does, whose level rises when it is full. */
static __attribute__((noinline)) void wl_keep(struct wl_lda_cpu *mine, u32 sides, u64 id, s64 time_ns, u64 coin)
{
    struct wl_lda_side *here = &mine->side[sides & 1];
    u32 zeros = wl_leading_zeros(coin), place;
    struct wl_kept *kept;

    for (u32 i = 0; i < 64 && here->live >= tail_most && here->level <= zeros; i++)
        here->live -= here->by_zeros[here->level++ & (WL_ZEROS - 1)];
    if (zeros < here->level)
        return;
    if (here->kept >= tail_room) {
        here->overflowed++;
        return;
    }
    place = sides * tail_room + here->kept;
    kept = bpf_map_lookup_elem(&tails, &place);
    if (!kept) {
        mine->failed++;
        return;
    }
    kept->id = id;
    kept->time_ns = time_ns;
    here->kept++;
    here->live++;
    here->by_zeros[zeros & (WL_ZEROS - 1)]++;
}

WL_INLINE void wl_count(struct wl_lda_cpu *mine, u32 cpu, u64 id, s64 now_ns)
{
    struct wl_lda_bucket *bucket;
    u32 side, place, level;
    s64 found;
    u64 coin;

    if (!wl_turn_at(&mine->turn, now_ns, &side))
        return;
    mine->side[side].packets++;
    found = wl_lda_place(WL_CONSTANT(struct wl_lda, lda), id);
    if (found >= 0) {
        place = (cpu * 2 + side) * bucket_count + (u32)found;
        bucket = bpf_map_lookup_elem(&buckets, &place);
        if (bucket)
            wl_lda_add(bucket, now_ns);
        else
            mine->failed++;
    }
    coin = wl_coin(id, tail_key);
    level = mine->side[side].level;
    if (level == 0 || (level < 64 && coin >> 1 >> (63 - level) == 0))
        wl_keep(mine, cpu * 2 + side, id, now_ns, coin);
}

SEC(WL_HOOK)
int wl_lda(WL_CONTEXT *context)
{
    u32 cpu = bpf_get_smp_processor_id();
    struct wl_lda_cpu *mine = bpf_map_lookup_elem(&counters, &cpu);
    struct wl_row row;
    int reason;

    if (!mine)
        return wl_pass_on(context);
    reason = wl_row_of(context, &row);
    if (reason)
        mine->skipped[reason & WL_REASONS]++;
    else if (wl_travels(&row))
        wl_count(mine, cpu, row.packet_id, wl_now_ns());
    return wl_pass_on(context);
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
