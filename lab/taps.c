/* A tap at every port of every router, in both directions, on one clock: CLOCK_REALTIME, set by the kernel when a packet comes
 * in, and when the driver gets an outgoing one. So packets in a router's queue wait between its two taps.
 *
 * The interface to-B of router A fills A.in.B.pcap and A.out.B.pcap; its interface host fills A.in.pcap and A.out.pcap. All IPv4
 * packets except OSPF's are kept. Law: every packet that passed a tap before SIGTERM is in its file, or this fails. */
#include "lab.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define SNAP_BYTES 128
#define MOST_TAPS 1024
#define PAUSE_US 500
#define IPV4 0x0800
#define EVERY_PROTOCOL 0x0003
#define OSPF 89

struct tap {
    int socket;
    FILE *in, *out;
};

static struct tap taps[MOST_TAPS];
static int tap_count;
static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

static FILE *create(const char *folder, const char *router, const char *direction, const char *neighbour)
{
    static const u32 header[] = {0xa1b23c4d, 4 << 16 | 2, 0, 0, SNAP_BYTES, 1}; /* nanoseconds, Ethernet */
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.%s%s%s.pcap", folder, router, direction, *neighbour ? "." : "", neighbour);
    file = fopen(path, "wb");
    if (!file)
        fail("%s: %s", path, strerror(errno));
    fwrite(header, sizeof header, 1, file);
    return file;
}

/* Open it in the router's namespace. The filter is set before the first packet. */
static void open_tap(const char *folder, const char *router, const char *neighbour, unsigned interface)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPV4, 0, 3),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 23),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OSPF, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, 0x40000),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(EVERY_PROTOCOL), .sll_ifindex = interface};
    struct tap *tap = &taps[tap_count];
    int on = 1, bytes = 32 << 20;

    if (tap_count++ == MOST_TAPS)
        fail("more than %d taps", MOST_TAPS);
    tap->socket = check(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0), "socket");
    check(setsockopt(tap->socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter), "filter");
    check(setsockopt(tap->socket, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes), "buffer");
    check(setsockopt(tap->socket, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on), "timestamps");
    tap->in = create(folder, router, "in", neighbour);
    tap->out = create(folder, router, "out", neighbour);
    check(bind(tap->socket, (struct sockaddr *)&at, sizeof at), router);
}

/* A failed link has no taps, as it is not in the database. */
static int carries(const char *interface)
{
    int fd = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    struct ifreq request = {0};

    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    check(ioctl(fd, SIOCGIFFLAGS, &request), interface);
    close(fd);
    return request.ifr_flags & IFF_RUNNING;
}

static void open_router(const char *folder, const char *namespaces, const char *router)
{
    struct if_nameindex *interfaces;
    char path[4096];
    int fd;

    snprintf(path, sizeof path, "%s%s", namespaces, router);
    fd = check(open(path, O_RDONLY), path);
    check(setns(fd, CLONE_NEWNET), path);
    close(fd);
    interfaces = if_nameindex();
    if (!interfaces)
        fail("%s: %s", path, strerror(errno));
    for (struct if_nameindex *i = interfaces; i->if_index; i++) {
        if (!carries(i->if_name))
            continue;
        if (!strcmp(i->if_name, "host"))
            open_tap(folder, router, "", i->if_index);
        else if (!strncmp(i->if_name, "to-", 3))
            open_tap(folder, router, i->if_name + 3, i->if_index);
    }
    if_freenameindex(interfaces);
}

/* Returns whether there was a packet. */
static int keep_one(struct tap *tap)
{
    char frame[SNAP_BYTES], control[256];
    struct sockaddr_ll from;
    struct iovec part = {frame, sizeof frame};
    struct msghdr message = {&from, sizeof from, &part, 1, control, sizeof control, 0};
    ssize_t length = recvmsg(tap->socket, &message, MSG_TRUNC);
    u32 record[4] = {0};
    FILE *file;

    if (length < 0)
        return errno == ENETDOWN; /* reported once when a link fails; packets may follow */
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec time;

            memcpy(&time, CMSG_DATA(c), sizeof time);
            record[0] = time.tv_sec;
            record[1] = time.tv_nsec;
        }
    }
    record[2] = length < SNAP_BYTES ? length : SNAP_BYTES;
    record[3] = length;
    file = from.sll_pkttype == PACKET_OUTGOING ? tap->out : tap->in;
    fwrite(record, sizeof record, 1, file);
    fwrite(frame, record[2], 1, file);
    return 1;
}

static void keep_all(void)
{
    for (int i = 0; i < tap_count; i++)
        while (keep_one(&taps[i]))
            ;
}

/* An earlier failed write is remembered by the file, not by fclose. */
static void finish(FILE *file, const char *folder)
{
    int failed = ferror(file);

    if (fclose(file) || failed)
        fail("folder %s: a capture could not be written: %s", folder, strerror(errno));
}

int main(int count, char **arguments)
{
    const char *folder = ".", *namespaces = "/run/netns/", *routers = "";
    const struct setting settings[] = {
        {"folder", TEXT, &folder},
        {"namespaces", TEXT, &namespaces},
        {"routers", TEXT, &routers},
        {NULL},
    };
    struct timespec pause = timespec_of(PAUSE_US * MICROSECOND);
    u64 missed = 0;
    char *names;

    read_settings(count, arguments, settings);
    signal(SIGTERM, end);
    names = strdup(routers);
    for (char *router = strtok(names, ","); router; router = strtok(NULL, ","))
        open_router(folder, namespaces, router);
    free(names);
    puts("recording");
    fflush(stdout);
    /* The kernel has set the times: polling costs less than a wake-up per packet. */
    while (!ended) {
        keep_all();
        nanosleep(&pause, NULL);
    }
    keep_all();
    for (int i = 0; i < tap_count; i++) {
        struct tpacket_stats seen;
        socklen_t size = sizeof seen;

        check(getsockopt(taps[i].socket, SOL_PACKET, PACKET_STATISTICS, &seen, &size), "statistics");
        missed += seen.tp_drops;
        finish(taps[i].in, folder);
        finish(taps[i].out, folder);
    }
    if (missed)
        fail("missed %llu packets", (unsigned long long)missed);
    return 0;
}
