/* An HTTP/1.1 server whose service times are drawn from a distribution.
 *
 * GET or POST /BYTES returns that many bytes, or as many as `size` says. Requests of a connection are answered in order; they
 * may be pipelined, with bodies. Law: a request that is complete at t, with service time s, is answered at
 *   order=parallel  t + s, but not before the previous one of its connection
 *   order=serial    s after the later of t and the previous response of its connection
 *   order=worker    s after the later of t and the time when the first of `workers` is free, for all connections
 * SIGUSR1: service times of new requests are `slow` times as long; SIGUSR2: as before. number: responses carry the server's
 * number. burn=1: s is computing time, not waiting time, so that a CPU quota matters; one request at a time. pieces=N gap-us=G:
 * a response is sent in N pieces, G apart. pace-mbit: TCP sends no faster than this. */
#include "lab.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define QUEUE 4096 /* requests of a connection that wait for their response; a power of two */
#define HEAD_BYTES 4096
#define BODY_BYTES 65536
#define MOST_WORKERS 256

struct request {
    s64 answer_ns, service_ns;
    s64 bytes;
};

struct connection {
    int fd;
    s64 due_ns;  /* its time in the heap; 0: not there */
    s64 last_ns; /* when the last request in the queue is answered */
    struct request queue[QUEUE];
    u32 first, count;
    char in[HEAD_BYTES];
    u32 in_bytes;
    s64 in_body, in_size; /* request body: bytes to come; response: bytes requested */
    char out[128];        /* the rest of the head of the response */
    u32 out_bytes;
    s64 out_body; /* the rest of this piece */
    s64 pieces_left;
};

static struct distribution service = {'c', {0}}, size;
static const char *order = "parallel";
static s64 burn, pieces = 1, gap_us, pace_mbit, workers = 1, number;
static double slow = 5;
static volatile sig_atomic_t is_slow;
static struct random numbers;
static struct heap due;
static struct connection **connections; /* by descriptor */
static s64 free_ns[MOST_WORKERS];       /* when a worker is free */
static int poll_fd;
static char body[BODY_BYTES];

static void listen_to(struct connection *c)
{
    u32 in = c->count < QUEUE ? EPOLLIN : 0, out = c->out_bytes || c->out_body ? EPOLLOUT : 0;

    check(epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = in | out, .data.fd = c->fd}), "epoll_ctl");
}

/* A stale entry in the heap is recognised by its time. */
static void drop(struct connection *c)
{
    close(c->fd);
    connections[c->fd] = NULL;
    free(c);
}

static void make_due(struct connection *c, s64 at_ns)
{
    heap_push(&due, at_ns, c->fd);
    c->due_ns = at_ns;
}

static void change_pace(int signal)
{
    is_slow = signal == SIGUSR1;
}

static s64 *first_free(void)
{
    s64 *first = free_ns;

    for (s64 i = 1; i < workers; i++)
        first = free_ns[i] < *first ? &free_ns[i] : first;
    return first;
}

static void enqueue(struct connection *c, s64 bytes)
{
    s64 now = clock_ns(CLOCK_MONOTONIC), service_ns = (s64)(draw(&service, &numbers) * MICROSECOND * (is_slow ? slow : 1));
    s64 start = now, at, *worker = first_free();

    if (size.kind)
        bytes = (s64)draw(&size, &numbers);
    if (*order == 's' && c->last_ns > start)
        start = c->last_ns;
    if (*order == 'w' && *worker > start)
        start = *worker;
    at = burn ? now : start + service_ns;
    if (at < c->last_ns)
        at = c->last_ns;
    c->last_ns = *worker = at;
    c->queue[(c->first + c->count++) & (QUEUE - 1)] = (struct request){at, service_ns, bytes};
    if (!c->due_ns && !c->out_bytes && !c->out_body)
        make_due(c, at);
}

