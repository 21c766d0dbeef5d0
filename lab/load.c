/* A client that logs, for every request, when it was sent and when the last byte of its response arrived.
 *
 * Patterns, for each connection (W: in-flight):
 *   sliding  W requests in flight; each response makes room for one
 *   batch    W requests, all their responses, then the next W
 *   pages    a page, then its objects with at most W in flight, then the next page
 *   open     requests at random times (rate per second and connection), regardless of responses; if connections have a lifetime,
 *            regardless of these, too: a new one takes over at its end, and the old one waits for its last responses
 *   clock    the same at equal intervals, each up to a tenth earlier or later
 * Before it uses the room made by a response, the client thinks: with probability think-share, for think-us. A connection may
 * have a lifetime: after it, nothing more is asked, and when all responses have come, a new one replaces it. patience-us: requests
 * without a response by then, and those of a broken connection, are logged as failed, and a new connection replaces it. Without it
 * any failure ends the program. ack: a datagram of this length acknowledges every ack-every responses, at once or ack-delay-us
 * later. Every request is a separate send; its time is taken just before. A request is answered when all bytes of its response were
 * read. Times are CLOCK_MONOTONIC; the log begins with CLOCK_REALTIME minus CLOCK_MONOTONIC. */
#include "lab.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAITING 8192 /* requests of a connection that wait for their response; a power of two */
#define HEAD_BYTES 1024
#define REQUEST_BYTES (1 << 20)
#define MOST_IN_FLIGHT 254
#define ACKNOWLEDGES 255 /* of a timer, instead of the number of requests */
#define DATAGRAM_BYTES 12
#define BEGINNING (SECOND / 10)
#define APART (733 * MICROSECOND)
#define LOOKING (SECOND / 20)
#define GRACE_NS (2 * SECOND) /* for the last responses */
#define AT_ONCE 16            /* connections of an open loop that share a turn: the current one, and those that end */

struct entry { /* an entry of the log */
    s64 asked_ns, answered_ns;
    u32 round; /* batch or page */
    u16 port, in_flight;
    u32 rtt_us;         /* the kernel's smoothed round-trip time then, if tcp-info=1 */
    u16 failed, server; /* failed: no response, given up then; server: who responded, if stated */
};

struct connection {
    int fd;
    u16 port;
    u32 room; /* requests that it may send now */
    u64 asked, answered;
    u32 round, objects;      /* objects of this page not yet requested */
    int is_page;             /* the page itself is in flight */
    s64 free_ns;             /* paced: when the next request may be sent */
    s64 opened_ns, until_ns; /* until_ns: the end of its lifetime; 0: none */
    u64 due;                 /* taking turns: requests that should have been sent */
    int replaced;            /* taking turns: it ends with its last response */
    u16 server;
    char head[HEAD_BYTES];
    u32 head_bytes;
    s64 body; /* bytes of the response to come; -1: its head is incomplete */
    u32 unacknowledged;
    struct entry waiting[WAITING]; /* from here on nothing is cleared */
    s64 due_ns[WAITING];           /* taking turns: when requests should have been sent; the connection may not be there yet */
};

static struct distribution response = {'c', {500}}, request, objects = {'u', {1, 20}}, think = {'c', {0}}, lifetime, ack;
static const char *address = "127.0.0.1", *pattern = "sliding", *format = "http", *log_path;
static s64 port = 80, connection_count = 1, in_flight = 1, most = 100000000, each, post, pace_us, wants_info, patience_us, seed = 1,
           ack_every = 1, ack_delay_us;
static double think_share, rate = 100, seconds = 1;

static struct random numbers;
static struct connection *connections;
static struct heap timers; /* timers of connections: index << 8 | requests that it may send then */
static struct entry *entries;
static s64 begun_ns;                                                           /* when the first connections were made */
static u64 entry_count, entry_room, asked_count, answered_count, failed_count; /* answered: or failed */
static s64 end_ns, looked_ns;                                                  /* looked_ns: time of the last check for timeouts */
static int poll_fd, is_udp, is_open;                                           /* is_open: requests do not wait for responses */
static int takes_turns;                                                        /* an open loop whose connections have a lifetime */
static u32 *current;                                                           /* of each turn: the connection that asks */
static volatile sig_atomic_t is_over;                                          /* SIGTERM: no more requests */
static char text[REQUEST_BYTES];

