/* A load balancer in XDP: direct server return by MAC address or tunnel, with Pirate's `auto` or `modes` in the same pass.
 *
 * Law: only packets to the service are touched; all others pass unchanged. A connection stays with the backend of its first
 * packet. Those in no table follow the Maglev table of before weights moved, so they stay too if they are older than that. ICMP
 * errors about a connection follow the connection. A frame that is not addressed to this interface passes: frames that a switch
 * floods back are not sent again. Every failure is counted. User space (ebpf/balance.py) writes settings, backends and the unused
 * Maglev table, and reads the rest; nothing here waits for it. */
#include "balance_tunnels.h"

enum { NEAR = 1 << 16 };  /* bytes by which a packet may be ahead: those before it were lost on their way */
enum { HEARD = 1 << 18 }; /* bytes of the server that a client may acknowledge at once */

/* ---- the packet ---- */

WL_INLINE int is_ours(const u8 *mac, const u8 *own)
{
    u32 a, b;
    u16 c, d;

    __builtin_memcpy(&a, mac, 4);
    __builtin_memcpy(&b, own, 4);
    __builtin_memcpy(&c, mac + 4, 2);
    __builtin_memcpy(&d, own + 4, 2);
    return a == b && c == d;
}

WL_INLINE int is_served(const struct balance_settings *s, u16 port)
{
    int served = s->any_port;

    for (u32 i = 0; i < PORTS; i++)
        served |= s->ports[i] == port;
    return served;
}

/* An IPv4 address as the lower half of an IPv6 address. */
WL_INLINE u64 mapped(u32 address)
{
    return 0xffffull << 32 | address;
}

/* TCP options of any kind and order, `bytes` long, as kernels/transport.h reads them. */
WL_ONCE wl_read_options(struct xdp_md *context, u32 offset, u32 bytes, struct wl_client_packet *p)
{
    u8 options[64] = {0};
    u32 at = 0;

    if (!p || bytes < 2 || bytes > 40 || offset > 1024 || bpf_xdp_load_bytes(context, offset, options, bytes))
        return 0;
    for (u32 i = 0; i < 40; i++) {
        u32 kind, length;

        at &= 63;
        if (at + 2 > bytes)
            break;
        kind = options[at];
        length = kind == 1 ? 1 : options[(at + 1) & 63];
        if (!kind || (kind != 1 && length < 2) || at + length > bytes)
            break;
        if (kind == 2 && length == 4 && p->tcp_flags & WL_CLIENT_SYN && !p->mss)
            p->mss = (u16)(options[(at + 2) & 63] << 8 | options[(at + 3) & 63]);
        if (kind == 8 && length == 10 && !(p->has & WL_HAS_TIMESTAMPS)) {
            for (u32 byte = 0; byte < 4; byte++) {
                p->tsval = p->tsval << 8 | options[(at + 2 + byte) & 63];
                p->tsecr = p->tsecr << 8 | options[(at + 6 + byte) & 63];
            }
            p->has |= WL_HAS_TIMESTAMPS;
        }
        at += length;
    }
    return 0;
}

/* What `auto` needs of a TCP header: nearly all packets have only timestamps, in one place, and SYNs their MSS first. */
WL_INLINE void read_tcp(struct xdp_md *context, const u8 *at, const u8 *end, u32 head, struct wl_client_packet *p)
{
    u32 options = (u32)(at - (const u8 *)(long)context->data) + 20;

    if (head == 20)
        return;
    if (p->tcp_flags & WL_CLIENT_SYN) {
        if (at + 24 <= end && wl_be16(at + 20) == 0x0204)
            p->mss = wl_be16(at + 22);
        if (!p->mss)
            wl_read_options(context, options, head - 20, p);
    } else if (head >= 32 && at + 32 <= end && wl_be32(at + 20) == 0x0101080a) {
        p->tsval = wl_be32(at + 24);
        p->tsecr = wl_be32(at + 28);
        p->has |= WL_HAS_TIMESTAMPS;
    } else {
        wl_read_options(context, options, head - 20, p);
    }
}

/* Read what follows the IP header, `bytes` long. */
WL_INLINE int read_transport(
    struct xdp_md *context, const struct balance_settings *s, const u8 *at, const u8 *end, u32 bytes, struct arrival *a)
{
    u32 head = 8;