/* Parse one request, or a part of it; returns the bytes used, 0 if more are needed, -1 if it is invalid. */
static int take(struct connection *c, const char *bytes, u32 count)
{
    const char *end, *field;
    s64 skipped;

    if (c->in_body) {
        skipped = c->in_body < count ? c->in_body : count;
        c->in_body -= skipped;
        if (!c->in_body)
            enqueue(c, c->in_size);
        return (int)skipped;
    }
    end = memmem(bytes, count, "\r\n\r\n", 4);
    if (!end)
        return count < HEAD_BYTES ? 0 : -1;
    if (sscanf(bytes, "%*[A-Z] /%ld", &c->in_size) != 1 || c->in_size < 0)
        return -1;
    field = memmem(bytes, end - bytes, "Content-Length:", 15);
    if (field && (sscanf(field + 15, "%ld", &c->in_body) != 1 || c->in_body < 0))
        return -1;
    if (!c->in_body)
        enqueue(c, c->in_size);
    return (int)(end + 4 - bytes);
}

/* Returns whether the connection stays open. */
static int receive(struct connection *c)
{
    u32 used = 0, room = HEAD_BYTES - 1 - c->in_bytes;
    int taken = 0;
    ssize_t got = room ? recv(c->fd, c->in + c->in_bytes, room, 0) : 1;

    if (!got || (got < 0 && errno != EAGAIN && errno != EINTR))
        return 0;
    c->in_bytes += room && got > 0 ? got : 0;
    c->in[c->in_bytes] = 0;
    while (used < c->in_bytes && c->count < QUEUE && (taken = take(c, c->in + used, c->in_bytes - used)) > 0)
        used += taken;
    if (taken < 0 || (!used && c->count < QUEUE && c->in_bytes == HEAD_BYTES - 1))
        return 0;
    memmove(c->in, c->in + used, c->in_bytes -= used);
    return 1;
}

static void burn_ns(s64 ns)
{
    s64 end = clock_ns(CLOCK_PROCESS_CPUTIME_ID) + ns;

    while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) < end)
        ;
}

/* Send as much of this piece as possible. Returns whether the connection stays open. */
static int transmit(struct connection *c)
{
    while (c->out_bytes || c->out_body) {
        struct iovec parts[2] = {{c->out, c->out_bytes}, {body, c->out_body < BODY_BYTES ? c->out_body : BODY_BYTES}};
        ssize_t sent = writev(c->fd, parts, 2);
        u32 head;

        if (sent < 0)
            return errno == EAGAIN || errno == EINTR;
        head = sent < c->out_bytes ? sent : c->out_bytes;
        memmove(c->out, c->out + head, c->out_bytes -= head);
        c->out_body -= sent - head;
    }
    return 1;
}

/* After a piece: schedule the next one of the same response, or the next response. */
static void schedule(struct connection *c)
{
    if (c->due_ns || c->out_bytes || c->out_body)
        return;
    if (c->pieces_left)
        make_due(c, clock_ns(CLOCK_MONOTONIC) + gap_us * MICROSECOND);
    else if (c->count)
        make_due(c, c->queue[c->first].answer_ns);
}

/* The next piece of the first request's response is due. Returns whether the connection stays open. */
static int answer(struct connection *c)
{
    struct request *r = &c->queue[c->first];

    c->due_ns = 0;
    if (!c->pieces_left) {
        if (burn)
            burn_ns(r->service_ns);
        c->out_bytes = sprintf(c->out, "HTTP/1.1 200 OK\r\nContent-Length: %ld\r\n", r->bytes);
        c->out_bytes += number ? sprintf(c->out + c->out_bytes, "Server: %ld\r\n\r\n", number)
                               : sprintf(c->out + c->out_bytes, "\r\n");
        c->pieces_left = pieces;
    }
    c->out_body = r->bytes / c->pieces_left;
    r->bytes -= c->out_body;
    if (!--c->pieces_left) {
        c->first = (c->first + 1) & (QUEUE - 1);
        c->count--;
    }
    return transmit(c);
}

