/* A wire between two interfaces: delay, jitter, loss, reordering and rate, for each direction.
 *
 * Law: a frame leaves at its arrival (the kernel's timestamp) + its turn on a link of this rate + delay + jitter. Jitter alone
 * preserves the order. A share of the frames is held back for up to hold-us more; those may be overtaken. A frame that would wait
 * longer than queue-us for its turn is lost. `up` is from interface a to interface b, `down` the reverse. At SIGTERM it prints
 * statistics as JSON. */
#include "lab.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define FRAMES 32768 /* most on the wire, in both directions */
#define FRAME_BYTES 2048
#define AT_ONCE 64
#define LATENESS_BINS 20000 /* bins of 1 us */

struct direction {
    s64 delay_us, jitter_us, hold_us, queue_us;
    double loss, held_share, rate_mbit;
    int from, to; /* sockets */
    struct random random;
    struct heap waiting;
    s64 free_ns; /* when the link has sent everything before */
    s64 last_ns; /* when the last frame that keeps its place leaves */
    u64 received, sent, lost, held, refused;
};

static struct direction up, down;
static char (*frames)[FRAME_BYTES];
static u32 lengths[FRAMES], unused[FRAMES], unused_count;
static u64 lateness[LATENESS_BINS];
static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

static int open_interface(const char *name)
{
    int one = 1, bytes = 64 << 20;
    int index = if_nametoindex(name);
    int fd = check(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0), "socket");
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = index};
    struct packet_mreq promiscuous = {.mr_ifindex = index, .mr_type = PACKET_MR_PROMISC};

    if (!index)
        fail("no interface %s", name);
    check(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one), "PACKET_IGNORE_OUTGOING");
    check(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one), "PACKET_QDISC_BYPASS");
    check(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous), "PACKET_ADD_MEMBERSHIP");
    check(setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes), "SO_RCVBUFFORCE");
    check(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one), "SO_TIMESTAMPNS");
    check(bind(fd, (struct sockaddr *)&address, sizeof address), name);
    return fd;
}

/* The departure time of this frame; -1: never. Draws the same numbers for every frame, so that settings do not shift them. */
static s64 leaves_ns(struct direction *d, s64 arrived_ns, u32 length)
{
    double lost = random_unit(&d->random), held = random_unit(&d->random);
    double jitter = random_unit(&d->random) * 2 - 1, hold = random_unit(&d->random);
    s64 at = arrived_ns;

    if (lost < d->loss || (d->queue_us && d->free_ns - at > d->queue_us * MICROSECOND)) {
        d->lost++;
        return -1;
    }
    if (d->rate_mbit > 0) {
        d->free_ns = (d->free_ns > at ? d->free_ns : at) + (s64)(length * 8e3 / d->rate_mbit);
        at = d->free_ns;
    }
    at += d->delay_us * MICROSECOND + (s64)(jitter * d->jitter_us * MICROSECOND);
    if (at < d->last_ns)
        at = d->last_ns;
    d->last_ns = at;
    if (held < d->held_share) {
        d->held++;
        at += (s64)(hold * d->hold_us * MICROSECOND);
    }
    return at;
}

static s64 arrival_ns(struct msghdr *message)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec time;

            memcpy(&time, CMSG_DATA(c), sizeof time);
            return time.tv_sec * SECOND + time.tv_nsec;
        }
    }
    return clock_ns(CLOCK_REALTIME);
}

/* Receive what has arrived; returns whether there was anything. */
static int receive(struct direction *d)
{
    static struct mmsghdr messages[AT_ONCE];
    static struct iovec vectors[AT_ONCE];
    static char control[AT_ONCE][64];
    u32 slots[AT_ONCE];
    int wanted = unused_count < AT_ONCE ? (int)unused_count : AT_ONCE;
    int count;

    for (int i = 0; i < wanted; i++) {
        slots[i] = unused[--unused_count];
        vectors[i] = (struct iovec){frames[slots[i]], FRAME_BYTES};
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &vectors[i], .msg_iovlen = 1, .msg_control = control[i], .msg_controllen = sizeof control[i]};
    }
    count = recvmmsg(d->from, messages, wanted, 0, NULL);
    if (count < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN)
        fail("recvmmsg: %s", strerror(errno));
    for (int i = 0; i < wanted; i++) {
        s64 at = -1;

        if (i < count) {
            d->received++;
            lengths[slots[i]] = messages[i].msg_len;
            at = leaves_ns(d, arrival_ns(&messages[i].msg_hdr), messages[i].msg_len);
        }
        if (at < 0)
            unused[unused_count++] = slots[i];
        else
            heap_push(&d->waiting, at, slots[i]);
    }
    return count > 0;
}

