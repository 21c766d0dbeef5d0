/* Fridges in the kernel: requests wait in slots that all CPUs share; samples are summed where they are found (kernels/fridge.h).
 *
 * A slot that another CPU is changing is left alone: the request is not kept, the response not found, and it is counted. On one
 * CPU the same packets give the same samples as in user space. Samples go into bins of the CPU that found them. A file that
 * defines WL_GROUPS before it includes this one makes the program that also writes each sample into a log of the CPU, with what
 * user space needs to find its group. */
#include "hook.h"

#include "turn.h"

/* A claimed slot has an id that no request has. */
#define WL_BUSY (~0ull)
#define WL_SHARED_SLOTS
#define WL_SLOT_AT(f, place) wl_slot_at(place)
#define WL_CLAIM(slot, seen) wl_claim(&(slot)->id, (seen))
#define WL_ARRIVE(f) (__sync_fetch_and_add(&arrived, 1) + 1)
#define WL_ARRIVALS(f) (*(volatile u64 *)&arrived)
#define WL_RELEASE(slot, with) WL_PUBLISH(&(slot)->id, (with))

u64 arrived, busy;

struct wl_slot;
static struct wl_slot *wl_slot_at(u64 place);
static int wl_claim(u64 *id, u64 seen);

#include "distribution.h"
#include "filter.h"
#include "fridge.h"

const volatile struct wl_fridges fridges;
const volatile struct wl_filter wanted;
const volatile u32 filtered;

struct wl_fridge_side {
    u64 packets, requests, backwards, too_long;
    struct wl_sums sums[2]; /* by leg */
};

struct wl_fridge_cpu {
    struct wl_turn turn;
    struct wl_fridge_side side[2];
    u64 skipped[WL_REASONS + 1], failed;
    u64 written, read, overflowed; /* entries of the log, and samples that it had no place for */
};

struct wl_in_bin {
    u64 weight, square;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_fridge_cpu);
} counters SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_slot);
} slots SEC(".maps");

struct { /* per CPU, side and leg */
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_in_bin);
} bins SEC(".maps");

struct { /* per CPU, side, leg and crowd */
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} crowds SEC(".maps");

static __attribute__((always_inline)) struct wl_slot *wl_slot_at(u64 place)
{
    __u32 index = (__u32)place;

    return bpf_map_lookup_elem(&slots, &index);
}

static __attribute__((always_inline)) int wl_claim(u64 *id, u64 seen)
{
    if (seen != WL_BUSY && __sync_val_compare_and_swap(id, seen, WL_BUSY) == seen)
        return 1;
    __sync_fetch_and_add(&busy, 1);
    return 0;
}

#ifdef WL_GROUPS
const volatile u32 log_mask; /* places of a CPU's log, less one */

/* A sample, and what tells groups apart. */
struct wl_told {
    u64 name; /* of its interval */
    s64 delay_ns;
    u64 weight, src_high, src_low, dst_high, dst_low, flow_key, transaction;
    u16 src_port, dst_port;
    u8 leg, kind, traffic_class, spare;
};

struct { /* per CPU */
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wl_told);
} sample_log SEC(".maps");

WL_INLINE void wl_tell(struct wl_fridge_cpu *mine, u32 sides, const struct wl_weighed *sample, const struct wl_row *row)
{
    u32 place = (sides >> 1) * (log_mask + 1) + ((u32)mine->written & log_mask);
    struct wl_told *told = bpf_map_lookup_elem(&sample_log, &place);

    if (!told || mine->written - *(volatile u64 *)&mine->read > log_mask) {
        mine->overflowed++;
        return;
    }
    *told = (struct wl_told){
        .name = mine->turn.name[sides & 1],
        .delay_ns = sample->delay_ns,
        .weight = sample->weight,
        .src_high = row->src_high,
        .src_low = row->src_low,
        .dst_high = row->dst_high,
        .dst_low = row->dst_low,
        .flow_key = row->flow_key,
        .transaction = row->transaction,
        .src_port = row->src_port,
        .dst_port = row->dst_port,
        .leg = sample->leg & 1,
        .kind = row->kind,
        .traffic_class = row->traffic_class,
    };
    WL_PUBLISH(&mine->written, mine->written + 1);
}
#endif

WL_INLINE void wl_add_sample(struct wl_fridge_cpu *mine, u32 sides, const struct wl_weighed *sample, u64 flow_key)
{
    u32 leg = sample->leg & 1, bin = wl_bin((u64)sample->delay_ns);
    u32 place = (sides * 2 + leg) * WL_BINS + bin;
    struct wl_in_bin *in_bin = bpf_map_lookup_elem(&bins, &place);
    u64 *crowd;

    place = ((sides * 2 + leg) * WL_CROWDS + wl_crowd(flow_key)) * WL_COARSE_BINS + (bin >> WL_COARSE_BITS);
    crowd = bpf_map_lookup_elem(&crowds, &place);
    if (!in_bin || !crowd) {
        mine->failed++;
        return;
    }
    wl_distribute_into(&in_bin->weight, &in_bin->square, &mine->side[sides & 1].sums[leg], (u64)sample->delay_ns, sample->weight);
    *crowd += sample->weight;
}

WL_INLINE void wl_observe(struct wl_fridge_cpu *mine, u32 cpu, const struct wl_row *row, s64 now_ns)
{
    struct wl_fridges *f = (struct wl_fridges *)WL_CONSTANT(struct wl_fridges, fridges);
    struct wl_seen seen = {
        .time_ns = now_ns,
        .flow_key = row->flow_key,
        .transaction = row->transaction,
        .payload_length = row->payload_length,
        .seq = row->seq,
        .ack = row->ack,
        .tsval = row->tsval,
        .tsecr = row->tsecr,
        .src_port = row->src_port,
        .dst_port = row->dst_port,
        .flags = row->flags,
        .protocol = row->protocol,
        .kind = row->kind,
        .message = row->message,
    };
    struct wl_weighed sample;
    struct wl_errand errand;
    struct wl_visit visit;
    u32 side;

    if (!wl_turn_at(&mine->turn, now_ns, &side))
        return;
    mine->side[side].packets++;
    wl_fridge_read(f->matchers, &seen, &errand);
    wl_fridge_visit(f, &errand, &visit);
    if (wl_fridge_packet(f, &visit, now_ns, &sample)) {
        wl_add_sample(mine, cpu * 2 + side, &sample, row->flow_key);
#ifdef WL_GROUPS
        wl_tell(mine, cpu * 2 + side, &sample, row);
#endif
    }
    mine->side[side].requests += sample.asked;
    mine->side[side].backwards += sample.went_back;
    mine->side[side].too_long += sample.too_long;
}

SEC(WL_HOOK)
int wl_fridge(WL_CONTEXT *context)
{
    u32 cpu = bpf_get_smp_processor_id();
    struct wl_fridge_cpu *mine = bpf_map_lookup_elem(&counters, &cpu);
    struct wl_row row;
    int reason;

    if (!mine)
        return wl_pass_on(context);
    reason = wl_row_of(context, &row);
    if (reason)
        mine->skipped[reason & WL_REASONS]++;
    else if (!filtered || wl_wants(WL_CONSTANT(struct wl_filter, wanted), &row))
        wl_observe(mine, cpu, &row, wl_now_ns());
    return wl_pass_on(context);
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
