/* What all programs here share: the kernel helpers that they call, map definitions, the clock.
 *
 * Only clang and the C library's headers are needed to compile them. The kernel knows helpers by their number. */
#ifndef WIRELAG_ABI_H
#define WIRELAG_ABI_H

#include <linux/bpf.h>

#include "types.h"

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static long (*const bpf_tail_call)(void *context, void *programs, __u32 index) = (void *)12;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static __s64 (*const bpf_csum_diff)(void *from, __u32 from_size, void *to, __u32 to_size, __u32 seed) = (void *)28;
static long (*const bpf_skb_pull_data)(struct __sk_buff *context, __u32 length) = (void *)39;
static long (*const bpf_xdp_adjust_head)(struct xdp_md *context, int bytes) = (void *)44;
static long (*const bpf_xdp_adjust_tail)(struct xdp_md *context, int bytes) = (void *)65;
static long (*const bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*const bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;
static long (*const bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)130;
static void *(*const bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static void (*const bpf_ringbuf_discard)(void *data, __u64 flags) = (void *)133;
static long (*const bpf_xdp_load_bytes)(struct xdp_md *context, __u32 offset, void *to, __u32 length) = (void *)189;
static long (*const bpf_loop)(__u32 count, void *function, void *context, __u64 flags) = (void *)181;

/* A store that publishes everything written before it to other CPUs. */
#ifdef WL_ORDERED_STORES /* processors whose stores become visible in order */
#define WL_PUBLISH(place, with)                         \
    do {                                                \
        asm volatile("" ::: "memory");                  \
        *(volatile typeof(*(place)) *)(place) = (with); \
    } while (0)
#else
#define WL_PUBLISH(place, with) ((void)__sync_lock_test_and_set((place), (with)))
#endif

/* The clock is CLOCK_REALTIME, as in captures: the one that is never set (the quickest to read), minus a difference that user
 * space maintains. Replayed programs get the time from outside. Constants are set before loading, and the verifier removes what
 * they exclude. */
const volatile u32 replayed;
u64 replay_ns, ahead_ns;

WL_INLINE s64 wl_now_ns(void)
{
    if (replayed)
        return (s64) * (volatile u64 *)&replay_ns;
    return (s64)(bpf_ktime_get_ns() - *(volatile u64 *)&ahead_ns);
}

#endif
