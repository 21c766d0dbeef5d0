/* Which of two ports is a server's.
 *
 * Law: a port's rank is 0 below 1024 (well-known), 1 if a service listens there by custom (the list), 2 below 32768 (registered),
 * otherwise, or if there is none, 3. The lower rank is the server's; with equal ranks nothing is known. docs/reference/roles.md. */
#ifndef WL_PORTS_H
#define WL_PORTS_H

#include "types.h"

#define WL_SERVICE_COUNT 122 /* at most 128 */

/* In rising order. */
static const u16 wl_services[WL_SERVICE_COUNT] = {
    1080,
    1194,
    1352,
    1433,
    1434,
    1521,
    1701,
    1720,
    1723,
    1812,
    1813,
    1883,
    1900,
    2049,
    2181,
    2222,
    2375,
    2376,
    2379,
    2380,
    2404,
    2525,
    3000,
    3128,
    3260,
    3268,
    3306,
    3389,
    3478,
    4222,
    4433,
    4500,
    4712,
    4713,
    4789,
    4840,
    5000,
    5001,
    5006,
    5007,
    5060,
    5061,
    5094,
    5201,
    5222,
    5269,
    5353,
    5432,
    5555,
    5562,
    5671,
    5672,
    5683,
    5684,
    5900,
    5938,
    5984,
    5985,
    5986,
    6379,
    6443,
    6514,
    6653,
    6667,
    6697,
    7000,
    7001,
    7687,
    8000,
    8006,
    8008,
    8009,
    8080,
    8081,
    8086,
    8088,
    8125,
    8140,
    8333,
    8443,
    8500,
    8554,
    8728,
    8883,
    8888,
    9000,
    9042,
    9090,
    9092,
    9100,
    9200,
    9300,
    9418,
    9443,
    9600,
    9999,
    10000,
    10050,
    10051,
    10250,
    11211,
    15672,
    18245,
    19132,
    20000,
    20547,
    25565,
    26257,
    27015,
    27017,
    32400,
    33060,
    34962,
    34963,
    34964,
    34980,
    44818,
    47808,
    50051,
    51820,
    61613,
    61616,
};

WL_INLINE int wl_is_service(u16 port)
{
    u32 place = 0; /* of the last one that is not after it */

    for (u32 step = 64; step; step /= 2) {
        u32 next = place + step;

        if (next < WL_SERVICE_COUNT && wl_services[next] <= port)
            place = next;
    }
    return wl_services[place] == port;
}

/* The rank of a port, if it is known whether it is among the services. */
WL_INLINE u32 wl_rank(u16 port, int service)
{
    if (!port)
        return 3;
    if (port < 1024)
        return 0;
    return service ? 1 : port < 32768 ? 2 : 3;
}

WL_INLINE u32 wl_port_rank(u16 port)
{
    return wl_rank(port, port >= 1024 && wl_is_service(port));
}

/* Whether a packet between these ports is from a client, if nothing but ports is known: with equal ranks the lower is the
   server's, and with equal ports the sender is the client. */
WL_INLINE int wl_by_client(u16 src, u16 dst)
{
    u32 of = wl_port_rank(src), to = wl_port_rank(dst);

    return of == to ? src >= dst : of > to;
}

#endif