static s64 now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static s64 think_ns(void)
{
    return random_unit(&numbers) < think_share ? (s64)(draw(&think, &numbers) * MICROSECOND) : 0;
}

/* Time to the next request of an open loop. */
static s64 until_next(void)
{
    double drawn = random_unit(&numbers);

    return (*pattern == 'c' ? 0.9 + 0.2 * drawn : -log(drawn)) / rate * SECOND;
}

static void after(struct connection *c, s64 wait_ns, u32 room)
{
    heap_push(&timers, now_ns() + wait_ns, (u32)(c - connections) << 8 | room);
}

static void open_connection(struct connection *c)
{
    struct sockaddr_storage there;
    socklen_t there_bytes = address_of(address, port, &there);
    int one = 1, bytes = 8 << 20;

    memset(c, 0, offsetof(struct connection, waiting));
    c->body = -1;
    c->opened_ns = now_ns();
    c->until_ns = lifetime.kind ? c->opened_ns + (s64)(draw(&lifetime, &numbers) * MICROSECOND) : 0;
    c->fd = check(socket(there.ss_family, (is_udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK, 0), "socket");
    setsockopt(c->fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    if (!is_udp)
        check(setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), "TCP_NODELAY");
    if (connect(c->fd, (struct sockaddr *)&there, there_bytes) && errno != EINPROGRESS)
        fail("connect: %s", strerror(errno));
    check(epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &(struct epoll_event){.events = EPOLLOUT, .data.u32 = c - connections}),
        "epoll_ctl");
}

/* ---- failures ---- */

static void log_entry(const struct entry *e)
{
    if (entry_count == entry_room) {
        entry_room = entry_room ? 2 * entry_room : 65536;
        entries = grow(entries, entry_room * sizeof *entries);
    }
    entries[entry_count++] = *e;
}

/* Give up a connection: its outstanding requests have failed; without any, the attempt to connect has. */
static void __attribute__((format(printf, 2, 3))) give_up(struct connection *c, const char *why, ...)
{
    struct entry attempt = {.asked_ns = c->opened_ns, .answered_ns = now_ns(), .port = c->port, .failed = 1};
    va_list arguments;

    va_start(arguments, why);
    if (!patience_us || is_udp) {
        vfprintf(stderr, why, arguments);
        fail(" (port %d)", c->port);
    }
    va_end(arguments);
    if (!c->port)
        log_entry(&attempt);
    failed_count += !c->port;
    for (; c->answered < c->asked; c->answered++, answered_count++, failed_count++) {
        struct entry *e = &c->waiting[c->answered & (WAITING - 1)];

        e->answered_ns = now_ns();
        e->failed = 1;
        log_entry(e);
    }
    close(c->fd);
    open_connection(c);
}

/* Give up connections that exceed the patience. */
static void look_for_late(void)
{
    s64 since_ns = now_ns() - patience_us * MICROSECOND;

    looked_ns = now_ns();
    for (s64 i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];

        if (c->port ? c->answered < c->asked && c->waiting[c->answered & (WAITING - 1)].asked_ns < since_ns
                    : c->opened_ns < since_ns)
            give_up(c, "nothing for too long");
    }
}

/* ---- requests ---- */

