/* net.h: hosts for tests, made of network namespaces: each lives as long as one idle process, so that nothing is left
 * behind when the test is killed. Needs root (or what amounts to it) and the ip command; net_unavailable() says what is
 * missing. It must not touch the namespace of the test itself. */
#ifndef RG_TEST_NET_H
#define RG_TEST_NET_H

#include <stddef.h>
#include <sys/types.h>

#define NET_MAX 4

enum { NET_V4 = 1, NET_V6 = 2, NET_LINK_LOCAL = 4 };

/* One hub and n nodes. Routed: node i is 10.77.i.2 and fd77:0:0:i::2 behind the hub. Bridged: all are neighbours,
 * 10.77.0.(i + 1) and fd77::(i + 1). Each node's interface is eth0, its other end pI is in the hub. */
struct net {
    int n, bridged;
    unsigned families;
    pid_t hub, node[NET_MAX];
};

const char *net_unavailable(void); /* NULL when namespaces can be made, else the reason */
int net_open(struct net *t, int nodes, unsigned families, int bridged); /* 0 when it is there */
void net_close(struct net *t);

void net_enter(pid_t holder); /* moves the calling process; ends it when that fails; 0: stays */
/* Runs `tool -batch` in a namespace with this text, lines ending in \n. 0 when every line succeeded. */
int net_batch(pid_t holder, const char *tool, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Packets of node i (IPv4 in a routed net) vanish, in both directions, without a sign to anybody; or flow again. */
int net_cut(struct net *t, int i);
int net_heal(struct net *t, int i);
/* The same between two nodes of a routed net. */
int net_cut_pair(struct net *t, int a, int b);
int net_heal_pair(struct net *t, int a, int b);

const char *net_v4(const struct net *t, int i, char buf[64]); /* the node's address */
const char *net_v6(const struct net *t, int i, char buf[64]);
int net_link_local(pid_t holder, char buf[64]); /* "fe80::...%eth0" of that namespace; 0 when there is one */

/* In a process of its own: a private view of /etc/hosts with this text and host name, for it and its children. */
int net_hosts(const char *hostname, const char *hosts);

#endif
