/* net.c: names to addresses and back, listening and connecting sockets.
 * Relies on getaddrinfo, which may block on a name (never on a numeric address). Must not retry or wait: the callers
 * own the timers. */
#include "os.h"
#include "../observe/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Splits "host:port", "[v6]:port", ":port" and a bare numeric IPv6 address followed by nothing is refused, because
 * "::1:80" could mean two things. */
static rg_status_t split_host_port(const char *text, char *host, size_t host_cap, char *port, size_t port_cap,
                                   rg_error_t *err) {
    static const char want[] = "expected \"host:port\", \"[v6 address]:port\" or \":port\"";
    const char *host_at = text, *host_end, *colon;
    if (text[0] == '[') {
        host_at = text + 1;
        host_end = strchr(host_at, ']');
        if (!host_end || host_end[1] != ':')
            return rg_fail(err, RG_ERR_INVALID, 0, "address \"%.200s\": no \"]:\" after the IPv6 address; %s", text,
                           want);
        if (host_end == host_at) /* not all addresses: who means them says so by ":port" */
            return rg_fail(err, RG_ERR_INVALID, 0, "address \"%.200s\": nothing between the brackets; %s", text, want);
        colon = host_end + 1;
    } else {
        colon = strrchr(text, ':');
        if (!colon) return rg_fail(err, RG_ERR_INVALID, 0, "address \"%.200s\" has no port; %s", text, want);
        host_end = colon;
        if (memchr(text, ':', (size_t)(colon - text)))
            return rg_fail(err, RG_ERR_INVALID, 0, "address \"%.200s\": put an IPv6 address in brackets; %s", text,
                           want);
    }
    size_t hn = (size_t)(host_end - host_at), pn = strlen(colon + 1);
    if (hn >= host_cap)
        return rg_fail(err, RG_ERR_INVALID, 0, "address \"%.200s...\": the host name is longer than %zu bytes", text,
                       host_cap - 1);
    if (pn == 0 || pn >= port_cap || strspn(colon + 1, "0123456789") != pn || strtoul(colon + 1, NULL, 10) > 65535)
        return rg_fail(err, RG_ERR_INVALID, 0, "address \"%.200s\": the port must be a number from 0 to 65535; %s",
                       text, want);
    memcpy(host, host_at, hn);
    host[hn] = 0;
    memcpy(port, colon + 1, pn + 1);
    return RG_OK;
}

int rg_os_resolve(const char *text, struct sockaddr_storage *out, int max, rg_error_t *err) {
    char host[256], port[8];
    if (!text || max < 1) return rg_fail(err, RG_ERR_INVALID, 0, "no address given; expected \"host:port\"");
    rg_status_t st = split_host_port(text, host, sizeof host, port, sizeof port, err);
    if (st != RG_OK) return st;
    struct addrinfo hints = { .ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_NUMERICSERV | (host[0] ? 0 : AI_PASSIVE) };
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host[0] ? host : NULL, port, &hints, &list);
    if (rc != 0)
        return rg_fail(err, rc == EAI_MEMORY ? RG_ERR_NOMEM : RG_ERR_INVALID, rc == EAI_SYSTEM ? errno : 0,
                       "host \"%.200s\" cannot be resolved: %s", host,
                       rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    int n = 0;
    for (struct addrinfo *a = list; a && n < max; a = a->ai_next) {
        if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) || a->ai_addrlen > sizeof *out) continue;
        memset(&out[n], 0, sizeof out[n]);
        memcpy(&out[n], a->ai_addr, a->ai_addrlen);
        n++;
    }
    freeaddrinfo(list);
    if (n == 0) return rg_fail(err, RG_ERR_INVALID, 0, "host \"%.200s\" has neither an IPv4 nor an IPv6 address", host);
    return n;
}