/* Compose a request of the wanted length, or as short as possible; returns its length. */
static size_t compose(const struct connection *c)
{
    s64 bytes = (s64)draw(&response, &numbers), wanted = request.kind ? (s64)draw(&request, &numbers) : 0;
    char *to = text;

    if (wanted > REQUEST_BYTES / 2)
        wanted = REQUEST_BYTES / 2;
    if (is_udp) {
        u32 size = (u32)bytes;

        memcpy(text, &c->asked, 8);
        memcpy(text + 8, &size, 4);
        return wanted < DATAGRAM_BYTES ? DATAGRAM_BYTES : wanted;
    }
    if (*format == 'm')
        return sprintf(text, "get v%ld\r\n", bytes);
    if (*format == 'r')
        return sprintf(text, "*2\r\n$3\r\nGET\r\n$%d\r\nv%ld\r\n", snprintf(NULL, 0, "v%ld", bytes), bytes);
    to += sprintf(to, "%s /%ld HTTP/1.1\r\nHost: lab\r\n", post ? "POST" : "GET", bytes);
    if (post)
        to += sprintf(to, "Content-Length: %ld\r\n", post);
    if (wanted > to - text + 7) {
        s64 padding = wanted - (to - text + 7);

        to = stpcpy(to, "X: ");
        memset(to, 'x', padding);
        to = stpcpy(to + padding, "\r\n");
    }
    to = stpcpy(to, "\r\n");
    memset(to, 'x', post);
    return to + post - text;
}

static void ask(struct connection *c)
{
    size_t bytes = compose(c);
    struct entry *e = &c->waiting[c->asked & (WAITING - 1)];

    c->asked++;
    asked_count++;
    *e = (struct entry){.asked_ns = takes_turns ? c->due_ns[(c->asked - 1) & (WAITING - 1)] : now_ns(),
        .round = c->round,
        .port = c->port,
        .in_flight = c->asked - c->answered};
    if (send(c->fd, text, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
        give_up(c, "send: a request did not fit: %s", strerror(errno));
        return;
    }
    c->free_ns = e->asked_ns + pace_us * MICROSECOND;
}

static void ask_for_all(struct connection *c)
{
    while (c->room && c->asked - c->answered < WAITING && (!each || c->asked < (u64)each) && asked_count < (u64)most &&
           now_ns() < end_ns && (!c->until_ns || takes_turns || c->asked == c->answered || now_ns() < c->until_ns)) {
        if (pace_us && now_ns() < c->free_ns) {
            after(c, c->free_ns - now_ns(), 0);
            return;
        }
        c->room--;
        ask(c);
    }
}

/* Datagrams: tell the server that responses have come. */
static void acknowledge(struct connection *c)
{
    static const u64 nothing = ~0ull; /* its number, by which the server knows that it is no request */
    s64 bytes = (s64)draw(&ack, &numbers);

    if (c->unacknowledged < (u64)ack_every)
        return;
    c->unacknowledged = 0;
    memcpy(text, &nothing, 8);
    if (send(c->fd, text, bytes < DATAGRAM_BYTES ? DATAGRAM_BYTES : bytes, 0) < 0)
        fail("send: %s", strerror(errno));
}

/* Connected: send the first requests. */
static void begin(struct connection *c)
{
    struct sockaddr_storage here; /* the port has the same place in both versions */
    socklen_t size = sizeof here;
    int error = 0;
    socklen_t error_size = sizeof error;

    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &error_size);
    if (error) {
        give_up(c, "connect: %s", strerror(error));
        return;
    }
    check(getsockname(c->fd, (struct sockaddr *)&here, &size), "getsockname");
    c->port = ntohs(((struct sockaddr_in *)&here)->sin_port);
    check(epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = EPOLLIN, .data.u32 = c - connections}),
        "epoll_ctl");
    c->is_page = *pattern == 'p';
    if (takes_turns) {
        ask_for_all(c);
        return;
    }
    if (is_open) {
        after(c, until_next(), 1);
        return;
    }
    /* Initially connections start apart: with equal service times they would otherwise stay in step for ever, and wait for each
     * other. */
    after(c, now_ns() < begun_ns + BEGINNING ? (c - connections) * APART : 0, c->is_page ? 1 : in_flight);
}

/* ---- responses ---- */