    if (at + 8 > end || bytes < 8) {
        fault(MALFORMED);
        return 0;
    }
    if (!is_served(s, wl_be16(at + 2)))
        return 0;
    a->client.port = wl_be16(at) | (u32)wl_be16(at + 2) << 16;
    if (s->protocol == TCP) {
        if (at + 20 > end || (head = (at[12] >> 4) * 4u) < 20 || bytes < head) {
            fault(MALFORMED);
            return 0;
        }
        a->packet.seq = wl_be32(at + 4);
        a->packet.ack = wl_be32(at + 8);
        a->packet.tcp_flags = at[13];
        a->packet.has |= WL_HAS_TCP;
        if (measures == BY_AUTO)
            read_tcp(context, at, end, head, &a->packet);
    }
    a->packet.payload = bytes - head;
    return 1;
}

/* Read an error that quotes a backend's packet: the service's port, then the client's. */
WL_INLINE int read_quoted(const struct balance_settings *s, const u8 *at, const u8 *end, struct arrival *a)
{
    if (at + 4 > end || !is_served(s, wl_be16(at)))
        return 0;
    a->client.port = wl_be16(at + 2) | (u32)wl_be16(at) << 16;
    return a->error = 1;
}

WL_INLINE int read_icmp(const struct balance_settings *s, const u8 *at, const u8 *end, struct arrival *a)
{
    const u8 *ip = at + 8;

    if (ip + 20 > end || (at[0] != 3 && at[0] != 11 && at[0] != 12) || ip[0] != 0x45 || ip[9] != s->protocol ||
        s->vip_low != mapped(wl_be32(ip + 12)))
        return 0;
    a->client.low = mapped(wl_be32(ip + 16));
    return read_quoted(s, ip + 20, end, a);
}

WL_INLINE int read_icmp6(const struct balance_settings *s, const u8 *at, const u8 *end, struct arrival *a)
{
    const u8 *ip = at + 8;

    if (ip + 40 > end || at[0] < 1 || at[0] > 4 || ip[6] != s->protocol || s->vip_low != wl_be64(ip + 16) ||
        s->vip_high != wl_be64(ip + 8))
        return 0;
    a->client.high = wl_be64(ip + 24);
    a->client.low = wl_be64(ip + 32);
    return read_quoted(s, ip + 40, end, a);
}

WL_INLINE int read_ipv4(struct xdp_md *context, const struct balance_settings *s, const u8 *ip, const u8 *end, struct arrival *a)
{
    u32 head, bytes;

    if (ip + 20 > end || s->vip_high || s->vip_low != mapped(wl_be32(ip + 16)) || (ip[9] != s->protocol && ip[9] != ICMP))
        return 0;
    head = (ip[0] & 15) * 4u;
    bytes = wl_be16(ip + 2);
    if (ip[0] >> 4 != 4 || head < 20 || bytes < head || bytes > end - ip) {
        fault(MALFORMED);
        return 0;
    }
    if (wl_be16(ip + 6) & 0x3fff) {
        fault(FRAGMENTS);
        return 0;
    }
    a->packet.length = bytes;
    a->whole = ip[6] >> 6 & 1;
    if (ip[9] == ICMP)
        return read_icmp(s, ip + head, end, a);
    a->client.low = mapped(wl_be32(ip + 12));
    a->packet.ip_id = wl_be16(ip + 4);
    a->packet.has = (a->packet.ip_id ? WL_HAS_IP_ID : 0) | (wl_has_travelled(ip[8]) ? WL_HAS_TRAVELLED : 0);
    return read_transport(context, s, ip + head, end, bytes - head, a);
}

WL_INLINE int read_ipv6(struct xdp_md *context, const struct balance_settings *s, const u8 *ip, const u8 *end, struct arrival *a)
{
    u32 bytes;

    if (ip + 40 > end || s->vip_low != wl_be64(ip + 32) || s->vip_high != wl_be64(ip + 24))
        return 0;
    if (ip[6] == FRAGMENT)
        fault(FRAGMENTS);
    if (ip[6] != ICMP6 && ip[6] != s->protocol)
        return 0;
    bytes = wl_be16(ip + 4);
    if (ip[0] >> 4 != 6 || bytes > end - ip - 40) {
        fault(MALFORMED);
        return 0;
    }
    a->packet.length = bytes + 40;
    a->whole = 1;
    if (ip[6] == ICMP6)
        return read_icmp6(s, ip + 40, end, a);
    a->client.high = wl_be64(ip + 8);
    a->client.low = wl_be64(ip + 16);
    a->packet.has = wl_has_travelled(ip[7]) ? WL_HAS_TRAVELLED : 0;
    return read_transport(context, s, ip + 40, end, bytes, a);
}

