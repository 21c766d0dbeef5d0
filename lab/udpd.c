/* A server of requests and responses in datagrams. A request is a number (8 bytes), the bytes requested (4), and padding; the
 * response has the same number and that many bytes, after a service time drawn from a distribution. A number of all ones
 * acknowledges, and has no response. order=parallel: each after its own service time. order=worker: one after the other. */
#include "lab.h"

#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define PENDING 65536
#define LEAST_BYTES 12
#define MOST_BYTES 1472

struct response {
    struct sockaddr_in to;
    u64 number;
    u32 bytes;
};

static struct response responses[PENDING];
static u32 unused[PENDING], unused_count;
static struct heap due;
static const unsigned char acknowledges[8] = {255, 255, 255, 255, 255, 255, 255, 255};

int main(int count, char **arguments)
{
    struct distribution service = {'c', {0}};
    const char *address = "127.0.0.1", *order = "parallel";
    s64 port = 9000, seed = 1, worker_ns = 0;
    const struct setting settings[] = {
        {"address", TEXT, &address},
        {"port", INTEGER, &port},
        {"seed", INTEGER, &seed},
        {"service-us", DISTRIBUTION, &service},
        {"order", TEXT, &order},
        {NULL},
    };
    struct sockaddr_in here = {.sin_family = AF_INET};
    struct random numbers;
    int fd, poll, bytes = 4 << 20;
    char data[MOST_BYTES];

    read_settings(count, arguments, settings);
    if (strcmp(order, "parallel") && strcmp(order, "worker"))
        fail("not an order: %s", order);
    numbers.at = seed;
    wake_punctually();
    here.sin_port = htons(port);
    if (inet_pton(AF_INET, address, &here.sin_addr) != 1)
        fail("not an address: %s", address);
    fd = check(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), "socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    check(bind(fd, (struct sockaddr *)&here, sizeof here), "bind");
    poll = check(epoll_create1(0), "epoll_create1");
    check(epoll_ctl(poll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}), "epoll_ctl");
    for (u32 i = 0; i < PENDING; i++)
        unused[unused_count++] = i;

    for (;;) {
        struct epoll_event event;
        struct timespec wait = timespec_of(due.count ? due.dues[0].at_ns - clock_ns(CLOCK_MONOTONIC) : 0);
        struct sockaddr_in from;
        socklen_t size = sizeof from;
        ssize_t got;

        epoll_pwait2(poll, &event, 1, due.count ? &wait : NULL, NULL);
        while (unused_count && (got = recvfrom(fd, data, sizeof data, 0, (struct sockaddr *)&from, &size)) >= 0) {
            s64 now = clock_ns(CLOCK_MONOTONIC), start = *order == 'w' && worker_ns > now ? worker_ns : now;
            u32 slot;

            if (got < LEAST_BYTES || !memcmp(data, acknowledges, 8))
                continue;
            slot = unused[--unused_count];
            responses[slot].to = from;
            memcpy(&responses[slot].number, data, 8);
            memcpy(&responses[slot].bytes, data + 8, 4);
            worker_ns = start + (s64)(draw(&service, &numbers) * MICROSECOND);
            heap_push(&due, worker_ns, slot);
        }
        while (due.count && due.dues[0].at_ns <= clock_ns(CLOCK_MONOTONIC)) {
            u32 slot = heap_pop(&due).thing;
            struct response *r = &responses[slot];
            u32 wanted = r->bytes < LEAST_BYTES ? LEAST_BYTES : r->bytes > MOST_BYTES ? MOST_BYTES : r->bytes;

            memset(data, 'x', wanted);
            memcpy(data, &r->number, 8);
            sendto(fd, data, wanted, 0, (struct sockaddr *)&r->to, sizeof r->to);
            unused[unused_count++] = slot;
        }
    }
}