/* The number of bytes after the head of a response. */
static s64 body_bytes(const char *head)
{
    s64 bytes = 0;

    if (*format == 'm')
        return sscanf(head, "VALUE %*s %*d %ld", &bytes) == 1 ? bytes + 7 : 0; /* and CR LF END CR LF */
    if (*format == 'r')
        return sscanf(head, "$%ld", &bytes) == 1 && bytes >= 0 ? bytes + 2 : 0;
    for (const char *line = strncmp(head, "HTTP/1.1 200", 12) ? NULL : strchr(head, '\n'); line; line = strchr(line, '\n'))
        if (!strncasecmp(++line, "content-length:", 15))
            return strtol(line + 15, NULL, 10);
    fail("not what was asked for: %.40s", head);
}

/* The server that responded; 0: not stated. */
static u16 server_of(const char *head)
{
    const char *field = *format == 'h' ? strcasestr(head, "\nserver:") : NULL;

    return field ? (u16)atoi(field + 8) : 0;
}

/* Use the room made by a response. */
static void proceed(struct connection *c)
{
    u32 left = c->asked - c->answered + c->room, room = 0; /* requested or about to be */

    if (*pattern == 's') {
        room = 1;
    } else if (*pattern == 'b' && !left) {
        room = in_flight;
    } else if (*pattern == 'p' && c->is_page) {
        s64 count = (s64)draw(&objects, &numbers);

        c->is_page = 0;
        c->room = count < in_flight ? count : in_flight;
        c->objects = count - c->room;
        ask_for_all(c);
        if (count > 0)
            return;
    } else if (*pattern == 'p' && c->objects) {
        c->objects--;
        c->room++;
        ask_for_all(c);
        return;
    }
    if (*pattern == 'p' && !left) {
        c->is_page = 1;
        room = 1;
    }
    if (room) {
        s64 wait = think_ns();

        c->round++;
        if (wait) {
            after(c, wait, room);
        } else {
            c->room += room;
            ask_for_all(c);
        }
    }
}

static u32 rtt_us(const struct connection *c)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;

    getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &size);
    return info.tcpi_rtt;
}

static void answered(struct connection *c, u64 number, s64 at_ns)
{
    struct entry *e = &c->waiting[number & (WAITING - 1)];

    e->answered_ns = at_ns;
    e->rtt_us = wants_info ? rtt_us(c) : 0;
    e->server = c->server;
    log_entry(e);
    c->answered++;
    answered_count++;
    if (takes_turns) {
        if (c->replaced && c->answered == c->due) {
            close(c->fd);
            c->fd = 0;
            c->opened_ns = 0; /* what was read with it belongs to nothing more */
        }
    } else if ((each && c->answered == (u64)each) || (c->until_ns && at_ns >= c->until_ns && c->answered == c->asked)) {
        close(c->fd);
        open_connection(c);
    } else {
        proceed(c);
    }
}

/* Process bytes of responses that were read at this time. */
static void take(struct connection *c, const char *bytes, s64 count, s64 at_ns)
{
    const char *ending = *format == 'h' ? "\r\n\r\n" : "\r\n";
    u32 ending_bytes = strlen(ending);
    s64 opened_ns = c->opened_ns;

    while (count && c->opened_ns == opened_ns) {
        if (c->body < 0) {
            const char *line = memchr(bytes, '\n', count);
            s64 used = line ? line + 1 - bytes : count;

            if (c->head_bytes + used >= HEAD_BYTES)
                fail("the head of a response is too long");
            memcpy(c->head + c->head_bytes, bytes, used);
            c->head_bytes += used;
            bytes += used;
            count -= used;
            if (c->head_bytes < ending_bytes || memcmp(c->head + c->head_bytes - ending_bytes, ending, ending_bytes))
                continue;
            c->head[c->head_bytes] = 0;
            c->body = body_bytes(c->head);
            c->server = server_of(c->head);
            c->head_bytes = 0;
        }
        s64 used = count < c->body ? count : c->body;

        bytes += used;
        count -= used;
        c->body -= used;
        if (!c->body) {
            c->body = -1;
            answered(c, c->answered, at_ns);
        }
    }
}