/* All that wait: a busy server would otherwise serve all others before each new one. */
static void welcome(int listener)
{
    int one = 1, fd;
    u32 rate = (u32)(pace_mbit * 125000);

    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (pace_mbit)
            check(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate), "SO_MAX_PACING_RATE");
        connections[fd] = calloc(1, sizeof **connections);
        connections[fd]->fd = fd;
        check(epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd}), "epoll_ctl");
    }
}

static void serve(struct connection *c, u32 events)
{
    u32 full = c->count == QUEUE;

    if (((events & EPOLLOUT) && !transmit(c)) || ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !receive(c))) {
        drop(c);
        return;
    }
    schedule(c);
    if ((events & EPOLLOUT) || full != (c->count == QUEUE))
        listen_to(c);
}

static void serve_due(struct due one)
{
    struct connection *c = connections[one.thing];
    u32 full;

    if (!c || c->due_ns != one.at_ns)
        return;
    full = c->count == QUEUE;
    if (!answer(c)) {
        drop(c);
        return;
    }
    if (full && !receive(c)) {
        drop(c);
        return;
    }
    schedule(c);
    if (full || c->out_bytes || c->out_body)
        listen_to(c);
}

int main(int count, char **arguments)
{
    const char *address = "127.0.0.1";
    s64 port = 80, seed = 1;
    const struct setting settings[] = {
        {"address", TEXT, &address},
        {"port", INTEGER, &port},
        {"seed", INTEGER, &seed},
        {"service-us", DISTRIBUTION, &service},
        {"size", DISTRIBUTION, &size},
        {"order", TEXT, &order},
        {"burn", INTEGER, &burn},
        {"pieces", INTEGER, &pieces},
        {"gap-us", INTEGER, &gap_us},
        {"pace-mbit", INTEGER, &pace_mbit},
        {"workers", INTEGER, &workers},
        {"slow", NUMBER, &slow},
        {"number", INTEGER, &number},
        {NULL},
    };
    struct rlimit files;
    struct sockaddr_storage here;
    socklen_t here_bytes;
    int one = 1, listener;

    read_settings(count, arguments, settings);
    if (strcmp(order, "parallel") && strcmp(order, "serial") && strcmp(order, "worker"))
        fail("not an order: %s", order);
    if (pieces < 1)
        fail("not a number of pieces: %ld", pieces);
    if (workers < 1 || workers > MOST_WORKERS)
        fail("not a number of workers: %ld", workers);
    numbers.at = seed;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGUSR1, change_pace);
    signal(SIGUSR2, change_pace);
    wake_punctually();
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max < 65536 ? files.rlim_max : 65536;
    check(setrlimit(RLIMIT_NOFILE, &files), "setrlimit");
    connections = memset(grow(NULL, files.rlim_cur * sizeof *connections), 0, files.rlim_cur * sizeof *connections);
    memset(body, 'x', sizeof body);

    here_bytes = address_of(address, port, &here);
    listener = check(socket(here.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket");
    check(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), "SO_REUSEADDR");
    check(bind(listener, (struct sockaddr *)&here, here_bytes), "bind");
    check(listen(listener, 4096), "listen");
    poll_fd = check(epoll_create1(0), "epoll_create1");
    check(epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.fd = listener}), "epoll_ctl");

    for (;;) {
        struct epoll_event events[256];
        struct timespec wait = timespec_of(due.count ? due.dues[0].at_ns - clock_ns(CLOCK_MONOTONIC) : 0);
        int ready = epoll_pwait2(poll_fd, events, 256, due.count ? &wait : NULL, NULL);

        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;

            if (fd == listener)
                welcome(listener);
            else if (connections[fd])
                serve(connections[fd], events[i].events);
        }
        while (due.count && due.dues[0].at_ns <= clock_ns(CLOCK_MONOTONIC))
            serve_due(heap_pop(&due));
    }
}
