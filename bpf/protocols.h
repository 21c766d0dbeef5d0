/* Numbers of protocols that several programs know. */
#ifndef WIRELAG_PROTOCOLS_H
#define WIRELAG_PROTOCOLS_H

enum { IPV4 = 0x0800, IPV6 = 0x86dd, VLAN = 0x8100, VLANS = 0x88a8 };                       /* what a frame carries */
enum { ICMP = 1, IPV4_IN = 4, TCP = 6, UDP = 17, IPV6_IN = 41, FRAGMENT = 44, ICMP6 = 58 }; /* what a packet carries */

#endif
