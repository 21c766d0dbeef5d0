/* The maps of the balancer. User space has the same structures in ebpf/balance_maps.py. */
#ifndef WIRELAG_BALANCE_MAPS_H
#define WIRELAG_BALANCE_MAPS_H

#include "abi.h"
#include "pirate_auto.h"
#include "pirate_modes.h"
#include "protocols.h"

#define PORTS 8
#define GROUP 8 /* connections that share a line of keys; also the unconfirmed ones of a set */
#define TAKEN 1 /* not a key: a slot being filled */
/* Beside a backend's MAC address: */
#define DOWN (1ull << 48)         /* it fails its health check */
#define OTHER_TUNNEL (1ull << 49) /* the second of its tunnels is in use */
#define IPIP (1ull << 50)         /* it is reached through a tunnel: IP in IP */
#define GUE (1ull << 51)          /* or IP in UDP */
#define NO_BACKEND 0xffffu        /* in the Maglev table */
#define SEEN_SHIFT 24             /* times of connections are in units of 2^24 ns: 32 bits last two years */
#define PACE_SHIFT 3              /* new connections are limited in each 2^3 of these units */
#define NAME_BYTES 64
#define ADDRESS_BYTES 48

#define WL_ONCE __attribute__((noinline)) int /* a function that the verifier checks once */

enum method { NOTHING, BY_AUTO, BY_MODES }; /* NOTHING: balance only */

struct balance_settings {
    u32 abi;    /* version of the layout of all these maps; user space has the same number */
    u32 active; /* the Maglev table in use */
    u64 vip_high, vip_low;
    u64 seed;         /* secret: of the tables of connections */
    u64 table_seed;   /* of Maglev: balancers side by side have the same */
    u16 ports[PORTS]; /* all are set: fewer are repeated */
    u8 mac[6];        /* the interface's; 0: not ready, everything passes */
    u8 protocol;
    u8 any_port;
    u32 table_size, group_mask;
    u32 idle, closing, settled; /* in units of connections' times */
    u32 opening_mask, most_new; /* most_new: connections per unit of the pace */
    u32 previous;               /* the Maglev table before weights began to move */
    u32 changed, kept;          /* since when the active one is in use, and since when the previous one is kept */
    u32 mtu;                    /* longest IP packet that leaves */
    u16 gue_port, spare;
    struct wl_pirate pirate;
};

/* The ends of a tunnel: addresses of the outer header. Those of IPv4 are mapped. */
struct tunnel {
    u64 to_high, to_low, from_high, from_low;
};

struct backend {
    u64 mac;                                       /* six bytes in order, marks above them, written at once; 0: absent */
    char name[NAME_BYTES], address[ADDRESS_BYTES]; /* for the process that takes over */
    struct tunnel tunnels[2];                      /* one is written while the other is in use */
};

/* Counters of one backend on one CPU; they only grow. */
struct tally {
    u64 packets, bytes, opened;
    u64 requests, repeated; /* repeated: retransmitted requests and SYNs */
    u64 sum_ns, count;      /* sum and number of response latencies */
    u64 abstained;          /* epochs without an estimate */
};

enum fault {
    TABLE_FULL, /* packets of connections that did not fit: all others there are settled */
    UNSERVED,   /* dropped: there is no backend */
    ORPHANED,   /* connections that moved because their backend is gone */
    BUSY,       /* not measured: another CPU had the connection */
    FRAGMENTS,
    MALFORMED,
    UNKNOWN,    /* packets of connections that are in no table, other than those that open one */
    LIMITED,    /* packets of connections that wait: too many new ones at once */
    PUSHED_OUT, /* connections that made room for a new one, because they were silent for longest */
    TOO_LONG,   /* dropped: longer than the MTU with the tunnel's header */
    UNSENT,     /* dropped: the driver has no room for the tunnel's header */
    FAULTS
};

struct group {
    u64 keys[GROUP];
};

struct connection {
    u32 busy; /* a CPU is measuring */
    u32 seen;
    u16 backend;
    u8 closed, method; /* method: of its record */
    u32 since;         /* when it was confirmed */
    u32 next, acked;   /* the sequence number that the client sends next, and what it has acknowledged (0: not known) */
    union {
        struct wl_auto_flow by_auto;
        struct wl_modes_flow modes;
    } flow;
};

/* Connections with one packet so far, or only SYNs. A word is the time of the last packet in ns modulo 2^48, with three marks in
 * its lowest bits, then 16 bits for the backend. `shown`: by its SYN; 0: another packet came after it, or there was none. */
struct opening {
    u64 keys[GROUP], words[GROUP], shown[GROUP];
};

enum { BACKEND_BITS = 16, TIME_BITS = 48 };
#define MARKED (1ull << 16)  /* TCP: it began with a SYN; UDP: its first packet was full */
#define CLAIMED (1ull << 17) /* a CPU is confirming it */
#define FAR (1ull << 18)     /* its SYN passed several routers */

/* How many connections were confirmed in the current unit of time, and how many senders told of what does not fit. */
struct pace {
    u32 unit, used;
};
enum { CONFIRMING, TELLING, PACES };

/* A takeover finds the maps of another version: if you change one of these, change ABI in ebpf/balance_maps.py. */
_Static_assert(sizeof(struct balance_settings) == 136 && sizeof(struct backend) == 184, "settings or backends: another ABI");
_Static_assert(sizeof(struct tally) == 64 && FAULTS == 11, "counters: another ABI");
_Static_assert(sizeof(struct connection) == 280 && sizeof(struct opening) == 192, "connections: another ABI");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct balance_settings);
} settings SEC(".maps");

/* Three tables: the active, the previous, and one that user space fills before one store makes it active. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 3);
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

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct opening);
} openings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, PACES);
    __type(key, u32);
    __type(value, struct pace);
} paces SEC(".maps");

#endif
