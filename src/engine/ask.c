/* ask.c: asks a coordinator something, from any program and thread: its roll, or whether it serves. Blocking, with a
 * deadline. It relies on the words of coordinator.h, and must believe nothing that comes back but its length. */
#include "config.h"
#include "core/wire.h"
#include "engine/coordinator.h"
#include "os/os.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

rg_status_t rg_ask_wait(const rg_ask_t *a, int fd, short events, rg_error_t *err) {
    for (;;) {
        uint64_t now = rg_os_now_ns();
        struct pollfd p[2] = { { .fd = fd, .events = events }, { .fd = a->stop_fd, .events = POLLIN } };
        if (now >= a->deadline) return rg_fail(err, RG_ERR_TIMEOUT, 0, "status of %s: no answer in time", a->address);
        int rc = poll(p, 2, (int)((a->deadline - now) / 1000000 + 1)); /* a negative descriptor is passed over */
        if (rc > 0 && p[1].revents) return rg_fail(err, RG_ERR_CANCELLED, 0, "status of %s: not wanted", a->address);
        if (rc > 0) return RG_OK;
        if (rc < 0 && errno != EINTR) /* it wants memory, or more descriptors than the limit is now */
            return rg_fail(err, RG_ERR_RESOURCE, errno, "status of %s: poll: %s", a->address, strerror(errno));
    }
}

rg_status_t rg_ask_move(rg_ask_t *a, uint8_t *buf, size_t len, int out, rg_error_t *err) {
    while (len || (out && rg_net_unsent(a->tls))) {
        ssize_t n = out ? rg_net_send(a->fd, a->tls, buf, len) : rg_net_recv(a->fd, a->tls, buf, len);
        if (n > 0) {
            buf += n;
            len -= (size_t)n;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            rg_status_t status = rg_ask_wait(a, a->fd, out ? POLLOUT : POLLIN, err);
            if (status) return status;
        } else if (n == 0 || errno != EINTR) {
            if (*rg_tls_why(a->tls))
                return rg_fail(err, RG_ERR_REFUSED, 0, "status of %s: %s", a->address, rg_tls_why(a->tls));
            return rg_fail(err, n && rg_os_shortage(errno) ? RG_ERR_RESOURCE : RG_ERR_COORDINATOR, n ? errno : 0,
                           "status of %s: %s (is a coordinator listening there?)", a->address,
                           n ? strerror(errno) : "the connection was closed");
        }
    }
    return RG_OK;
}

rg_status_t rg_ask_open(rg_ask_t *a, const struct sockaddr_storage *at, rg_tls_ctx_t *ctx, rg_error_t *err) {
    int rc = 0;
    a->tls = NULL;
    a->fd = rg_os_connect((const struct sockaddr *)at,
                          at->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), err);
    if (a->fd < 0) return (rg_status_t)a->fd;
    rg_status_t status = rg_ask_wait(a, a->fd, POLLOUT, err);
    if (status || !ctx) return status;
    a->tls = rg_tls_new(ctx, a->fd, 0, 0);
    if (!a->tls) return rg_fail(err, RG_ERR_NOMEM, 0, "status of %s: out of memory", a->address);
    while (!status && (rc = rg_tls_handshake(a->tls)) == 0)
        status = rg_ask_wait(a, a->fd, rg_tls_unsent(a->tls) ? POLLOUT : POLLIN, err);
    return rc < 0 ? rg_fail(err, RG_ERR_REFUSED, 0, "status of %s: %s", a->address, rg_tls_why(a->tls)) : status;
}

void rg_ask_close(rg_ask_t *a) {
    rg_tls_free(a->tls);
    a->tls = NULL;
    if (a->fd >= 0) close(a->fd);
    a->fd = -1;
}

int rg_ask_is_ours(const uint8_t *bytes) {
    rg_r_t r = { bytes, 8, 0, 0 };
    uint16_t version;
    return rg_r_header(&r, &version) != 0;
}

/* ---- The roll ---- */