static void receive(struct connection *c)
{
    static char bytes[1 << 18];
    ssize_t got = recv(c->fd, bytes, sizeof bytes, 0);

    if (!got && !is_udp)
        give_up(c, "the server closed a connection");
    else if (got < 0 && errno != EAGAIN && errno != EINTR)
        give_up(c, "recv: %s", strerror(errno));
    if (got < 0 || (!got && !is_udp))
        return;
    if (is_udp) {
        u64 number;

        if (got < DATAGRAM_BYTES)
            return;
        memcpy(&number, bytes, 8);
        c->unacknowledged++;
        if (ack.kind && !ack_delay_us)
            acknowledge(c);
        else if (ack.kind && c->unacknowledged == (u64)ack_every)
            after(c, ack_delay_us * MICROSECOND, ACKNOWLEDGES);
        answered(c, number, now_ns());
    } else {
        take(c, bytes, got, now_ns());
    }
}

/* Taking turns: a request is due, at the current connection, or at a new one if that has lived long enough. */
static void take_turn(struct due timer)
{
    u32 turn = timer.thing >> 8, next = turn * AT_ONCE;
    struct connection *c = &connections[current[turn]];

    if (now_ns() >= c->until_ns) {
        while (next < (turn + 1) * AT_ONCE && connections[next].fd)
            next++;
        if (next == (turn + 1) * AT_ONCE)
            fail("%d connections wait for responses, in place of one", AT_ONCE);
        c->replaced = 1;
        if (c->answered == c->due) {
            close(c->fd);
            c->fd = 0;
        }
        current[turn] = next;
        c = &connections[next];
        open_connection(c);
    }
    if (c->due - c->answered >= WAITING)
        fail("more than %d requests wait in a connection", WAITING);
    c->due_ns[c->due++ & (WAITING - 1)] = timer.at_ns;
    c->room++;
    if (c->port)
        ask_for_all(c);
    heap_push(&timers, timer.at_ns + until_next(), timer.thing);
}

static void wake(struct due timer)
{
    struct connection *c = &connections[timer.thing >> 8];
    u32 room = timer.thing & 255;

    if (takes_turns) {
        take_turn(timer);
        return;
    }
    if (room == ACKNOWLEDGES) {
        acknowledge(c);
        return;
    }
    /* The timer may be that of a connection that was given up. */
    if (!is_open && (!c->port || c->asked - c->answered + c->room + room > (u64)in_flight))
        return;
    c->room += room;
    ask_for_all(c);
    if (is_open)
        heap_push(&timers, timer.at_ns + until_next(), timer.thing);
}

/* ---- the log ---- */

/* CLOCK_REALTIME minus CLOCK_MONOTONIC: of several tries, the one with the least time between the two readings. */
static s64 realtime_offset(void)
{
    s64 offset = 0, least = INT64_MAX;

    for (int i = 0; i < 100; i++) {
        s64 before = now_ns(), real = clock_ns(CLOCK_REALTIME), behind = now_ns();

        if (behind - before < least) {
            least = behind - before;
            offset = real - (before + behind) / 2;
        }
    }
    return offset;
}

static void write_log(s64 offset)
{
    FILE *file = fopen(log_path, "wb");

    if (!file || fwrite(&offset, sizeof offset, 1, file) != 1 ||
        fwrite(entries, sizeof *entries, entry_count, file) != entry_count || fclose(file))
        fail("%s: %s", log_path, strerror(errno));
}

static void end(int signal)
{
    (void)signal;
    is_over = 1;
}

