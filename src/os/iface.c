/* iface.c: which addresses of this host to tell others. A name lookup of the own host name is never used: it often
 * gives 127.0.1.1. Relies on getifaddrs and on the kernel's routing (connect of a UDP socket, which sends nothing).
 * Must not give a loopback address that nobody has chosen. */
#include "os.h"
#include "../observe/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_NO, NAME_PREFIX, NAME_EXACT };

static const uint8_t *addr_bytes(const struct sockaddr *sa, unsigned *n) {
    if (sa->sa_family == AF_INET) {
        *n = 4;
        return (const uint8_t *)&((const struct sockaddr_in *)(const void *)sa)->sin_addr;
    }
    *n = 16;
    return (const uint8_t *)&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
}

static int usable(const struct ifaddrs *i) {
    return i->ifa_addr && (i->ifa_flags & IFF_UP) &&
           (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

static int is_link_local(const struct sockaddr *sa) {
    unsigned n;
    const uint8_t *b = addr_bytes(sa, &n);
    return n == 16 ? b[0] == 0xfe && (b[1] & 0xc0) == 0x80 : b[0] == 169 && b[1] == 254;
}

static int is_loopback(const struct sockaddr *sa) {
    static const uint8_t v6[16] = { [15] = 1 }, mapped[13] = { [10] = 0xff, [11] = 0xff, [12] = 127 };
    unsigned n;
    const uint8_t *b = addr_bytes(sa, &n);
    return n == 4 ? b[0] == 127 : memcmp(b, v6, 16) == 0 || memcmp(b, mapped, 13) == 0;
}

static int same_ip(const struct sockaddr *a, const struct sockaddr *b) {
    unsigned n, m;
    if (a->sa_family != b->sa_family) return 0;
    const uint8_t *x = addr_bytes(a, &n), *y = addr_bytes(b, &m);
    return memcmp(x, y, n) == 0;
}

static rg_status_t fail_listing(const struct ifaddrs *all, rg_error_t *err, const char *what, const char *which) {
    char list[360] = "";
    size_t used = 0;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        char ip[INET6_ADDRSTRLEN] = "?";
        unsigned n;
        if (!usable(i)) continue;
        inet_ntop(i->ifa_addr->sa_family, addr_bytes(i->ifa_addr, &n), ip, sizeof ip);
        int w = snprintf(list + used, sizeof list - used, "%s%s %s", used ? ", " : "", i->ifa_name, ip);
        if (w < 0 || (size_t)w >= sizeof list - used) break;
        used += (size_t)w;
    }
    return rg_fail(err, RG_ERR_INVALID, 0, "%s \"%.60s\"; there are: %s", what, which, used ? list : "none");
}

/* One element of the selector: an interface name, a network, or an address. */
typedef struct item {
    char name[64];
    uint8_t ip[16];
    unsigned bytes; /* 0: a name */
    unsigned bits;
    int exact; /* some interface has exactly this name: then it is no prefix */
} item_t;

static int parse_item(const char *at, size_t n, item_t *it) {
    memset(it, 0, sizeof *it);
    if (n == 0 || n >= sizeof it->name) return -1;
    memcpy(it->name, at, n);
    char ip[64];
    memcpy(ip, it->name, sizeof ip);
    char *slash = strchr(ip, '/');
    if (slash) *slash = 0;
    if (inet_pton(AF_INET, ip, it->ip) == 1) it->bytes = 4;
    else if (inet_pton(AF_INET6, ip, it->ip) == 1) it->bytes = 16;
    it->bits = it->bytes * 8;
    if (!slash) return 0;
    char *end;
    unsigned long bits = strtoul(slash + 1, &end, 10);
    if (it->bytes == 0 || *end || end == slash + 1 || bits > it->bits) return -1;
    it->bits = (unsigned)bits;
    return 0;
}

static int item_matches(const item_t *it, const struct ifaddrs *i) {
    if (it->bytes == 0) {
        if (strcmp(i->ifa_name, it->name) == 0) return NAME_EXACT;
        return !it->exact && strncmp(i->ifa_name, it->name, strlen(it->name)) == 0 ? NAME_PREFIX : NAME_NO;
    }
    unsigned n, whole = it->bits / 8, rest = it->bits % 8;
    const uint8_t *b = addr_bytes(i->ifa_addr, &n);
    if (n != it->bytes || memcmp(b, it->ip, whole) != 0) return NAME_NO;
    if (rest && ((b[whole] ^ it->ip[whole]) >> (8 - rest))) return NAME_NO;
    /* A network that holds loopback among all else has not chosen loopback. */
    return it->bits < 8 ? NAME_PREFIX : NAME_EXACT;
}

static int add(struct sockaddr_storage *out, int n, int max, const struct sockaddr *sa) {
    for (int k = 0; k < n; k++)
        if (same_ip((struct sockaddr *)&out[k], sa)) return n;
    if (n >= max) return n;
    memset(&out[n], 0, sizeof out[n]);
    memcpy(&out[n], sa, sa->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    if (sa->sa_family == AF_INET) ((struct sockaddr_in *)&out[n])->sin_port = 0;
    else ((struct sockaddr_in6 *)&out[n])->sin6_port = 0;
    return n + 1;
}

#define ITEMS_MAX 16

static int parse_selector(const struct ifaddrs *all, const char *at, item_t *items, rg_error_t *err,
                          const char *selector) {
    int n = 0;
    while (*at) {
        size_t len = strcspn(at, ",");
        if (n == ITEMS_MAX)
            return rg_fail(err, RG_ERR_INVALID, 0, "interface selector \"%.100s\" has more than %d parts", selector,
                           ITEMS_MAX);
        if (parse_item(at, len, &items[n]) != 0)
            return fail_listing(
                all, err,
                "interface selector is not a list of names, addresses and networks like 10.0.0.0/8:", selector);
        for (const struct ifaddrs *i = all; i; i = i->ifa_next)
            if (strcmp(i->ifa_name, items[n].name) == 0) items[n].exact = 1;
        n++;
        at += len;
        if (*at == ',') at++;
    }
    if (n == 0) {
        fail_listing(all, err, "interface selector names nothing:", selector);
        return RG_ERR_INVALID;
    }
    return n;
}

/* Chosen by the selector. Link-local addresses come last: they help only where there is nothing else. */
static int by_selector(const struct ifaddrs *all, const char *selector, struct sockaddr_storage *out, int max,
                       rg_error_t *err) {
    item_t items[ITEMS_MAX];
    int invert = selector[0] == '^', found = 0;
    int n = parse_selector(all, selector + invert, items, err, selector);
    if (n < 0) return n;
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < (invert ? 1 : n); k++) {
            for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
                if (!usable(i) || is_link_local(i->ifa_addr) != pass) continue;
                int loop = is_loopback(i->ifa_addr) || (i->ifa_flags & IFF_LOOPBACK), hit = NAME_NO;
                for (int j = 0; j < n; j++)
                    if ((invert || j == k) && item_matches(&items[j], i) > hit) hit = item_matches(&items[j], i);
                if (invert ? hit != NAME_NO || loop : hit == NAME_NO || (loop && hit != NAME_EXACT)) continue;
                found = add(out, found, max, i->ifa_addr);
            }
        }
    }
    return found ? found
                 : fail_listing(all, err, "no address of this host is chosen by the interface selector", selector);
}