/* What answers may be a refusal, in the form in which a member would get it. */
static rg_status_t ask_refused(const rg_ask_t *a, const char *text, size_t len, rg_error_t *err) {
    rg_r_t r = { (const uint8_t *)text, len, 0, 0 };
    char why[RG_CORE_TEXT_MAX] = "";
    uint16_t version;
    if (rg_r_header(&r, &version) != RG_MSG_REFUSE) return RG_OK;
    rg_r_u32(&r);
    rg_r_text(&r, why, sizeof why);
    return rg_fail(err, RG_ERR_REFUSED, 0, "status of %s: %s", a->address, why);
}

static rg_status_t ask_roll(rg_ask_t *a, char **json, rg_error_t *err) {
    uint8_t h[4], ask[12] = { 8, 0, 0, 0 };
    memcpy(ask + 4, RG_STATUS_WORD, 8);
    rg_status_t status = rg_ask_move(a, ask, sizeof ask, 1, err);
    if (!status) status = rg_ask_move(a, h, sizeof h, 0, err);
    if (status) return status;
    size_t len = h[0] | (size_t)h[1] << 8 | (size_t)h[2] << 16 | (size_t)h[3] << 24;
    if (!len || len > RG_STATUS_MAX)
        return rg_fail(err, RG_ERR_PROTOCOL, 0, "status of %s: what answers there is no coordinator", a->address);
    char *text = malloc(len + 1);
    if (!text) return rg_fail(err, RG_ERR_NOMEM, 0, "status of %s: out of memory", a->address);
    status = rg_ask_move(a, (uint8_t *)text, len, 0, err);
    text[len] = 0;
    if (!status) status = ask_refused(a, text, len, err);
    if (status) free(text);
    else *json = text;
    return status;
}

/* Of a list the first that serves; else the first that answers. */
static rg_status_t ask_any(rg_ask_t *a, rg_tls_ctx_t *ctx, char **json, rg_error_t *err) {
    struct sockaddr_storage addrs[16];
    const char *list = a->address;
    uint64_t until = a->deadline;
    rg_status_t status = RG_ERR_COORDINATOR;
    int n = rg_os_resolve_list(list, addrs, 16, err);
    if (n < 0) return (rg_status_t)n;
    for (int i = 0; i < n; i++) {
        char at[96], *text = NULL;
        uint64_t now = rg_os_now_ns();
        rg_os_addr_text((struct sockaddr *)&addrs[i], at, sizeof at);
        a->address = strchr(list, ',') ? at : list;
        a->deadline = now + (until > now ? (until - now) / (uint64_t)(n - i) : 0);
        status = rg_ask_open(a, &addrs[i], ctx, err);
        if (!status) status = ask_roll(a, &text, err);
        rg_ask_close(a);
        if (!text) continue;
        int serves = !strstr(text, "\"serves\":false");
        if (*json && !serves) {
            free(text);
            continue;
        }
        free(*json);
        *json = text;
        if (serves) break;
    }
    a->address = list; /* none of what lasts only here */
    return *json ? RG_OK : status;
}

rg_status_t rg_coordinator_status(const char *address, uint32_t timeout_ms, char **json, rg_error_t *err) {
    RG_OS_STAY;
    rg_ask_t a = { .address = address, .fd = -1, .stop_fd = -1 };
    rg_coordinator_config_t c;
    rg_tls_ctx_t *ctx = NULL;
    char *strings;
    a.deadline = rg_os_now_ns() + (timeout_ms ? timeout_ms : 5000) * 1000000ull;
    if (!address || !json) return rg_fail(err, RG_ERR_INVALID, 0, "rg_coordinator_status: address or json is NULL");
    *json = NULL;
    rg_status_t status = rg_coordinator_config_resolve(NULL, &c, &strings, err);
    if (status) return status;
    status = rg_tls_open(&RG_TLS_FILES(&c), &ctx, err);
    if (!status) status = ask_any(&a, ctx, json, err);
    rg_tls_close(ctx);
    rg_config_free(strings);
    return status;
}
