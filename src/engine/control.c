/* control.c: the connection from a member to its coordinator: length-prefixed frames over a non-blocking socket.
 * It relies on the group's lock, hands whole frames to the core undecoded, and turns connection events into core
 * events. It never blocks, and it never decides anything. */
#include "engine/coordinator.h"
#include "engine/group.h"
#include "os/os.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define CONTROL_BACKOFF_MIN_NS 50000000ull
#define CONTROL_BACKOFF_MAX_NS 2000000000ull
#define DIAL_NONE (-1)
#define DIAL_LACKS (-2)
#define CONTROL_OUT_MAX (8u << 20) /* a coordinator that reads nothing for this long is as good as gone */

void rg_control_init(rg_control_t *c) {
    memset(c, 0, sizeof *c);
    c->fd = -1;
    c->backoff_ns = CONTROL_BACKOFF_MIN_NS;
}

static void control_hang_up(rg_control_t *c) {
    rg_tls_free(c->tls);
    c->tls = NULL;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->connecting = c->opening = c->renew = c->spoken = 0;
    c->in_len = c->out_len = c->out_off = 0;
}

void rg_control_close(rg_control_t *c) {
    control_hang_up(c);
    free(c->in);
    free(c->out);
    c->in = c->out = NULL;
    c->in_cap = c->out_cap = 0;
}

static void control_lost(rg_group_t *g, uint64_t now) {
    rg_control_t *c = &g->control;
    /* Late enough not to press a coordinator that takes the connection and then wants nothing of this member, early
     * enough to be back before it is missed. */
    uint64_t most = (uint64_t)g->cfg.heartbeat_ms * 250000u;
    if (most > CONTROL_BACKOFF_MAX_NS) most = CONTROL_BACKOFF_MAX_NS;
    if (most < CONTROL_BACKOFF_MIN_NS) most = CONTROL_BACKOFF_MIN_NS;
    int stayed = !c->connecting && c->up_since_ns && now - c->up_since_ns > 4 * most;
    if (stayed) {
        c->backoff_ns = CONTROL_BACKOFF_MIN_NS;
        if (!c->target) g->next_coord_addr = 0; /* the first of the list is the one that is wanted most */
    }
    control_hang_up(c);
    c->retry_at_ns = 0;
    if (!g->succession || g->phase != RG_PHASE_MEMBER) { /* else the core says when, and where to */
        c->retry_at_ns = now;
        if (c->tried >= (uint32_t)g->n_coord_addr) { /* nobody of the list: not at once again */
            c->retry_at_ns += c->backoff_ns;
            c->backoff_ns = c->backoff_ns * 2 > most ? most : c->backoff_ns * 2;
        }
    }
    rg_member_event_t ev = { .type = RG_MEV_CONTROL_DOWN, .now_ns = now };
    rg_core_event(g, &ev);
}

/* Where the connection is to go. One that is open is given up at the next round: not from inside a read of it. */
void rg_control_aim(rg_group_t *g, const rg_member_action_t *a) {
    rg_control_t *c = &g->control;
    c->target = a->peer;
    c->n_places = c->tried = 0;
    if (a->member && g->tp_ops->places)
        c->n_places =
            (uint32_t)g->tp_ops->places(g->tp, a->member->addr, a->member->addr_len, c->place, RG_CONTROL_PLACES);
    if (c->fd >= 0 && g->succession) c->renew = 2;
    else if (c->fd >= 0) c->renew = !c->connecting;
    else if (!c->retry_at_ns || g->phase == RG_PHASE_MEMBER) c->retry_at_ns = 1;
}

/* A socket that is on its way to the next place of the target; DIAL_NONE: there is none left; DIAL_LACKS: this process
 * lacks what a socket takes, which says nothing of the place. */