int main(int count, char **arguments)
{
    const struct setting settings[] = {
        {"address", TEXT, &address},
        {"port", INTEGER, &port},
        {"connections", INTEGER, &connection_count},
        {"pattern", TEXT, &pattern},
        {"in-flight", INTEGER, &in_flight},
        {"format", TEXT, &format}, /* http, memcached, redis, udp */
        {"response", DISTRIBUTION, &response},
        {"request", DISTRIBUTION, &request}, /* length; http and udp only */
        {"post", INTEGER, &post},            /* bytes */
        {"objects", DISTRIBUTION, &objects},
        {"think-us", DISTRIBUTION, &think},
        {"think-share", NUMBER, &think_share},
        {"rate", NUMBER, &rate},
        {"pace-us", INTEGER, &pace_us}, /* minimum time between two requests of a connection */
        {"each", INTEGER, &each},       /* requests of a connection; then a new one replaces it */
        {"lifetime-us", DISTRIBUTION, &lifetime},
        {"patience-us", INTEGER, &patience_us},
        {"tcp-info", INTEGER, &wants_info},
        {"ack", DISTRIBUTION, &ack}, /* length of acknowledgements; udp only */
        {"ack-every", INTEGER, &ack_every},
        {"ack-delay-us", INTEGER, &ack_delay_us},
        {"requests", INTEGER, &most},
        {"seconds", NUMBER, &seconds},
        {"seed", INTEGER, &seed},
        {"log", TEXT, &log_path},
        {NULL},
    };
    struct rlimit files;
    s64 offset;

    read_settings(count, arguments, settings);
    is_udp = *format == 'u';
    is_open = *pattern == 'o' || *pattern == 'c';
    if (!strchr("sbpoc", *pattern) || !strchr("hmru", *format))
        fail("not a pattern or format: %s %s", pattern, format);
    if (in_flight < 1 || in_flight > MOST_IN_FLIGHT || post < 0 || post > REQUEST_BYTES / 4 || seconds > 3600)
        fail("out of range: in-flight, post or seconds");
    takes_turns = is_open && lifetime.kind;
    if ((each || lifetime.kind || patience_us) &&
        ((is_open && (!takes_turns || each || patience_us || is_udp)) || (!is_open && in_flight > 1 && think_share > 0)))
        fail(
            "each, lifetime-us and patience-us go with neither an open loop (but lifetime-us with TCP) nor think time with several "
            "in flight");
    numbers.at = seed;
    wake_punctually();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, end);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    poll_fd = check(epoll_create1(0), "epoll_create1");
    offset = realtime_offset();
    connections = grow(NULL, connection_count * (takes_turns ? AT_ONCE : 1) * sizeof *connections);
    if (takes_turns) {
        for (s64 i = 0; i < connection_count * AT_ONCE; i++)
            connections[i].fd = 0;
        current = grow(NULL, connection_count * sizeof *current);
    }
    for (s64 i = 0; i < connection_count; i++) {
        open_connection(&connections[takes_turns ? i * AT_ONCE : i]);
        if (takes_turns) {
            current[i] = i * AT_ONCE;
            heap_push(&timers, now_ns() + until_next(), (u32)i << 8);
        }
    }
    begun_ns = now_ns();
    end_ns = begun_ns + (s64)(seconds * SECOND);

    for (;;) {
        struct epoll_event events[256];
        s64 now = now_ns(), next = (end_ns = is_over && now < end_ns ? now : end_ns) + GRACE_NS;
        struct timespec wait;
        int ready;

        if (now >= next || ((now >= end_ns || asked_count >= (u64)most) && asked_count == answered_count))
            break;
        if (timers.count && timers.dues[0].at_ns < next)
            next = timers.dues[0].at_ns;
        if (asked_count == answered_count && end_ns < next)
            next = end_ns;
        if (patience_us && now + LOOKING < next)
            next = now + LOOKING;
        wait = timespec_of(next - now);
        ready = epoll_pwait2(poll_fd, events, 256, &wait, NULL);
        for (int i = 0; i < ready; i++) {
            struct connection *c = &connections[events[i].data.u32];

            if (!c->port)
                begin(c);
            else
                receive(c);
        }
        while (timers.count && timers.dues[0].at_ns <= now_ns() && now_ns() < end_ns)
            wake(heap_pop(&timers));
        if (now_ns() >= end_ns)
            timers.count = 0;
        if (patience_us && now_ns() > looked_ns + LOOKING)
            look_for_late();
    }
    if (log_path)
        write_log(offset);
    printf("{\"asked\": %lu, \"answered\": %lu, \"failed\": %lu}\n", asked_count, answered_count, failed_count);
    return 0;
}