int rg_os_resolve_list(const char *text, struct sockaddr_storage *out, int max, rg_error_t *err) {
    char one[320], host[256], port[8];
    int n = 0, last = RG_ERR_INVALID;
    if (!text || !*text) return rg_fail(err, RG_ERR_INVALID, 0, "no address given; expected \"host:port\"");
    for (const char *at = text; at;) {
        const char *comma = strchr(at, ',');
        size_t len = comma ? (size_t)(comma - at) : strlen(at);
        while (len && *at == ' ') at++, len--;
        while (len && at[len - 1] == ' ') len--;
        if (!len || len >= sizeof one)
            return rg_fail(err, RG_ERR_INVALID, 0, "address list \"%.200s\": expected \"host:port\" between commas",
                           text);
        memcpy(one, at, len);
        one[len] = 0;
        rg_status_t st = split_host_port(one, host, sizeof host, port, sizeof port, err);
        if (st != RG_OK) return st;
        rg_error_t why = { 0 };
        int got = n < max ? rg_os_resolve(one, out + n, max - n, &why) : 0;
        if (got > 0) n += got;
        else if (got < 0) last = got;
        if (got < 0 && err && !n) *err = why;
        at = comma ? comma + 1 : NULL;
    }
    return n ? n : last;
}

const char *rg_os_addr_text(const struct sockaddr *sa, char *buf, size_t cap) {
    char ip[INET6_ADDRSTRLEN + 1] = "?", scope[IF_NAMESIZE + 1] = "";
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const void *)sa;
        inet_ntop(AF_INET, &a->sin_addr, ip, sizeof ip);
        snprintf(buf, cap, "%s:%u", ip, ntohs(a->sin_port));
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const void *)sa;
        inet_ntop(AF_INET6, &a->sin6_addr, ip, sizeof ip);
        if (a->sin6_scope_id) {
            char name[IF_NAMESIZE];
            if (if_indextoname(a->sin6_scope_id, name)) snprintf(scope, sizeof scope, "%%%s", name);
        }
        snprintf(buf, cap, "[%s%s]:%u", ip, scope, ntohs(a->sin6_port));
    } else {
        snprintf(buf, cap, "(address family %d)", sa->sa_family);
    }
    return buf;
}

/* ---- Numbers of descriptors ---------------------------------------------------------------------------------------
 */

int rg_os_high(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), e = errno;
    close(fd);
    errno = e;
    return high;
}

int rg_os_hold_stdio(void) {
    int held = 0, fd;
    while ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO) held |= 1 << fd;
    if (fd >= 0) close(fd);
    return held;
}

void rg_os_free_stdio(int held) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (held >> fd & 1) close(fd);
}

/* ---- Connections ---------------------------------------------------------------------------------------------------
 */

int rg_os_listen(const struct sockaddr *sa, socklen_t len, struct sockaddr_storage *bound, rg_error_t *err) {
    char text[80];
    rg_os_addr_text(sa, text, sizeof text);
    int fd = rg_os_high(socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return rg_fail(err, RG_ERR_SYSTEM, errno, "cannot make a socket to listen on %s: %s", text, strerror(errno));
    int one = 1;
    /* Ports of a job that has just died are in TIME_WAIT; its successor may have them all the same. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (sa->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    const char *what = "bind";
    if (bind(fd, sa, len) == 0) {
        what = "listen";
        if (listen(fd, 1024) == 0) {
            socklen_t bl = sizeof *bound;
            memset(bound, 0, sizeof *bound);
            if (getsockname(fd, (struct sockaddr *)bound, &bl) == 0) return fd;
            what = "getsockname";
        }
    }
    int e = errno;
    close(fd);
    return rg_fail(err, RG_ERR_SYSTEM, e, "cannot listen on %s: %s: %s%s", text, what, strerror(e),
                   e == EADDRINUSE ? "; stop the process that has the port, or choose port 0 for any free one" : "");
}

int rg_os_shortage(int e) { return e == EMFILE || e == ENFILE || e == ENOBUFS || e == ENOMEM; }

int rg_os_connect(const struct sockaddr *sa, socklen_t len, rg_error_t *err) {
    char text[80];
    int fd = rg_os_high(socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd >= 0 && (connect(fd, sa, len) == 0 || errno == EINPROGRESS || errno == EINTR)) return fd;
    int e = errno;
    if (fd >= 0) close(fd);
    rg_os_addr_text(sa, text, sizeof text);
    return rg_fail(err, rg_os_shortage(e) ? RG_ERR_RESOURCE : RG_ERR_SYSTEM, e, "cannot connect to %s: %s", text,
                   strerror(e));
}