static int dial_next(rg_group_t *g, rg_error_t *err) {
    rg_control_t *c = &g->control;
    uint32_t n = c->target ? c->n_places : (uint32_t)g->n_coord_addr;
    if (c->target && c->target == g->self_id) {
        int fd = c->tried ? DIAL_NONE : rg_office_dial(g);
        if (fd == DIAL_NONE && !c->tried && rg_os_shortage(errno)) return DIAL_LACKS;
        c->tried++;
        return fd;
    }
    while (c->tried < n) {
        c->at = c->target ? c->tried : (uint32_t)g->next_coord_addr;
        const struct sockaddr *sa = (const struct sockaddr *)(c->target ? &c->place[c->at] : &g->coord_addr[c->at]);
        int fd = rg_os_connect(sa, sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in),
                               err);
        if (fd == RG_ERR_RESOURCE) return DIAL_LACKS;
        c->tried++;
        if (!c->target) g->next_coord_addr = (g->next_coord_addr + 1) % g->n_coord_addr;
        if (fd >= 0) return fd;
    }
    return DIAL_NONE;
}

/* Begins with the next place, and says that there is no coordinator when all have been tried. Without descriptors or
 * memory it begins again a little later: this member knows nothing then of who is there. */
static void control_dial(rg_group_t *g, uint64_t now) {
    rg_control_t *c = &g->control;
    rg_error_t err = { RG_OK, 0, "" };
    const uint32_t n = c->target ? c->n_places : (uint32_t)g->n_coord_addr;
    int one = 1, fd = dial_next(g, &err);
    struct epoll_event e = { .events = EPOLLIN | EPOLLOUT, .data.u32 = 1 };
    if (fd >= 0 && epoll_ctl(g->epfd, EPOLL_CTL_ADD, fd, &e) != 0) {
        rg_fail(&err, RG_ERR_SYSTEM, errno, "coordinator %s: %s", g->cfg.coordinator, strerror(errno));
        close(fd);
        fd = DIAL_LACKS;
    }
    if (fd < 0 && err.text[0]) rg_group_set_errmsg(g, "%s", err.text);
    if (fd == DIAL_LACKS) {
        c->retry_at_ns = now + CONTROL_BACKOFF_MIN_NS;
        return;
    }
    if (fd < 0) {
        c->connecting = 1;
        control_lost(g, now);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->fd = fd;
    c->connecting = 1;
    c->connect_by_ns = now + (uint64_t)g->cfg.heartbeat_ms * 1000000u / (n > 4 ? 4 : n ? n : 1);
    c->retry_at_ns = 0;
}

void rg_control_connect(rg_group_t *g) {
    if (g->control.fd >= 0) return;
    if (g->control.tried >= (uint32_t)g->n_coord_addr) g->control.tried = 0;
    control_dial(g, rg_os_now_ns());
}

int rg_control_fd_events(const rg_control_t *c) {
    if (c->fd < 0) return 0;
    if (c->opening) return EPOLLIN | (rg_net_unsent(c->tls) ? EPOLLOUT : 0);
    return EPOLLIN | (c->connecting || c->out_len > c->out_off || rg_net_unsent(c->tls) ? EPOLLOUT : 0);
}

static int control_flush(rg_control_t *c) {
    if (c->tls && rg_tls_flush(c->tls) < 0) return -1;
    while (c->out_off < c->out_len) {
        ssize_t n = rg_net_send(c->fd, c->tls, c->out + c->out_off, c->out_len - c->out_off);
        if (n > 0) c->out_off += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || rg_os_shortage(errno)) ? 0 : -1;
    }
    c->out_off = c->out_len = 0;
    return 0;
}

static int buffer_reserve(uint8_t **p, size_t *cap, size_t need) {
    if (need <= *cap) return 1;
    size_t want = *cap ? *cap : 4096;
    while (want < need) want *= 2;
    uint8_t *q = realloc(*p, want);
    if (!q) return 0;
    *p = q;
    *cap = want;
    return 1;
}

