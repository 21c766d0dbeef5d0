/* Forged packets of TCP clients to a service, at a rate: SYNs, ACKs, or a SYN and an ACK for each address (kind=pairs). Sources
 * are in 198.18.0.0/15, where no host answers. Prints how many were sent and how long that took. */
#include "lab.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define TOGETHER 64
#define SYN 2
#define ACK 16

struct frame {
    struct ethhdr link;
    struct iphdr ip;
    struct tcphdr tcp;
} __attribute__((packed));

static void read_mac(const char *text, unsigned char *mac)
{
    if (sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) != 6)
        fail("not a MAC address: %s", text);
}

static u16 folded(u32 sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (u16)~sum;
}

static u32 added(const void *data, u32 bytes)
{
    const unsigned char *at = data;
    u32 sum = 0;

    for (u32 i = 0; i < bytes; i += 2)
        sum += at[i] << 8 | at[i + 1];
    return sum;
}

static void forge(struct frame *f, u64 chance, unsigned flags)
{
    u32 ends;

    f->ip.saddr = htonl(0xc6120000u | (chance & 0x1ffff));
    f->tcp.source = htons((u16)(1024 + (chance >> 20) % 64000));
    f->tcp.seq = htonl((u32)(chance >> 32));
    f->tcp.ack_seq = flags == ACK ? htonl((u32)(chance >> 16)) : 0;
    f->tcp.syn = flags == SYN;
    f->tcp.ack = flags == ACK;
    f->ip.check = f->tcp.check = 0;
    f->ip.check = htons(folded(added(&f->ip, sizeof f->ip)));
    ends = added(&f->ip.saddr, 8) + IPPROTO_TCP + sizeof f->tcp;
    f->tcp.check = htons(folded(added(&f->tcp, sizeof f->tcp) + ends));
}

int main(int count, char **arguments)
{
    const char *interface = "eth0", *from = "", *to = "", *address = "", *kind = "acks";
    s64 port = 80, seed = 1, began, sent = 0;
    double rate = 1000, seconds = 1;
    const struct setting settings[] = {
        {"interface", TEXT, &interface},
        {"from", TEXT, &from},
        {"to", TEXT, &to},
        {"address", TEXT, &address},
        {"kind", TEXT, &kind},
        {"port", INTEGER, &port},
        {"seed", INTEGER, &seed},
        {"rate", NUMBER, &rate},
        {"seconds", NUMBER, &seconds},
        {NULL},
    };
    struct sockaddr_ll here = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_halen = 6};
    struct frame frames[TOGETHER] = {0};
    struct iovec pieces[TOGETHER];
    struct mmsghdr messages[TOGETHER] = {0};
    struct random numbers;
    u64 chance = 0;
    int fd, one = 1, pairs, acks;

    read_settings(count, arguments, settings);
    numbers.at = seed;
    fd = check(socket(AF_PACKET, SOCK_RAW, 0), "socket");
    here.sll_ifindex = (int)if_nametoindex(interface);
    check(bind(fd, (struct sockaddr *)&here, sizeof here), "bind");
    setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one);
    for (u32 i = 0; i < TOGETHER; i++) {
        struct frame *f = &frames[i];

        read_mac(to, f->link.h_dest);
        read_mac(from, f->link.h_source);
        f->link.h_proto = htons(ETH_P_IP);
        f->ip = (struct iphdr){.version = 4, .ihl = 5, .tot_len = htons(40), .frag_off = htons(0x4000), .ttl = 64, .protocol = 6};
        if (inet_pton(AF_INET, address, &f->ip.daddr) != 1)
            fail("not an address: %s", address);
        f->tcp = (struct tcphdr){.dest = htons((u16)port), .doff = 5, .window = htons(64240)};
        pieces[i] = (struct iovec){f, sizeof *f};
        messages[i].msg_hdr.msg_iov = &pieces[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    pairs = !strcmp(kind, "pairs");
    acks = !strcmp(kind, "acks");
    if (!pairs && !acks && strcmp(kind, "syns"))
        fail("not a kind: %s", kind);
    began = clock_ns(CLOCK_MONOTONIC);
    while (clock_ns(CLOCK_MONOTONIC) - began < seconds * SECOND) {
        s64 ahead_ns = (s64)(sent / rate * SECOND) - (clock_ns(CLOCK_MONOTONIC) - began);
        struct timespec wait = timespec_of(ahead_ns);
        int done;

        if (ahead_ns > 200 * MICROSECOND)
            nanosleep(&wait, NULL);
        for (u32 i = 0; i < TOGETHER; i++) {
            int second = pairs && i % 2;

            chance = second ? chance : random_u64(&numbers);
            forge(&frames[i], chance, second || acks ? ACK : SYN);
        }
        done = sendmmsg(fd, messages, TOGETHER, 0);
        sent += done > 0 ? done : 0;
    }
    printf("sent=%lld seconds=%.3f\n", (long long)sent, (double)(clock_ns(CLOCK_MONOTONIC) - began) / SECOND);
    return 0;
}
