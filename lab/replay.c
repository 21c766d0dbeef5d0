/* Datagrams of many flows by a schedule: records of (send time in ns since the beginning, u64; flow, u32; bytes of payload, u32)
 * in a file. Flow i goes from port 1024 + i / 60000 to port 1024 + i % 60000 of the address. Each datagram begins with its number.
 * One whose time has passed is sent at once. */
#include "lab.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#define FIRST_PORT 1024
#define PORTS 60000
#define SOCKETS 16
#define LEAST_BYTES 8
#define MOST_BYTES 1472

struct record {
    u64 time_ns;
    u32 flow, bytes;
};

int main(int count, char **arguments)
{
    const char *address = "127.0.0.1", *schedule = "";
    const struct setting settings[] = {{"address", TEXT, &address}, {"schedule", TEXT, &schedule}, {NULL}};
    struct sockaddr_in to = {.sin_family = AF_INET};
    int sockets[SOCKETS];
    char data[MOST_BYTES] = {0};
    struct record one;
    u64 number = 0, failed = 0;
    FILE *file;
    s64 began_ns;

    read_settings(count, arguments, settings);
    wake_punctually();
    if (inet_pton(AF_INET, address, &to.sin_addr) != 1)
        fail("not an address: %s", address);
    file = fopen(schedule, "rb");
    if (!file)
        fail("%s: %s", schedule, strerror(errno));
    for (int i = 0; i < SOCKETS; i++) {
        struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(FIRST_PORT + i)};

        sockets[i] = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
        check(bind(sockets[i], (struct sockaddr *)&here, sizeof here), "bind");
    }
    began_ns = clock_ns(CLOCK_MONOTONIC) + SECOND / 10;
    while (fread(&one, sizeof one, 1, file) == 1) {
        struct timespec due = timespec_of(began_ns + (s64)one.time_ns);

        if (one.flow >= SOCKETS * PORTS || one.bytes < LEAST_BYTES || one.bytes > MOST_BYTES)
            fail("record %llu: impossible", (unsigned long long)number);
        if (clock_ns(CLOCK_MONOTONIC) < began_ns + (s64)one.time_ns)
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        memcpy(data, &number, sizeof number);
        number++;
        to.sin_port = htons(FIRST_PORT + one.flow % PORTS);
        failed += sendto(sockets[one.flow / PORTS], data, one.bytes, 0, (struct sockaddr *)&to, sizeof to) < 0;
    }
    printf("sent %llu, failed %llu\n", (unsigned long long)number, (unsigned long long)failed);
    return 0;
}
