/* The maps of the balancer. User space has the same structures in ebpf/balance_maps.py. */
#ifndef WIRELAG_BALANCE_MAPS_H
#define WIRELAG_BALANCE_MAPS_H

#include "abi.h"
#include "pirate_modes.h"

#define PORTS 8
#define GROUP 8            /* connections that share a line of keys */
#define TAKEN 1            /* not a key: a slot being filled */
#define NO_BACKEND 0xffffu /* in the Maglev table */
#define SEEN_SHIFT 24      /* times of connections are in units of 2^24 ns: 32 bits last two years */
#define NAME_BYTES 64
#define ADDRESS_BYTES 48

struct balance_settings {
    u32 abi;    /* version of the layout of all these maps; user space has the same number */
    u32 active; /* the half of the Maglev table in use */
    u64 vip_high, vip_low;
    u64 seed;
    u16 ports[PORTS]; /* all are set: fewer are repeated */
    u8 mac[6];        /* the interface's; 0: not ready, everything passes */
    u8 protocol;
    u8 any_port;
    u32 table_size, group_mask;
    u32 idle, closing; /* in units of connections' times */
    struct wl_pirate pirate;
};

struct backend {
    u64 mac;                                       /* six bytes in order, written at once; 0: absent */
    char name[NAME_BYTES], address[ADDRESS_BYTES]; /* for the process that takes over */
};

/* Counters of one backend on one CPU; they only grow. */
struct tally {
    u64 packets, bytes, opened;
    u64 requests, repeated; /* repeated: retransmitted requests and SYNs */
    u64 sum_ns, count;      /* sum and number of response latencies */
    u64 abstained;          /* epochs without an estimate */
};

enum fault {
    TABLE_FULL, /* packets of connections that did not fit */
    UNSERVED,   /* dropped: there is no backend */
    ORPHANED,   /* connections that moved because their backend is gone */
    BUSY,       /* not measured: another CPU had the connection */
    FRAGMENTS,
    MALFORMED,
    FAULTS
};

struct group {
    u64 keys[GROUP];
};

struct connection {
    u32 busy; /* a CPU is measuring */
    u32 seen;
    u16 backend;
    u8 closed, spare;
    u32 unused;
    struct wl_modes_flow flow;
};

/* A takeover finds the maps of another version: if you change one of these, change ABI in ebpf/balance_maps.py. */
_Static_assert(sizeof(struct balance_settings) == 96 && sizeof(struct backend) == 120, "settings or backends: another ABI");
_Static_assert(sizeof(struct tally) == 64 && FAULTS == 6, "counters: another ABI");
_Static_assert(sizeof(struct connection) == 160, "connections: another ABI");
_Static_assert(__builtin_offsetof(struct wl_modes_flow, front.flags) == 30, "flags of flows, which user space reads: another ABI");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct balance_settings);
} settings SEC(".maps");

/* Two halves: user space fills the unused one, then swaps them by one store. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 2);
    __type(key, u32);
    __type(value, u16);
} maglev SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct backend);
} backends SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct tally);
} tallies SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, FAULTS);
    __type(key, u32);
    __type(value, u64);
} faults SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct group);
} groups SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, GROUP);
    __type(key, u32);
    __type(value, struct connection);
} connections SEC(".maps");

#endif