rg_status_t rg_control_send(rg_group_t *g, const uint8_t *bytes, size_t len) {
    rg_control_t *c = &g->control;
    /* The core repeats what matters when the connection is back, or when another one is there. */
    if (c->fd < 0 || c->connecting || c->renew == 2) return RG_ERR_COORDINATOR;
    if (c->out_off == c->out_len) c->out_off = c->out_len = 0;
    if (c->out_len - c->out_off > CONTROL_OUT_MAX || !buffer_reserve(&c->out, &c->out_cap, c->out_len + len + 4)) {
        shutdown(c->fd, SHUT_RDWR); /* a message that is lost on a connection that stays is never repeated */
        return RG_ERR_RESOURCE;
    }
    uint8_t *p = c->out + c->out_len;
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(len >> (8 * i));
    memcpy(p + 4, bytes, len);
    c->out_len += len + 4;
    control_flush(c); /* a failure shows up at the next read */
    return RG_OK;
}

/* What came is nothing that a coordinator says: another server has the port. Where all addresses are such, twice in a
 * row, no patience makes coordinators of them. */
static void control_strange(rg_group_t *g, const uint8_t *said, size_t n) {
    rg_control_t *c = &g->control;
    size_t shown = 0;
    while (shown < n && shown < 40 && said[shown] >= 0x20 && said[shown] < 0x7f) shown++;
    rg_group_set_errmsg(g, "what answers there is no regroup coordinator: it says %zu bytes that begin \"%.*s\"", n,
                        (int)shown, (const char *)said);
    if (++c->strange >= 2u * (uint32_t)g->n_coord_addr && g->phase == RG_PHASE_JOINING && !g->self_id) {
        g->join_status = RG_ERR_PROTOCOL;
        rg_wake(g);
    }
}

/* Whether the first bytes over a connection, as far as they are here, are no coordinator's. */
static int is_strange(const rg_control_t *c, int ended) {
    if (c->spoken || c->in_len == 0) return 0;
    return c->in_len < 12 ? ended : !rg_ask_is_ours(c->in + 4);
}

/* Hands over every whole frame. The core may close the connection on the way (RG_MACT_CONTROL, or the group is over).
 */
static int control_frames(rg_group_t *g, uint64_t now) {
    rg_control_t *c = &g->control;
    size_t off = 0;
    if (is_strange(c, 0)) return -1;
    while (c->fd >= 0 && c->renew != 2 && c->in_len - off >= 4) {
        const uint8_t *p = c->in + off;
        uint32_t len = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        if (len > RG_CORE_MAX_MESSAGE) return -1;
        if (c->in_len - off < 4 + (size_t)len) break;
        c->spoken = 1;
        c->strange = 0;
        rg_member_event_t ev = { .type = RG_MEV_MESSAGE, .now_ns = now, .bytes = p + 4, .len = len };
        rg_core_event(g, &ev);
        off += 4 + (size_t)len;
    }
    if (c->fd >= 0 && off) {
        memmove(c->in, c->in + off, c->in_len - off);
        c->in_len -= off;
    }
    return 0;
}

/* Who is refused by every address, twice in a row, because of the keys will not be let in by trying on. */
static void control_unfit(rg_group_t *g) {
    rg_control_t *c = &g->control;
    rg_group_set_errmsg(g, "coordinator %s: %s", g->cfg.coordinator, rg_tls_why(c->tls));
    RG_LOGF(&g->log, RG_LOG_WARN, "coordinator %s: %s", g->cfg.coordinator, rg_tls_why(c->tls));
    if (!rg_tls_unfit(c->tls)) return;
    if (++c->unfit >= 2u * (uint32_t)g->n_coord_addr && g->phase == RG_PHASE_JOINING && !g->self_id) {
        g->join_status = RG_ERR_REFUSED;
        rg_wake(g);
    }
}