/* The address that the kernel would use towards `remote`, and then the other ones of the same interface. */
static int towards(const struct ifaddrs *all, const char *remote, struct sockaddr_storage *out, int max,
                   rg_error_t *err) {
    struct addrinfo hints = { .ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_DGRAM,
                              .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV },
                    *a = NULL;
    char host[80];
    snprintf(host, sizeof host, "%s", remote[0] == '[' ? remote + 1 : remote);
    host[strcspn(host, "]")] = 0;
    char *colon = strchr(host, ':');
    if (colon && !strchr(colon + 1, ':')) *colon = 0; /* "1.2.3.4:80" */
    int rc = getaddrinfo(host, "9", &hints, &a);
    if (rc == EAI_MEMORY) return rg_fail(err, RG_ERR_NOMEM, 0, "no memory to read the address \"%.100s\"", remote);
    if (rc != 0) return rg_fail(err, RG_ERR_INVALID, 0, "\"%.100s\" is not a numeric address", remote);
    struct sockaddr_storage self = { .ss_family = AF_UNSPEC };
    socklen_t len = sizeof self;
    int loop = is_loopback(a->ai_addr), e = 0;
    int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, a->ai_addr, a->ai_addrlen) != 0 || getsockname(fd, (struct sockaddr *)&self, &len) != 0)
        e = errno ? errno : EINVAL;
    if (fd >= 0) close(fd);
    freeaddrinfo(a);
    if (e) return rg_fail(err, RG_ERR_SYSTEM, e, "no way to %.100s: %s", remote, strerror(e));
    if (is_loopback((struct sockaddr *)&self) && !loop) return 0;
    int n = add(out, 0, max, (struct sockaddr *)&self);
    if (loop) return n;
    const char *name = NULL;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if (usable(i) && same_ip(i->ifa_addr, (struct sockaddr *)&self)) name = i->ifa_name;
    for (const struct ifaddrs *i = all; name && i; i = i->ifa_next)
        if (usable(i) && strcmp(i->ifa_name, name) == 0 && !is_link_local(i->ifa_addr) && !is_loopback(i->ifa_addr))
            n = add(out, n, max, i->ifa_addr);
    return n;
}

int rg_os_local_addresses(const char *selector, const char *remote, struct sockaddr_storage *out, int max,
                          rg_error_t *err) {
    struct ifaddrs *all = NULL;
    int n = 0;
    if (max < 1) return rg_fail(err, RG_ERR_INVALID, 0, "no room for an address");
    if (getifaddrs(&all) != 0)
        return rg_fail(err, RG_ERR_SYSTEM, errno, "cannot list the network interfaces: %s", strerror(errno));
    if (selector && selector[0]) n = by_selector(all, selector, out, max, err);
    else if (remote && remote[0]) n = towards(all, remote, out, max, err);
    if (n == 0 && !(selector && selector[0])) {
        for (int pass = 0; pass < 2; pass++)
            for (const struct ifaddrs *i = all; i; i = i->ifa_next)
                if (usable(i) && !(i->ifa_flags & IFF_LOOPBACK) && !is_loopback(i->ifa_addr) &&
                    is_link_local(i->ifa_addr) == pass)
                    n = pass == 1 && n > 0 ? n : add(out, n, max, i->ifa_addr);
        if (n == 0)
            n = fail_listing(all, err, "no interface but loopback is up; to run on this host only choose the interface",
                             "lo");
    }
    freeifaddrs(all);
    return n;
}

int rg_os_is_loopback(const struct sockaddr *sa) {
    return (sa->sa_family == AF_INET || sa->sa_family == AF_INET6) && is_loopback(sa);
}

int rg_os_is_local_address(const struct sockaddr *sa) {
    struct ifaddrs *all = NULL;
    int yes = 0;
    if (sa->sa_family != AF_INET && sa->sa_family != AF_INET6) return 0;
    if (is_loopback(sa)) return 1;
    if (getifaddrs(&all) != 0) return 0;
    for (const struct ifaddrs *i = all; i && !yes; i = i->ifa_next) yes = usable(i) && same_ip(i->ifa_addr, sa);
    freeifaddrs(all);
    return yes;
}