WL_INLINE int read_frame(
    struct xdp_md *context, const struct balance_settings *s, const u8 *frame, const u8 *end, struct arrival *a)
{
    const u8 *at = frame + 14;
    u16 type;

    if (at > end || !is_ours(frame, s->mac))
        return 0;
    type = wl_be16(frame + 12);
    for (u32 i = 0; i < 2 && (type == VLAN || type == VLANS); i++) {
        if (at + 4 > end)
            return 0;
        __builtin_memcpy(&a->tag[i], at - 2, 4);
        a->tags++;
        type = wl_be16(at + 2);
        at += 4;
    }
    if (type == IPV4)
        return read_ipv4(context, s, at, end, a);
    return type == IPV6 ? read_ipv6(context, s, at, end, a) : 0;
}

WL_INLINE u8 is_syn(const struct arrival *a)
{
    return a->packet.has & WL_HAS_TCP && (a->packet.tcp_flags & (WL_CLIENT_SYN | WL_CLIENT_ACK)) == WL_CLIENT_SYN;
}

WL_INLINE u32 seen_at(const struct arrival *a)
{
    return (u32)(a->packet.time_ns >> SEEN_SHIFT);
}

/* ---- backends ---- */

/* The MAC address of a backend, with its marks; 0: absent. Read once: it may be removed at any moment. */
WL_INLINE u64 mac_of(u32 number)
{
    struct backend *backend = bpf_map_lookup_elem(&backends, &number);

    return backend ? *(volatile const u64 *)&backend->mac : 0;
}

WL_INLINE u32 entry_of(const struct balance_settings *s, u32 table, u32 index)
{
    u16 *chosen;

    index += table * s->table_size;
    chosen = bpf_map_lookup_elem(&maglev, &index);
    return chosen ? *chosen : NO_BACKEND;
}

/* The backend of a connection that is in no table. Where a SYN tells new ones from old, old ones follow the previous table for as
 * long as a connection may be idle, unless that backend is gone. */
WL_INLINE u32 choice(const struct balance_settings *s, const struct arrival *a, u8 syn)
{
    u64 hash = wl_mix(wl_endpoint_hash(s->table_seed, &a->client)), mac;
    u32 index = (u32)((hash >> 32) * s->table_size >> 32), number;

    if (s->protocol == TCP && !syn && wl_behind(seen_at(a), s->changed) <= (int)s->idle) {
        number = entry_of(s, s->previous, index);
        mac = mac_of(number);
        if (mac && !(mac & DOWN))
            return number;
    }
    return entry_of(s, s->active, index);
}

/* ---- measurement ---- */

/* Follow what a client has sent. A FIN or RST ends the connection only with the very next sequence number: one that was forged
 * by somebody who knows the client's address and port would let a forged SYN move the connection. So would data that goes before
 * it, hence what counts must also acknowledge what its server may have sent: both numbers would have to be guessed. Who misses the
 * end keeps the entry for longer, and its port leads to the same backend. */
WL_INLINE void follow(const struct wl_client_packet *p, struct connection *c)
{
    u32 ahead = p->seq - c->next;
    u8 ends = p->tcp_flags & (WL_CLIENT_FIN | WL_CLIENT_RST), acks = p->tcp_flags & WL_CLIENT_ACK;

    if (acks && c->acked && p->ack - c->acked > HEARD)
        return;
    if (ends && !ahead)
        c->closed = 1; /* a RST may come without an acknowledgement */
    if (acks && ahead <= NEAR && (!ends || !ahead)) {
        c->next = p->seq + p->payload;
        c->acked = p->ack;
    }
}