/* Send what is due. */
static void deliver(struct direction *d)
{
    while (d->waiting.count) {
        s64 late = clock_ns(CLOCK_REALTIME) - d->waiting.dues[0].at_ns;
        u32 slot;

        if (late < 0)
            return;
        slot = heap_pop(&d->waiting).thing;
        if (send(d->to, frames[slot], lengths[slot], 0) < 0)
            d->refused++;
        else
            d->sent++;
        late /= MICROSECOND;
        lateness[late < LATENESS_BINS ? late : LATENESS_BINS - 1]++;
        unused[unused_count++] = slot;
    }
}

static int late_us(double share)
{
    u64 all = 0, seen = 0;
    int bin = 0;

    for (int i = 0; i < LATENESS_BINS; i++)
        all += lateness[i];
    while (bin < LATENESS_BINS - 1 && (double)(seen += lateness[bin]) < share * (double)all)
        bin++;
    return bin;
}

static void say(const char *name, const struct direction *d)
{
    struct tpacket_stats overflow = {0};
    socklen_t size = sizeof overflow;

    getsockopt(d->from, SOL_PACKET, PACKET_STATISTICS, &overflow, &size);
    printf("\"%s\": {\"received\": %lu, \"sent\": %lu, \"lost\": %lu, \"held\": %lu, \"dropped\": %lu}, ", name, d->received,
        d->sent, d->lost, d->held, d->refused + overflow.tp_drops);
}

int main(int count, char **arguments)
{
    const char *a = NULL, *b = NULL;
    s64 seed = 1;
    const struct setting settings[] = {
        {"a", TEXT, &a},
        {"b", TEXT, &b},
        {"seed", INTEGER, &seed},
        {"up-delay-us", INTEGER, &up.delay_us},
        {"up-jitter-us", INTEGER, &up.jitter_us},
        {"up-loss", NUMBER, &up.loss},
        {"up-held", NUMBER, &up.held_share},
        {"up-hold-us", INTEGER, &up.hold_us},
        {"up-mbit", NUMBER, &up.rate_mbit},
        {"up-queue-us", INTEGER, &up.queue_us},
        {"down-delay-us", INTEGER, &down.delay_us},
        {"down-jitter-us", INTEGER, &down.jitter_us},
        {"down-loss", NUMBER, &down.loss},
        {"down-held", NUMBER, &down.held_share},
        {"down-hold-us", INTEGER, &down.hold_us},
        {"down-mbit", NUMBER, &down.rate_mbit},
        {"down-queue-us", INTEGER, &down.queue_us},
        {NULL},
    };
    struct sched_param first = {.sched_priority = 20}; /* above everything else, also where that has priority 10 */
    sigset_t ending, none;
    int poll;

    read_settings(count, arguments, settings);
    if (!a || !b)
        fail("usage: wire a=INTERFACE b=INTERFACE [name=value ...]");
    up.from = down.to = open_interface(a);
    down.from = up.to = open_interface(b);
    up.random.at = (u64)seed * 2;
    down.random.at = (u64)seed * 2 + 1;
    frames = grow(NULL, sizeof *frames * FRAMES);
    for (u32 i = 0; i < FRAMES; i++)
        unused[unused_count++] = i;

    /* Signals are accepted only while it waits: none is missed between the check and the wait. */
    sigemptyset(&none);
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigprocmask(SIG_BLOCK, &ending, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = stop}, NULL);

    wake_punctually();
    if (sched_setscheduler(0, SCHED_FIFO, &first))
        fprintf(stderr, "no SCHED_FIFO: delays are less exact\n");
    poll = check(epoll_create1(0), "epoll_create1");
    check(epoll_ctl(poll, EPOLL_CTL_ADD, up.from, &(struct epoll_event){.events = EPOLLIN}), "epoll_ctl");
    check(epoll_ctl(poll, EPOLL_CTL_ADD, down.from, &(struct epoll_event){.events = EPOLLIN}), "epoll_ctl");
    puts("ready");
    fflush(stdout);

    while (!stopped) {
        struct epoll_event events[2];
        struct timespec wait;
        s64 next = INT64_MAX;
        int busy = receive(&up) + receive(&down);

        deliver(&up);
        deliver(&down);
        if (up.waiting.count)
            next = up.waiting.dues[0].at_ns;
        if (down.waiting.count && down.waiting.dues[0].at_ns < next)
            next = down.waiting.dues[0].at_ns;
        wait = timespec_of(busy ? 0 : next - clock_ns(CLOCK_REALTIME));
        epoll_pwait2(poll, events, 2, next == INT64_MAX && !busy ? NULL : &wait, &none);
    }
    putchar('{');
    say("up", &up);
    say("down", &down);
    printf("\"late_us\": {\"p50\": %d, \"p99\": %d}}\n", late_us(0.5), late_us(0.99));
    return 0;
}
