/* Fridges in the kernel: requests wait in slots that all CPUs share; samples are summed where they are found (kernels/fridge.h).
 *
 * A slot that another CPU is changing is left alone: the request is not kept, the response not found, and it is counted. On one
 * CPU the same packets give the same samples as in user space. Samples go into bins of the CPU that found them. */
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
#include "fridge.h"

const volatile struct wl_fridges fridges;

struct wl_fridge_side {
    u64 packets, requests, backwards, too_long;
    struct wl_sums sums[2]; /* by leg */
};

struct wl_fridge_cpu {
    struct wl_turn turn;
    struct wl_fridge_side side[2];
    u64 skipped[WL_REASONS + 1], failed;
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
    if (wl_fridge_packet(f, &visit, now_ns, &sample))
        wl_add_sample(mine, cpu * 2 + side, &sample, row->flow_key);
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
    else
        wl_observe(mine, cpu, &row, wl_now_ns());
    return wl_pass_on(context);
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
