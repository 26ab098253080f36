/* doctor_net.c: the part of `regroup doctor` about networks: interfaces and the library's choice among them, TCP
 * settings, cards for RDMA, GPUs, the coordinator. It sends nothing but the question of `regroup status`. */
#include "config.h"
#include "doctor.h"
#include "os/os.h"
#include "tool.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Interfaces -------------------------------------------------------------------------------------------------- */

static long number_in(const char *fmt, const char *name) {
    char path[256], line[64];
    snprintf(path, sizeof path, fmt, name);
    return *doctor_line(path, line, sizeof line) ? strtol(line, NULL, 10) : -1;
}

/* Of an address whose port is 0, the part before it. */
static void address_alone(const struct sockaddr *sa, char *buf, size_t cap) {
    rg_os_addr_text(sa, buf, cap);
    buf[strlen(buf) > 2 ? strlen(buf) - 2 : 0] = 0;
}

static void interfaces(struct doctor *d) {
    struct ifaddrs *all, *i;
    if (getifaddrs(&all)) {
        doctor_say(d, DOCTOR_BAD, "interface", NULL, "the interfaces of this host cannot be listed");
        return;
    }
    for (i = all; i; i = i->ifa_next) {
        char address[80], speed[32] = "";
        if (!i->ifa_addr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) continue;
        const struct sockaddr_in6 *six = (const void *)i->ifa_addr;
        if (i->ifa_addr->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
        address_alone(i->ifa_addr, address, sizeof address);
        long mtu = number_in("/sys/class/net/%s/mtu", i->ifa_name);
        long mbit = number_in("/sys/class/net/%s/speed", i->ifa_name);
        if (mbit > 0) snprintf(speed, sizeof speed, ", %ld Mbit/s", mbit);
        doctor_say(d, DOCTOR_OK, "interface", NULL, "%s: %s, MTU %ld%s%s", i->ifa_name, address, mtu, speed,
                   i->ifa_flags & IFF_UP ? "" : ", down");
    }
    freeifaddrs(all);
}

/* What other members would be told, as a member at that coordinator would choose it. */
static void chosen(struct doctor *d) {
    struct sockaddr_storage at[4], mine[8];
    char remote[80], text[80], list[512] = "";
    rg_error_t err = { RG_OK, 0, "" };
    const char *towards = NULL;
    if (d->coordinator && rg_os_resolve_list(d->coordinator, at, 4, &err) > 0) {
        rg_os_addr_text((struct sockaddr *)&at[0], remote, sizeof remote);
        char *port = strrchr(remote, ':'), *from = remote;
        if (port) *port = 0;
        if (*from == '[') from++, from[strcspn(from, "]")] = 0;
        towards = from;
    }
    int n = rg_os_local_addresses(d->cfg.interface, towards, mine, 8, &err);
    if (n <= 0) {
        doctor_say(d, DOCTOR_BAD, "address", "name one of the interfaces above in RG_INTERFACE", "%s",
                   n < 0 ? err.text : "there is no address for other members");
        return;
    }
    for (int i = 0; i < n; i++) {
        size_t used = strlen(list);
        address_alone((struct sockaddr *)&mine[i], text, sizeof text);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", text);
    }
    int loop = rg_os_is_loopback((struct sockaddr *)&mine[0]);
    doctor_say(d, loop ? DOCTOR_NOTE : DOCTOR_OK, "address", NULL, "other members are told %s%s", list,
               loop ? ": members on this host only" : "");
}

static void own_name(struct doctor *d) {
    char name[256] = "", text[80];
    struct addrinfo *list = NULL, hints = { .ai_socktype = SOCK_STREAM };
    if (gethostname(name, sizeof name - 1)) return;
    int rc = getaddrinfo(name, NULL, &hints, &list);
    if (rc == 0 && list && rg_os_is_loopback(list->ai_addr)) {
        address_alone(list->ai_addr, text, sizeof text);
        doctor_say(d, DOCTOR_NOTE, "name", NULL,
                   "the host name %s means %s here: give others an address, never this name (members do not use it)",
                   name, text);
    }
    if (rc == 0) freeaddrinfo(list);
}

/* ---- Settings of TCP --------------------------------------------------------------------------------------------- */

static long third_number(const char *path) {
    char line[128];
    long a, b, c;
    return sscanf(doctor_line(path, line, sizeof line), "%ld %ld %ld", &a, &b, &c) == 3 ? c : -1;
}

static void tcp_settings(struct doctor *d) {
    char now[64], there[256];
    long out = third_number("/proc/sys/net/ipv4/tcp_wmem"), in = third_number("/proc/sys/net/ipv4/tcp_rmem");
    long core = number_in("/proc/sys/net/core/%s", "wmem_max");
    if (out > 0 && in > 0) {
        long least = out < in ? out : in;
        doctor_say(d, least < 4 << 20 ? DOCTOR_WARN : DOCTOR_OK, "tcp",
                   "for links that are fast and far: sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864' "
                   "net.ipv4.tcp_wmem='4096 65536 67108864'",
                   "buffers up to %ld KiB (send) and %ld KiB (receive): %.0f Mbit/s at 100 ms; %ld KiB when a size is "
                   "asked for",
                   out / 1024, in / 1024, (double)least * 8 / 0.1 / 1e6, core / 1024);
    }
    doctor_line("/proc/sys/net/ipv4/tcp_congestion_control", now, sizeof now);
    doctor_line("/proc/sys/net/ipv4/tcp_available_congestion_control", there, sizeof there);
    if (*there) doctor_say(d, DOCTOR_OK, "tcp", NULL, "congestion control %s; there are: %s", now, there);
    if (d->configured && strcmp(d->cfg.tcp_congestion, "auto") && !strstr(there, d->cfg.tcp_congestion))
        doctor_say(d, DOCTOR_BAD, "tcp", "load its kernel module, or choose one that is there",
                   "RG_TCP_CONGESTION is %s", d->cfg.tcp_congestion);
    long backlog = number_in("/proc/sys/net/core/%s", "somaxconn");
    if (backlog >= 0 && backlog < 256)
        doctor_say(d, DOCTOR_WARN, "tcp", "sysctl -w net.core.somaxconn=1024",
                   "at most %ld connections wait to be accepted: large groups join slowly", backlog);
}

void doctor_network(struct doctor *d) {
    interfaces(d);
    if (d->configured) chosen(d);
    own_name(d);
    tcp_settings(d);
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static void rdma_port(struct doctor *d, const char *device, const char *port) {
    char path[512], state[64], layer[64], rate[64], gid[64];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%s/state", device, port);
    doctor_line(path, state, sizeof state);
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%s/link_layer", device, port);
    doctor_line(path, layer, sizeof layer);
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%s/rate", device, port);
    doctor_line(path, rate, sizeof rate);
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%s/gids/0", device, port);
    doctor_line(path, gid, sizeof gid);
    doctor_say(d, strstr(state, "ACTIVE") ? DOCTOR_OK : DOCTOR_NOTE, "rdma", NULL, "%s port %s: %s, %s, %s, GID %s",
               device, port, state, layer, rate, gid);
}

static int rdma_device(struct doctor *d, const char *device) {
    char path[512];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports", device);
    DIR *ports = opendir(path);
    for (struct dirent *p; ports && (p = readdir(ports)) != NULL;)
        if (*p->d_name != '.') rdma_port(d, device, p->d_name);
    if (ports) closedir(ports);
    return 1;
}

void doctor_devices(struct doctor *d) {
    int cards = 0;
    DIR *dir = opendir("/sys/class/infiniband");
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (*e->d_name != '.') cards += rdma_device(d, e->d_name);
    if (dir) closedir(dir);
    doctor_say(d, DOCTOR_NOTE, "rdma", NULL, "%s; members use it if the library was built with RDMA",
               cards ? "there are devices" : "no devices");
    doctor_say(d, DOCTOR_NOTE, "gpu", NULL, "%s; this version works on host memory",
               access("/proc/driver/nvidia/version", R_OK) == 0 ? "an NVIDIA driver is loaded" : "no NVIDIA driver");
}

/* ---- The coordinator --------------------------------------------------------------------------------------------- */

void doctor_coordinator(struct doctor *d) {
    rg_error_t err = { RG_OK, 0, "" };
    char *text = NULL;
    if (!d->coordinator) {
        doctor_say(d, DOCTOR_NOTE, "coordinator", NULL, "none is named: give an address or set RG_COORDINATOR");
        return;
    }
    uint64_t start = tool_now_ns();
    if (rg_coordinator_status(d->coordinator, d->timeout_ms, &text, &err)) {
        doctor_say(d, DOCTOR_BAD, "coordinator",
                   "start one there with `regroup coordinator --listen ADDRESS:PORT`, or "
                   "correct the address, the firewall or the keys",
                   "%s", err.text);
        return;
    }
    double ms = (double)(tool_now_ns() - start) / 1e6;
    json_t *all = json_loads(text, 0, NULL);
    size_t groups = json_array_size(json_object_get(all, "groups"));
    doctor_say(d, DOCTOR_OK, "coordinator", NULL, "%s answers in %.1f ms%s; %zu group%s", d->coordinator, ms,
               json_is_false(json_object_get(all, "serves")) ? ", standing by" : "", groups, groups == 1 ? "" : "s");
    json_decref(all);
    rg_free(text);
}