static void control_is_up(rg_group_t *g, uint64_t now) {
    g->control.up_since_ns = now;
    rg_member_event_t ev = { .type = RG_MEV_CONTROL_UP, .now_ns = now };
    rg_core_event(g, &ev);
}

/* Goes on with the TLS handshake. 0: still under way; else it has ended, well or with the connection gone. */
static int control_opened(rg_group_t *g, uint64_t now) {
    rg_control_t *c = &g->control;
    int rc = rg_tls_handshake(c->tls);
    if (rc == 0 && now < c->connect_by_ns) return 0;
    if (rc > 0) {
        c->connecting = c->opening = 0;
        control_is_up(g, now);
        return 1;
    }
    if (rc < 0) control_unfit(g);
    else rg_group_set_errmsg(g, "coordinator %s: no answer in the TLS handshake", g->cfg.coordinator);
    control_lost(g, now);
    return 1;
}

/* Looks whether connect() has ended, and tells the core how. 0: still under way. */
static int control_connected(rg_group_t *g, uint64_t now) {
    rg_control_t *c = &g->control;
    if (c->opening) return control_opened(g, now);
    struct pollfd p = { .fd = c->fd, .events = POLLOUT };
    int err = 0;
    socklen_t len = sizeof err;
    if (poll(&p, 1, 0) > 0) getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len);
    else if (now >= c->connect_by_ns) err = ETIMEDOUT; /* the kernel itself would try for minutes, ever more rarely */
    else return 0;
    if (err) {
        c->strange = 0; /* somebody may come to that place */
        rg_group_set_errmsg(g, "coordinator %s: %s", g->cfg.coordinator, strerror(err));
        control_hang_up(c);
        control_dial(g, now);
        return 1;
    }
    if (!g->tls || (c->target && c->target == g->self_id)) {
        c->connecting = 0;
        control_is_up(g, now);
        return 1;
    }
    c->tls = rg_tls_new(g->tls, c->fd, 0, 0);
    if (c->tls) {
        c->opening = 1;
        return control_opened(g, now);
    }
    rg_group_set_errmsg(g, "coordinator %s: no memory for TLS", g->cfg.coordinator);
    control_lost(g, now);
    return 1;
}

int rg_control_poll(rg_group_t *g, uint64_t now) {
    rg_control_t *c = &g->control;
    if (c->renew == 2) {
        control_hang_up(c);
        c->retry_at_ns = now;
    }
    if (c->fd < 0) {
        if (c->retry_at_ns && now >= c->retry_at_ns && g->phase != RG_PHASE_OVER) rg_control_connect(g);
        return 0;
    }
    if (c->connecting && (!control_connected(g, now) || c->fd < 0 || c->connecting)) return c->fd < 0;
    /* A coordinator that has closed the connection may have said why: what it sent is read first. */
    int any = 0, dead = 0, cut = control_flush(c) != 0;
    while (c->fd >= 0 && c->renew != 2 && !dead) {
        if (!buffer_reserve(&c->in, &c->in_cap, c->in_len + 16384)) break;
        size_t room = c->in_cap - c->in_len;
        ssize_t n = rg_net_recv(c->fd, c->tls, c->in + c->in_len, room);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n <= 0) {
            if (n < 0 && *rg_tls_why(c->tls)) control_unfit(g);
            dead = 1;
            break;
        }
        any = 1;
        c->unfit = 0;
        c->in_len += (size_t)n;
        dead = control_frames(g, now) != 0;
        if ((size_t)n < room && !cut) break;
    }
    if (c->renew == 2) return 1;
    if (c->fd >= 0 && (dead || cut)) {
        control_frames(g, now);
        if (is_strange(c, dead)) control_strange(g, c->in, c->in_len);
        if (c->fd >= 0 && c->renew != 2) control_lost(g, now);
        return 1;
    }
    if (any) {
        c->renew = 0;
    } else if (c->renew && c->fd >= 0) {
        control_lost(g, now);
        c->retry_at_ns = now;
    }
    return any;
}
