/* A tunnel: IP packets of a TUN device, each in a datagram. One end names the other (to=, to-port=); the other end learns its
 * peer from received packets. */
#include "lab.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    const char *device = "tun0", *address = "0.0.0.0", *to = NULL;
    s64 port = 0, to_port = 0;
    const struct setting settings[] = {
        {"device", TEXT, &device},
        {"address", TEXT, &address},
        {"port", INTEGER, &port},
        {"to", TEXT, &to},
        {"to-port", INTEGER, &to_port},
        {NULL},
    };
    struct sockaddr_in here = {.sin_family = AF_INET}, there = {.sin_family = AF_INET};
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    socklen_t size = sizeof there;
    int tun, net;
    char packet[2048];

    read_settings(count, arguments, settings);
    here.sin_port = htons(port);
    there.sin_port = htons(to_port);
    if (inet_pton(AF_INET, address, &here.sin_addr) != 1 || (to && inet_pton(AF_INET, to, &there.sin_addr) != 1))
        fail("not an address");
    tun = check(open("/dev/net/tun", O_RDWR), "/dev/net/tun");
    strncpy(request.ifr_name, device, IFNAMSIZ - 1);
    check(ioctl(tun, TUNSETIFF, &request), device);
    net = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    check(bind(net, (struct sockaddr *)&here, sizeof here), "bind");

    for (;;) {
        struct pollfd waiting[2] = {{tun, POLLIN, 0}, {net, POLLIN, 0}};
        ssize_t got;

        poll(waiting, 2, -1);
        if (waiting[0].revents & POLLIN) {
            got = check((int)read(tun, packet, sizeof packet), device);
            if (there.sin_port)
                sendto(net, packet, got, 0, (struct sockaddr *)&there, sizeof there);
        }
        if (waiting[1].revents & POLLIN) {
            struct sockaddr_in from;

            got = recvfrom(net, packet, sizeof packet, 0, (struct sockaddr *)&from, &size);
            if (got > 0) {
                there = to ? there : from;
                if (write(tun, packet, got) < 0 && errno != EINVAL)
                    fail("%s: %s", device, strerror(errno));
            }
        }
    }
}