/* Measure a packet of its connection; `moved`: earlier measurements were of another backend. */
WL_INLINE void take(const struct balance_settings *s, const struct arrival *a, struct connection *c, struct tally *t, u8 moved)
{
    c->seen = seen_at(a);
    if (a->packet.has & WL_HAS_TCP && !is_syn(a))
        follow(&a->packet, c);
    if (!measures)
        return;
    if (__sync_lock_test_and_set(&c->busy, 1)) {
        fault(BUSY);
        return;
    }
    if (moved || c->method != measures) {
        __builtin_memset(&c->flow, 0, sizeof c->flow);
        c->method = (u8)measures;
    }
    wl_measure(c, &s->pirate, t);
    WL_PUBLISH(&c->busy, 0);
}

/* Remember a connection that is not confirmed: 1 if it is from now on. */
WL_INLINE int remember(const struct balance_settings *s, const struct arrival *a, struct newcomer *n, struct tally *t, u8 anew)
{
    u8 tcp = s->protocol == TCP;
    u64 mark = is_syn(a) || (!tcp && a->packet.length >= WL_FULL_LENGTH) ? MARKED : 0;
    u64 far = a->packet.has & WL_HAS_TRAVELLED ? FAR : 0;

    if (n->slot < GROUP && !anew && !is_syn(a)) {
        n->began_ns = n->now_ns - silence(n->word, n->now_ns);
        if (!wl_confirm(n))
            return 0;
        t->opened += tcp && !(n->word & MARKED);
        return 1;
    }
    t->repeated += tcp && !anew;
    t->requests += !tcp && measures;
    wl_open(n, word_of(n->now_ns, mark | far, n->backend), is_syn(a) ? shown_by(&a->packet) : 0);
    return 0;
}

SEC("xdp")
int wl_balance(struct xdp_md *context)
{
    struct newcomer n = {0};
    struct balance_settings *s;
    struct connection *c;
    struct arrival *a;
    struct work *w;
    struct tally *t;
    u32 zero = 0, number;
    u64 to;
    u8 syn, opens, moved = 0;

    s = bpf_map_lookup_elem(&settings, &zero);
    w = bpf_map_lookup_elem(&works, &zero);
    if (!s || !w)
        return XDP_PASS;
    a = &w->arrival;
    __builtin_memset(a, 0, sizeof *a);
    if (!read_frame(context, s, (void *)(long)context->data, (void *)(long)context->data_end, a))
        return XDP_PASS;
    a->packet.time_ns = replayed ? wl_now_ns() : (s64)bpf_ktime_get_ns(); /* a clock that is never set */
    n.key = wl_mix(wl_endpoint_hash(s->seed, &a->client));
    n.key = n.key > TAKEN ? n.key : TAKEN + 1;
    syn = is_syn(a);

    c = find(s, n.key);
    if (c) {
        opens = syn && c->closed;
        number = c->backend;
    } else {
        n.now_ns = a->packet.time_ns;
        n.seen = seen_at(a);
        n.seq = a->packet.seq;
        wl_find_opening(&n);
        opens = n.slot >= GROUP || silence(n.word, n.now_ns) >> SEEN_SHIFT > (syn ? s->closing : s->idle);
        number = (u16)n.word;
        if (opens && s->protocol == TCP && !syn && !a->error)
            fault(UNKNOWN);
    }
    to = opens ? 0 : mac_of(number);
    if (syn && to & DOWN) /* no answer came from there: a new connection, or one that died unseen, whose port is used again */
        opens = 1;
    if (opens || !to) {
        moved = !opens;
        if (c && moved && !c->closed) /* else no response is awaited: a last packet, after its server has left */
            fault(ORPHANED);
        number = choice(s, a, syn);
        to = mac_of(number);
    }
    t = bpf_map_lookup_elem(&tallies, &number);
    if (!to || !t) {
        fault(UNSERVED);
        return XDP_DROP;
    }
    t->packets++;
    t->bytes += context->data_end - context->data;
    if (a->error)
        return forward(context, to, number);
    t->opened += opens && (syn || s->protocol != TCP);
    if (!c) {
        n.backend = number;
        c = remember(s, a, &n, t, opens) ? find(s, n.key) : 0;
    } else if (opens || moved) {
        /* Only the CPU that chose records it: another may have reassigned the slot, or user space removed the backend. */
        c->backend = (u16)number;
        c->closed = opens ? 0 : c->closed;
        c->next = opens ? a->packet.seq + syn : c->next;
        c->acked = opens ? 0 : c->acked;
    }
    if (c)
        take(s, a, c, t, moved);
    return forward(context, to, number);
}

char wl_license[] SEC("license") = "Dual BSD/GPL";
