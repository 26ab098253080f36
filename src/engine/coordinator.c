/* coordinator.c: the coordinator as a thread: sockets, frames, groups by name, and time around the pure machine of
 * src/core/core.h, which takes every decision about membership. Frames are a little-endian u32 length and that many
 * bytes. It relies on libuv for readiness and timers and on jansson for the roll.
 * It must not trust a connection: until a first frame names a group, a connection may hold 4 KiB for 5 seconds, there
 * are at most CO_STRANGERS of them, and the oldest makes room; later ones are bounded per group and per queue. */
#include "regroup.h"

#include "config.h"
#include "core/core.h"
#include "engine/coordinator.h"
#include "engine/roll.h"
#include "observe/log.h"
#include "os/os.h"
#include "os/tls.h"

#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uv.h>

#define CO_FIRST_FRAME_MAX 4096u
#define CO_FIRST_FRAME_NS 5000000000ull
#define CO_STRANGERS 256u       /* connections that have not named a group, or are being closed */
#define CO_QUEUE_MAX (4u << 20) /* unsent bytes of a member; one that reads less is closed */
#define CO_ACCEPT_BATCH 32      /* so that a flood of connections does not starve those that talk */
#define CO_ACCEPT_PAUSE_NS 100000000ull
#define CO_SLOTS 65536u /* connection ids are sequence << 16 | slot */

/* A connection that another thread has brought, until the loop takes it. */
struct co_guest {
    struct co_guest *next;
    int fd;
    uint32_t len;
    int local; /* from this very process */
    uint8_t head[80];
};

struct co_group {
    char name[RG_CORE_NAME_MAX];
    rg_coord_t *core;
    size_t core_size;
    uint32_t conns;
    uint64_t empty_ns; /* since when nobody belongs to it; 0: somebody does */
    int ended;         /* its core reported a broken invariant */
};

struct co_conn {
    uv_poll_t poll;
    rg_coordinator_t *co;
    int fd;
    int opening;   /* with TLS: it has not proved yet that it may be here */
    rg_tls_t *tls; /* NULL: plain, or its first message has not come yet */
    uint64_t id;
    struct co_group *group; /* NULL: a stranger, a status client, or given up */
    uint8_t *in, *out;
    size_t in_len, in_cap, out_off, out_len, out_cap;
    int closing;                 /* nothing is read any more; closed when `out` is sent */
    int doomed, closed;          /* on the list of connections to close; uv_close() was called */
    uint64_t expires_ns;         /* while on the expiring list */
    struct co_conn *prev, *next; /* expiring list, oldest first */
    struct co_conn *doomed_next;
};

struct rg_coordinator {
    uint32_t forks; /* of this process when it was started, see rg_os_forks() */
    uv_loop_t loop;
    uv_poll_t listener[2]; /* one for each address family */
    uv_timer_t timer;
    uv_async_t wake, door; /* to stop; guests, and news of the coordinator that this one stands by for */
    pthread_t thread;
    pthread_mutex_t door_lock; /* for the next two */
    struct co_guest *guests;
    int standby_for_it; /* the other one serves, so this one does not */
    rg_watch_t *watch;
    int succession, hosted, stands_by; /* stands_by: as the loop last heard of standby_for_it */
    uint64_t found_at_ns;              /* no group is founded before */
    uint64_t takeover_ns, heartbeat_ns, reconnect_ns;
    int listen_fd[2], stopping;
    uint32_t n_listen, n_polled;
    uint64_t resume_ns; /* accepting is paused until then; 0: it is not */
    char address[96];
    rg_log_t log;
    rg_tls_ctx_t *tls;  /* NULL: without TLS */
    uint64_t log_at;    /* when the next line about a stranger may be logged, */
    uint32_t log_muted; /* and how many were not */
    uint32_t max_members, max_groups;
    uint64_t owner, sequence, host;
    char office_group[RG_CORE_NAME_MAX], standby[256]; /* an office: what it is for; a standby: for whom */
    uint64_t office_id;
    struct co_group **groups;
    uint32_t n_groups;
    struct co_conn **slots;
    uint32_t next_slot, n_conns;
    struct co_conn *first, *last; /* expiring */
    uint32_t n_expiring;
    struct co_conn *doomed;
};

/* ---- Connections ----------------------------------------------------------------------------------------------- */

static void co_expiring_add(rg_coordinator_t *co, struct co_conn *c) {
    c->expires_ns = rg_os_now_ns() + CO_FIRST_FRAME_NS;
    c->prev = co->last;
    c->next = NULL;
    if (co->last) co->last->next = c;
    else co->first = c;
    co->last = c;
    co->n_expiring++;
}

static void co_expiring_remove(rg_coordinator_t *co, struct co_conn *c) {
    if (!c->expires_ns) return;
    if (c->prev) c->prev->next = c->next;
    else co->first = c->next;
    if (c->next) c->next->prev = c->prev;
    else co->last = c->prev;
    c->prev = c->next = NULL;
    c->expires_ns = 0;
    co->n_expiring--;
}

/* Closing is put off until the present event has been dealt with: a core that is handing out actions must not be
 * entered again. */
static void co_doom(struct co_conn *c) {
    if (c->doomed) return;
    c->doomed = 1;
    c->doomed_next = c->co->doomed;
    c->co->doomed = c;
}

static void co_conn_freed(uv_handle_t *h) {
    struct co_conn *c = h->data;
    rg_tls_free(c->tls);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

static void co_conn_close(struct co_conn *c) {
    if (c->closed) return;
    c->closed = 1;
    co_expiring_remove(c->co, c);
    c->co->slots[c->id & (CO_SLOTS - 1)] = NULL;
    c->co->n_conns--;
    uv_poll_stop(&c->poll);
    uv_close((uv_handle_t *)&c->poll, co_conn_freed);
}

static void co_on_conn(uv_poll_t *h, int status, int events);

static void co_watch(struct co_conn *c) {
    int events = (c->closing ? UV_DISCONNECT : UV_READABLE) |
                 (c->out_len > c->out_off || rg_net_unsent(c->tls) ? UV_WRITABLE : 0);
    if (uv_poll_start(&c->poll, events, co_on_conn)) co_doom(c);
}

static void co_flush(struct co_conn *c) {
    if (c->tls && rg_tls_flush(c->tls) < 0) co_doom(c);
    while (!c->doomed && c->out_off < c->out_len) {
        ssize_t n = rg_net_send(c->fd, c->tls, c->out + c->out_off, c->out_len - c->out_off);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || rg_os_shortage(errno))) break;
        if (n <= 0) {
            co_doom(c);
            return;
        }
        c->out_off += (size_t)n;
    }
    if (c->out_off == c->out_len) {
        c->out_off = c->out_len = 0;
        if (c->closing && !rg_net_unsent(c->tls)) co_doom(c);
    }
    if (!c->doomed) co_watch(c);
}

static void co_send(struct co_conn *c, const uint8_t *bytes, size_t len, size_t queue_max) {
    uint8_t head[4] = { (uint8_t)len, (uint8_t)(len >> 8), (uint8_t)(len >> 16), (uint8_t)(len >> 24) };
    if (c->doomed || c->closing) return;
    if (c->out_off) {
        memmove(c->out, c->out + c->out_off, c->out_len - c->out_off);
        c->out_len -= c->out_off;
        c->out_off = 0;
    }
    size_t need = c->out_len + 4 + len;
    if (need > queue_max) {
        RG_LOGF(&c->co->log, RG_LOG_WARN, "coordinator: a member of group %s does not read (%zu bytes unsent): closed",
                c->group ? c->group->name : "?", c->out_len);
        co_doom(c);
        return;
    }
    if (need > c->out_cap) {
        uint8_t *p = realloc(c->out, need < 1024 ? 1024 : need + need / 2);
        if (!p) {
            co_doom(c);
            return;
        }
        c->out = p;
        c->out_cap = need < 1024 ? 1024 : need + need / 2;
    }
    memcpy(c->out + c->out_len, head, 4);
    if (len) memcpy(c->out + c->out_len + 4, bytes, len);
    c->out_len = need;
    co_flush(c);
}

/* No more input; what is queued is still sent, for as long as a stranger would be given. */
static void co_finish(struct co_conn *c) {
    if (c->closing || c->doomed) return;
    c->closing = 1;
    co_expiring_remove(c->co, c);
    co_expiring_add(c->co, c);
    co_flush(c);
}

static struct co_conn *co_find(rg_coordinator_t *co, uint64_t id) {
    struct co_conn *c = co->slots[id & (CO_SLOTS - 1)];
    return c && c->id == id ? c : NULL;
}

/* ---- Strangers -------------------------------------------------------------------------------------------------- */

/* Whoever knocks without end must not fill the log: a line a second (and a few at once), and how many there were
 * besides. */
static void co_log_stranger(struct co_conn *c, const char *why) {
    rg_coordinator_t *co = c->co;
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    char from[96] = "?", more[48] = "";
    uint64_t now = rg_os_now_ns();
    if (now < co->log_at) {
        co->log_muted++;
        return;
    }
    if (!getpeername(c->fd, (struct sockaddr *)&ss, &len)) rg_os_addr_text((struct sockaddr *)&ss, from, sizeof from);
    if (co->log_muted) snprintf(more, sizeof more, " (and %u more that were closed)", co->log_muted);
    co->log_muted = 0;
    co->log_at = (co->log_at + 5000000000ull > now ? co->log_at : now - 5000000000ull) + 1000000000ull;
    RG_LOGF(&co->log, RG_LOG_WARN, "coordinator: connection from %s refused: %s%s", from, why, more);
}

/* Says why in the form that every version reads without TLS, and closes. */
static void co_refuse(struct co_conn *c, rg_status_t status, const char *text) {
    uint8_t out[RG_CORE_TEXT_MAX + 32];
    size_t n = rg_wire_refusal(out, sizeof out, status, text);
    if (n) co_send(c, out, n, RG_STATUS_MAX);
    co_finish(c);
}

static void co_evict_half_open(rg_coordinator_t *co) {
    for (struct co_conn *c = co->first; c; c = c->next)
        if (c->opening && c->tls && !c->doomed) {
            co_log_stranger(c, "too many handshakes were under way, and this was the oldest");
            co_doom(c);
            return;
        }
}

/* A connection that has not proved yet that it may be here. Returns 1 when it has. */
static int co_open(struct co_conn *c) {
    rg_coordinator_t *co = c->co;
    if (!c->tls) {
        switch (rg_tls_look(c->fd)) {
        case RG_TLS_LOOK_LATER: return 0;
        case RG_TLS_LOOK_GONE: co_doom(c); return 0;
        case RG_TLS_LOOK_OTHER:
            co_log_stranger(c, "it does not speak TLS, which this coordinator asks for (RG_TLS)");
            if (recv(c->fd, c->in, c->in_cap, MSG_DONTWAIT) < 0)
                co_doom(c); /* what is unread would cut the answer off */
            co_refuse(
                c, RG_ERR_REFUSED,
                "the coordinator takes TLS connections only: set RG_TLS=on and the group's key (RG_TLS_PSK_FILE) or "
                "certificates");
            return 0;
        case RG_TLS_LOOK_HELLO: break;
        }
        if (rg_tls_half_open(co->tls) >= RG_TLS_HALF_OPEN_MAX) co_evict_half_open(co);
        c->tls = rg_tls_new(co->tls, c->fd, 1, 0);
        if (!c->tls) {
            co_log_stranger(c, "more handshakes begin than are allowed in a second, or there is no memory for them");
            co_doom(c);
            return 0;
        }
    }
    int rc = rg_tls_handshake(c->tls);
    if (rc < 0) {
        co_log_stranger(c, rg_tls_why(c->tls));
        co_doom(c);
        return 0;
    }
    if (rc) c->opening = 0;
    else co_watch(c);
    return rc;
}

/* ---- Groups ---------------------------------------------------------------------------------------------------- */

static void co_step(rg_coordinator_t *co, struct co_group *g, rg_coord_event_t *ev) {
    rg_coord_action_t a;
    if (g->ended) return;
    ev->now_ns = rg_os_now_ns();
    rg_status_t status = rg_coord_step(g->core, ev);
    while (rg_coord_next(g->core, &a)) {
        struct co_conn *c = a.type == RG_CACT_LOG ? NULL : co_find(co, a.conn);
        if (a.type == RG_CACT_LOG) RG_LOGF(&co->log, RG_LOG_INFO, "%s", a.text ? a.text : "");
        else if (c && a.type == RG_CACT_SEND) co_send(c, a.bytes, a.len, CO_QUEUE_MAX);
        else if (c && a.type == RG_CACT_CLOSE) co_finish(c);
    }
    if (status == RG_OK) return;
    struct co_conn *from = ev->type == RG_CEV_MESSAGE ? co_find(co, ev->conn) : NULL;
    RG_LOGF(&co->log, RG_LOG_WARN, "coordinator: group %s: %s", g->name, rg_strerror(status));
    if (from) co_doom(from);
    if (status == RG_ERR_BUG) g->ended = 1;
}

static void co_group_free(struct co_group *g) {
    if (!g) return;
    if (g->core) munmap(g->core, g->core_size);
    free(g);
}

/* A core has room for max_members, of which it mostly uses little: pages that nobody touches must cost nothing, also
 * when the memory was another group's before, which calloc() does not promise. */
static int co_group_memory(rg_coordinator_t *co, struct co_group *g) {
    g->core_size = rg_coord_size(co->max_members);
    void *p = mmap(NULL, g->core_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return -1;
    g->core = p;
    return 0;
}

/* An office is for one group. */
static int co_is_for(const rg_coordinator_t *co, const char *name) {
    return !co->hosted || strcmp(name, co->office_group) == 0;
}

/* Who forgets a group must never again be the coordinator that voted on its views: each has an id of its own. */
static rg_status_t co_group_id(const rg_coordinator_t *co, uint64_t *id) {
    if (!co->succession) *id = co->owner;
    if (co->hosted) *id = co->office_id;
    if (!co->succession || co->hosted) return RG_OK;
    rg_status_t st = rg_os_random(id, sizeof *id);
    *id = (*id | RG_OFFICE_STANDALONE) & ~0xffffull;
    return st;
}

/* The group of that name, made when it is new. NULL: no room or no memory, the connection is closed. */
static struct co_group *co_group_get(rg_coordinator_t *co, const char *name) {
    rg_coord_params_t p = { .max_members = co->max_members,
                            .heartbeat_ns = co->heartbeat_ns,
                            .mode = co->succession ? RG_MODE_SUCCESSION : RG_MODE_AUTHORITY,
                            .hosted = (uint32_t)co->hosted,
                            .takeover_ns = co->takeover_ns,
                            .reconnect_ns = co->reconnect_ns,
                            .found_at_ns = co->found_at_ns,
                            .host = co->host,
                            .pid = (uint32_t)getpid() };
    struct co_group *g;
    for (uint32_t i = 0; i < co->n_groups; i++)
        if (!strcmp(co->groups[i]->name, name) && !co->groups[i]->ended) return co->groups[i];
    if (co->n_groups == co->max_groups) {
        RG_LOGF(&co->log, RG_LOG_WARN, "coordinator: group %s refused: there are %u groups already (RG_MAX_GROUPS)",
                name, co->max_groups);
        return NULL;
    }
    g = calloc(1, sizeof *g);
    if (!g) return NULL;
    snprintf(g->name, sizeof g->name, "%s", name);
    memcpy(p.group, g->name, sizeof p.group);
    if (co_group_memory(co, g) || co_group_id(co, &p.id) || rg_os_random(p.nonce, sizeof p.nonce) ||
        rg_coord_init(g->core, &p)) {
        co_group_free(g);
        return NULL;
    }
    co->groups[co->n_groups++] = g;
    RG_LOGF(&co->log, RG_LOG_DEBUG, "group %s: created", name);
    return g;
}

static void co_cut_off(rg_coordinator_t *co, struct co_group *g) {
    for (uint32_t s = 0; g->conns && s < co->next_slot; s++) {
        struct co_conn *c = co->slots[s];
        if (!c || c->group != g) continue;
        c->group = NULL;
        g->conns--;
        co_finish(c);
    }
}

/* With succession those who come first are asked what they belong to, and are no members here until they have said. */
static int co_is_empty(const rg_coordinator_t *co, struct co_group *g) {
    if (g->ended) return 1;
    if (co->hosted) return 0;
    if (rg_coord_population(g->core)) {
        g->empty_ns = 0;
        return 0;
    }
    uint64_t now = rg_os_now_ns();
    if (!g->empty_ns) g->empty_ns = now;
    return !co->succession || !g->conns || now - g->empty_ns >= CO_FIRST_FRAME_NS;
}

/* A group that nobody belongs to is forgotten with whatever connections it still has. */
static void co_forget_empty(rg_coordinator_t *co) {
    for (uint32_t i = 0; i < co->n_groups;) {
        struct co_group *g = co->groups[i];
        if (!co_is_empty(co, g)) {
            i++;
            continue;
        }
        co_cut_off(co, g);
        RG_LOGF(&co->log, RG_LOG_DEBUG, "group %s: %s", g->name, g->ended ? "given up" : "forgotten");
        co_group_free(g);
        co->groups[i] = co->groups[--co->n_groups];
    }
}

/* Ends every event: closes what must be closed, tells the cores, forgets groups, sets the timer. */
static void co_on_timer(uv_timer_t *t);
static void co_settle(rg_coordinator_t *co) {
    uint64_t next = UINT64_MAX, now;
    do {
        while (co->doomed) {
            struct co_conn *c = co->doomed;
            struct co_group *g = c->group;
            rg_coord_event_t ev = { .type = RG_CEV_CLOSED, .conn = c->id };
            co->doomed = c->doomed_next;
            c->group = NULL;
            co_conn_close(c);
            if (!g) continue;
            g->conns--;
            co_step(co, g, &ev);
        }
        co_forget_empty(co);
    } while (co->doomed);
    if (co->stopping) return;
    if (co->first) next = co->first->expires_ns;
    if (co->resume_ns && co->resume_ns < next) next = co->resume_ns;
    for (uint32_t i = 0; i < co->n_groups; i++) {
        const struct co_group *g = co->groups[i];
        uint64_t d = rg_coord_deadline(g->core), e = g->empty_ns ? g->empty_ns + CO_FIRST_FRAME_NS : UINT64_MAX;
        if (d < next) next = d;
        if (e < next) next = e;
    }
    uv_timer_stop(&co->timer);
    if (next == UINT64_MAX) return;
    now = rg_os_now_ns();
    uv_update_time(&co->loop);
    uv_timer_start(&co->timer, co_on_timer, next > now ? (next - now + 999999) / 1000000 : 0, 0);
}

/* ---- The roll -------------------------------------------------------------------------------------------------- */

/* Where a connection comes from, for the roll: 0 when it is gone. */
static int co_address_of(void *arg, uint64_t conn, char *out, size_t cap) {
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    struct co_conn *c = co_find(arg, conn);
    if (!c) return 0;
    memset(&ss, 0, sizeof ss);
    if (getpeername(c->fd, (struct sockaddr *)&ss, &len)) return 1;
    if (ss.ss_family == AF_UNIX) snprintf(out, cap, "this process");
    else rg_os_addr_text((struct sockaddr *)&ss, out, cap);
    return 1;
}

static void co_answer_status(struct co_conn *c) {
    rg_coordinator_t *co = c->co;
    json_t *groups = json_array(), *all;
    for (uint32_t i = 0; i < co->n_groups; i++) {
        const struct co_group *g = co->groups[i];
        if (!g->ended) json_array_append_new(groups, rg_roll_json(g->core, g->name, co_address_of, co));
    }
    all = json_pack("{s:s s:s s:I s:I s:I s:b s:s s:b s:o}", "address", co->address, "version", rg_version(),
                    "heartbeat_ms", (json_int_t)(co->heartbeat_ns / 1000000), "takeover_ms",
                    (json_int_t)(co->takeover_ns / 1000000), "connections", (json_int_t)co->n_conns, "serves",
                    !co->stands_by, "standby_for", co->standby, "hosted", co->hosted, "groups", groups);
    char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    if (text) co_send(c, (const uint8_t *)text, strlen(text), RG_STATUS_MAX);
    co_finish(c);
    free(text);
    json_decref(all);
}

/* ---- Input ----------------------------------------------------------------------------------------------------- */

/* Who asks for one group too many is told so; without an answer it would dial until its time-out. */
static void co_refuse_group(struct co_conn *c) {
    char text[RG_CORE_TEXT_MAX];
    snprintf(text, sizeof text, "the coordinator has %u groups already; raise its RG_MAX_GROUPS", c->co->n_groups);
    co_refuse(c, RG_ERR_RESOURCE, text);
}

static uint8_t co_serves(const rg_coordinator_t *co, const uint8_t *nonce, size_t len) {
    for (uint32_t i = 0; len > 16 && i < co->n_groups; i++) {
        const struct co_group *g = co->groups[i];
        int named = strlen(g->name) == len - 16 && !memcmp(g->name, nonce + 16, len - 16);
        if (named && !g->ended && rg_coord_other_group(g->core, nonce)) return RG_SERVES_OTHER;
    }
    return co->hosted ? RG_SERVES_HOSTED : co->stands_by ? RG_SERVES_NOT : RG_SERVES_ALONE;
}

static void co_first_frame(struct co_conn *c, const uint8_t *bytes, size_t len) {
    char name[RG_CORE_NAME_MAX];
    if (len >= 8 && !memcmp(bytes, RG_STATUS_WORD, 8)) {
        co_answer_status(c);
        return;
    }
    if (len >= 8 && !memcmp(bytes, RG_SERVES_WORD, 8)) {
        uint8_t answer = co_serves(c->co, bytes + 8, len - 8);
        co_send(c, &answer, 1, RG_STATUS_MAX);
        co_finish(c);
        return;
    }
    int known = rg_wire_peek_group(bytes, len, name) && !c->co->stands_by && co_is_for(c->co, name);
    struct co_group *g = known ? co_group_get(c->co, name) : NULL;
    if (known && !g && c->co->n_groups == c->co->max_groups) {
        co_refuse_group(c);
        return;
    }
    if (!g || g->conns >= 2 * c->co->max_members + 16) {
        co_doom(c);
        return;
    }
    c->group = g;
    g->conns++;
    co_expiring_remove(c->co, c);
}

/* Takes whole frames off the input. Returns 0 when the connection is not to be read any more. */
static int co_frames(struct co_conn *c) {
    size_t at = 0;
    while (c->in_len - at >= 4) {
        const uint8_t *h = c->in + at;
        size_t len = h[0] | (size_t)h[1] << 8 | (size_t)h[2] << 16 | (size_t)h[3] << 24;
        if (!c->group && !c->tls && rg_tls_is_hello(h, 4)) {
            co_log_stranger(c, "it speaks TLS, which this coordinator runs without (RG_TLS)");
            co_refuse(c, RG_ERR_REFUSED, "the coordinator runs without TLS");
            return 0;
        }
        if (!len || len > (c->group ? RG_CORE_MAX_MESSAGE : CO_FIRST_FRAME_MAX)) {
            co_doom(c);
            return 0;
        }
        if (c->in_len - at < 4 + len) {
            if (4 + len > c->in_cap) {
                uint8_t *p = realloc(c->in, 4 + len);
                if (!p) {
                    co_doom(c);
                    return 0;
                }
                c->in = p;
                c->in_cap = 4 + len;
            }
            break;
        }
        if (!c->group) co_first_frame(c, h + 4, len);
        if (c->group && !c->doomed && !c->closing) {
            rg_coord_event_t ev = { .type = RG_CEV_MESSAGE, .conn = c->id, .bytes = h + 4, .len = len };
            co_step(c->co, c->group, &ev);
        }
        if (c->doomed || c->closing) return 0;
        at += 4 + len;
    }
    if (at) memmove(c->in, c->in + at, c->in_len - at);
    c->in_len -= at;
    return 1;
}

static void co_read(struct co_conn *c) {
    /* Others want their turn too; but what TLS holds back wakes nobody. */
    for (int turn = 0; turn < 8 || (c->tls && rg_tls_more(c->tls)); turn++) {
        ssize_t n = rg_net_recv(c->fd, c->tls, c->in + c->in_len, c->in_cap - c->in_len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            if (c->tls && !c->group && *rg_tls_why(c->tls)) co_log_stranger(c, rg_tls_why(c->tls));
            co_doom(c);
            return;
        }
        c->in_len += (size_t)n;
        if (!co_frames(c)) return;
    }
}

static void co_on_conn(uv_poll_t *h, int status, int events) {
    struct co_conn *c = h->data;
    rg_coordinator_t *co = c->co;
    if (c->closed) return;
    if (status < 0) {
        if (c->opening && c->tls && !c->doomed) co_open(c); /* it broke off, and may have said why */
        co_doom(c);
    }
    if (!c->doomed && (events & UV_WRITABLE)) co_flush(c);
    if (!c->doomed && !c->closing && (events & UV_READABLE) && (!c->opening || co_open(c))) co_read(c);
    if (!c->doomed && c->closing && (events & UV_DISCONNECT)) co_doom(c);
    co_settle(co);
}

/* ---- Accepting ------------------------------------------------------------------------------------------------- */

static int co_slot(rg_coordinator_t *co) {
    for (uint32_t s = 0; s < co->next_slot; s++)
        if (!co->slots[s]) return (int)s;
    return co->next_slot < CO_SLOTS ? (int)co->next_slot++ : -1;
}

static struct co_conn *co_accepted(rg_coordinator_t *co, int fd) {
    int on = 1, slot = co_slot(co);
    struct co_conn *c = slot < 0 ? NULL : calloc(1, sizeof *c);
    if (c) c->in = malloc(CO_FIRST_FRAME_MAX + 4);
    if (!c || !c->in || uv_poll_init(&co->loop, &c->poll, fd)) {
        if (c) free(c->in);
        free(c);
        close(fd);
        return NULL;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    c->poll.data = c;
    c->co = co;
    c->fd = fd;
    c->opening = co->tls != NULL;
    c->in_cap = CO_FIRST_FRAME_MAX + 4;
    c->id = ++co->sequence << 16 | (uint32_t)slot;
    co->slots[slot] = c;
    co->n_conns++;
    if (co->n_expiring >= CO_STRANGERS) co_doom(co->first);
    co_expiring_add(co, c);
    co_watch(c);
    return c;
}

static void co_on_listener(uv_poll_t *h, int status, int events) {
    rg_coordinator_t *co = h->data;
    int listen_fd = co->listen_fd[h - co->listener];
    (void)status;
    (void)events;
    for (int i = 0; i < CO_ACCEPT_BATCH; i++) {
        int fd = rg_os_high(accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd >= 0) {
            co_accepted(co, fd);
            co_settle(co);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        /* No descriptors or memory: the connection stays in the kernel's queue and the listener readable, so
         * looking again at once would spin. */
        RG_LOGF(&co->log, RG_LOG_WARN, "coordinator: accept: %s; pausing", strerror(errno));
        if (co->first) co_doom(co->first);
        for (uint32_t k = 0; k < co->n_polled; k++) uv_poll_stop(&co->listener[k]);
        co->resume_ns = rg_os_now_ns() + CO_ACCEPT_PAUSE_NS;
        break;
    }
    co_settle(co);
}

static void co_on_timer(uv_timer_t *t) {
    rg_coordinator_t *co = t->data;
    uint64_t now = rg_os_now_ns();
    for (struct co_conn *c = co->first; c && c->expires_ns <= now; c = c->next) co_doom(c);
    if (co->resume_ns && co->resume_ns <= now) {
        co->resume_ns = 0;
        for (uint32_t k = 0; k < co->n_polled; k++) uv_poll_start(&co->listener[k], UV_READABLE, co_on_listener);
    }
    for (uint32_t i = 0; i < co->n_groups; i++) {
        rg_coord_event_t ev = { .type = RG_CEV_TICK };
        if (rg_coord_deadline(co->groups[i]->core) <= now) co_step(co, co->groups[i], &ev);
    }
    co_settle(co);
}

/* ---- Guests, and standing by ------------------------------------------------------------------------------------ */

void rg_office_admit(rg_coordinator_t *co, int fd, const uint8_t *head, uint32_t len, int local) {
    struct co_guest *g = len <= sizeof g->head ? calloc(1, sizeof *g) : NULL;
    if (!g) {
        close(fd);
        return;
    }
    g->fd = fd;
    g->len = len;
    g->local = local;
    if (len) memcpy(g->head, head, len);
    pthread_mutex_lock(&co->door_lock);
    struct co_guest **at = &co->guests;
    while (*at) at = &(*at)->next;
    *at = g;
    uv_async_send(&co->door);
    pthread_mutex_unlock(&co->door_lock);
}

static void co_guest(rg_coordinator_t *co, struct co_guest *g) {
    struct co_conn *c = co_accepted(co, g->fd);
    if (c && g->local) c->opening = 0;
    if (c && g->len) {
        memcpy(c->in, g->head, g->len);
        c->in_len = g->len;
        co_frames(c);
    }
    free(g);
    co_settle(co);
}

/* The other one serves: everybody who is here goes there. Or it does not: members that come are at home here from now
 * on; a new group is founded only when those of a running one have had the time to come. */
static void co_stand_by(rg_coordinator_t *co, int by) {
    if (by == co->stands_by) return;
    co->stands_by = by;
    RG_LOGF(&co->log, RG_LOG_INFO,
            by ? "coordinator: %s serves: standing by" : "coordinator: %s does not answer: serving", co->standby);
    if (!by) co->found_at_ns = rg_os_now_ns() + co->heartbeat_ns;
    for (uint32_t i = 0; by && i < co->n_groups; i++) {
        co_cut_off(co, co->groups[i]);
        co->groups[i]->ended = 1;
    }
}

static void co_on_door(uv_async_t *d) {
    rg_coordinator_t *co = d->data;
    if (co->stopping) return;
    pthread_mutex_lock(&co->door_lock);
    struct co_guest *g = co->guests;
    int by = co->standby_for_it;
    co->guests = NULL;
    pthread_mutex_unlock(&co->door_lock);
    co_stand_by(co, by);
    while (g) {
        struct co_guest *next = g->next;
        co_guest(co, g);
        g = next;
    }
    co_settle(co);
}

static void co_watched(void *arg, int serves) {
    rg_coordinator_t *co = arg;
    pthread_mutex_lock(&co->door_lock);
    co->standby_for_it = serves;
    uv_async_send(&co->door);
    pthread_mutex_unlock(&co->door_lock);
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

static void co_on_wake(uv_async_t *w) {
    rg_coordinator_t *co = w->data;
    if (co->stopping) return;
    co->stopping = 1;
    for (uint32_t s = 0; s < co->next_slot; s++)
        if (co->slots[s]) co_conn_close(co->slots[s]);
    co->doomed = NULL;
    for (uint32_t k = 0; k < co->n_polled; k++) {
        uv_poll_stop(&co->listener[k]);
        uv_close((uv_handle_t *)&co->listener[k], NULL);
    }
    uv_timer_stop(&co->timer);
    uv_close((uv_handle_t *)&co->timer, NULL);
    uv_close((uv_handle_t *)&co->wake, NULL);
    uv_close((uv_handle_t *)&co->door, NULL);
}

static void *co_main(void *arg) {
    rg_coordinator_t *co = arg;
    uv_run(&co->loop, UV_RUN_DEFAULT);
    return NULL;
}

static void co_free(rg_coordinator_t *co) {
    for (uint32_t k = 0; k < co->n_listen; k++) close(co->listen_fd[k]);
    for (uint32_t i = 0; co->groups && i < co->n_groups; i++) co_group_free(co->groups[i]);
    rg_tls_close(co->tls);
    while (co->guests) {
        struct co_guest *g = co->guests;
        co->guests = g->next;
        close(g->fd);
        free(g);
    }
    pthread_mutex_destroy(&co->door_lock);
    free(co->groups);
    free(co->slots);
    free(co);
}

static in_port_t *co_port(struct sockaddr_storage *ss) {
    return ss->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)ss)->sin6_port : &((struct sockaddr_in *)ss)->sin_port;
}

static rg_status_t co_listen_one(rg_coordinator_t *co, struct sockaddr_storage *at, struct sockaddr_storage *bound,
                                 rg_error_t *err) {
    socklen_t len = at->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int fd = rg_os_listen((struct sockaddr *)at, len, bound, err);
    if (fd < 0) return (rg_status_t)fd;
    co->listen_fd[co->n_listen++] = fd;
    return RG_OK;
}

/* A host, also by a name that has several addresses, means the first of them that can be had; no host (":7000") means
 * every address of each family that this machine has, on one port. */
static rg_status_t co_listen(rg_coordinator_t *co, const char *text, rg_error_t *err) {
    struct sockaddr_storage addrs[8], bound, second;
    int n = rg_os_resolve(text, addrs, 8, err), every = text[0] == ':';
    if (n < 0) return (rg_status_t)n;
    rg_status_t status = RG_ERR_INVALID; /* there is at least one address, which says better why it cannot be had */
    for (int i = 0; i < n && !co->n_listen; i++) {
        in_port_t asked = *co_port(&addrs[i]);
        rg_error_t first = { 0 };
        status = co_listen_one(co, &addrs[i], &bound, &first);
        if (status && err) *err = first;
        if (status && every && first.sys_errno == EADDRINUSE) break;
        for (int k = i + 1, tries = 0; !status && every && k < n && co->n_listen < 2; k++) {
            rg_error_t why = { 0 };
            if (addrs[k].ss_family == addrs[i].ss_family) continue;
            *co_port(&addrs[k]) = *co_port(&bound);
            status = co_listen_one(co, &addrs[k], &second, &why);
            if (!status) break;
            if (why.sys_errno != EADDRINUSE) { /* the machine does not have this family */
                status = RG_OK;
            } else if (!asked && ++tries < 16) { /* the port that the kernel chose is taken there: another one */
                close(co->listen_fd[--co->n_listen]);
                status = co_listen_one(co, &addrs[i], &bound, err);
                k = i;
            } else if (err) *err = why;
        }
    }
    if (!status) rg_os_addr_text((struct sockaddr *)&bound, co->address, sizeof co->address);
    return status;
}

static rg_status_t co_run(rg_coordinator_t *co, rg_error_t *err) {
    int held = rg_os_hold_stdio(), rc = uv_loop_init(&co->loop); /* libuv ends the process over a descriptor below 3 */
    rg_os_free_stdio(held);
    if (rc) return rg_fail(err, RG_ERR_SYSTEM, -rc, "coordinator: event loop: %s", uv_strerror(rc));
    uv_async_init(&co->loop, &co->wake, co_on_wake);
    uv_async_init(&co->loop, &co->door, co_on_door);
    uv_timer_init(&co->loop, &co->timer);
    co->wake.data = co->door.data = co->timer.data = co;
    for (uint32_t k = 0; !rc && k < co->n_listen; k++) {
        rc = uv_poll_init(&co->loop, &co->listener[k], co->listen_fd[k]);
        if (rc) break;
        co->n_polled++;
        co->listener[k].data = co;
        rc = uv_poll_start(&co->listener[k], UV_READABLE, co_on_listener);
    }
    if (!rc) rc = -rg_os_thread(&co->thread, co_main, co);
    if (!rc) return RG_OK;
    co_on_wake(&co->wake);
    uv_run(&co->loop, UV_RUN_DEFAULT);
    uv_loop_close(&co->loop);
    return rg_fail(err, RG_ERR_SYSTEM, -rc, "coordinator: cannot start its thread: %s", strerror(-rc));
}

/* What somebody who starts it had better know. */
static void co_log_security(rg_coordinator_t *co) {
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    int inward = 1;
    for (uint32_t k = 0; k < co->n_listen; k++)
        if (!getsockname(co->listen_fd[k], (struct sockaddr *)&ss, &len))
            inward &= rg_os_is_loopback((struct sockaddr *)&ss);
    if (*rg_tls_warning(co->tls)) RG_LOGF(&co->log, RG_LOG_WARN, "coordinator: %s", rg_tls_warning(co->tls));
    if (!co->tls && !inward)
        RG_LOGF(
            &co->log, RG_LOG_WARN,
            "coordinator: %s can be reached from other hosts and RG_TLS is off: whoever reaches it can join, and all "
            "traffic is readable",
            co->address);
}

static rg_coordinator_t *co_new(uint32_t max_groups, rg_error_t *err) {
    rg_coordinator_t *co = calloc(1, sizeof *co);
    if (co) {
        co->forks = rg_os_forks();
        co->max_groups = max_groups;
        co->groups = calloc(max_groups, sizeof(struct co_group *));
        co->slots = calloc(CO_SLOTS, sizeof(struct co_conn *));
        pthread_mutex_init(&co->door_lock, NULL);
    }
    if (co && co->groups && co->slots) return co;
    if (co) co_free(co);
    rg_fail(err, RG_ERR_NOMEM, 0, "coordinator: out of memory");
    return NULL;
}

/* Begins as one that stands by: the other one has a heartbeat to show itself. */
static rg_status_t co_stand_by_for(rg_coordinator_t *co, const rg_coordinator_config_t *c, rg_error_t *err) {
    struct sockaddr_storage addrs[8];
    rg_tls_ctx_t *tls; /* not that of the coordinator's thread, which runs */
    int n = rg_os_resolve_list(c->standby, addrs, 8, err);
    if (n < 0) return (rg_status_t)n;
    rg_status_t status = rg_tls_open(&RG_TLS_FILES(c), &tls, err);
    if (status) return status;
    const uint64_t beat = co->heartbeat_ns;
    const rg_watch_config_t w = {
        .addrs = addrs, .n = n, .tls = tls, .every_ns = beat / 8, .patience_ns = beat, .tell = co_watched, .arg = co
    };
    status = rg_watch_start(&w, &co->watch, err);
    rg_tls_close(tls);
    return status;
}

/* Nobody can know a port that the kernel has just chosen. At one that was named there may have been a coordinator
 * before, whose members are on their way. */
static uint64_t co_may_found(const rg_coordinator_t *co, const char *listen) {
    const char *colon = strrchr(listen, ':');
    return colon && strtoul(colon + 1, NULL, 10) ? rg_os_now_ns() + co->heartbeat_ns : 0;
}

static rg_status_t co_set_up(rg_coordinator_t *co, const rg_coordinator_config_t *c, rg_error_t *err) {
    co->max_members = c->max_members;
    co->heartbeat_ns = c->heartbeat_ms * 1000000ull;
    co->reconnect_ns = c->reconnect_ms * 1000000ull;
    co->takeover_ns = c->takeover_ms ? c->takeover_ms * 1000000ull : 2 * co->heartbeat_ns;
    co->succession = c->succession == RG_ON;
    co->host = rg_os_host(getenv("RG_HOST"));
    co->found_at_ns = co_may_found(co, c->listen);
    rg_status_t status = rg_log_init(&co->log, c->log_level, c->log_fn, c->log_user, err);
    if (status) return status;
    if (c->standby && !co->succession)
        return rg_fail(err, RG_ERR_INVALID, 0, "coordinator: a standby needs succession: set RG_SUCCESSION=on");
    if ((status = rg_os_random(&co->owner, sizeof co->owner)))
        return rg_fail(err, status, errno, "coordinator: no random numbers: %s", strerror(errno));
    if ((status = rg_tls_open(&RG_TLS_FILES(c), &co->tls, err))) return status;
    if ((status = co_listen(co, c->listen, err))) return status;
    co_log_security(co);
    return RG_OK;
}

rg_status_t rg_coordinator_start(const rg_coordinator_config_t *config, rg_coordinator_t **out, rg_error_t *err) {
    RG_OS_STAY;
    rg_coordinator_config_t c;
    char *strings;
    if (!out) return rg_fail(err, RG_ERR_INVALID, 0, "rg_coordinator_start: out is NULL");
    *out = NULL;
    rg_status_t status = rg_coordinator_config_resolve(config, &c, &strings, err);
    if (status) return status;
    rg_coordinator_t *co = co_new(c.max_groups, err);
    status = co ? co_set_up(co, &c, err) : RG_ERR_NOMEM;
    if (!status) {
        co->stands_by = co->standby_for_it = c.standby != NULL;
        snprintf(co->standby, sizeof co->standby, "%s", c.standby ? c.standby : "");
        status = co_run(co, err);
    }
    if (status) {
        if (co) co_free(co);
    } else if (c.standby && (status = co_stand_by_for(co, &c, err))) {
        rg_coordinator_stop(co);
    }
    rg_config_free(strings);
    if (!status) *out = co;
    return status;
}

rg_status_t rg_office_start(const rg_office_config_t *config, rg_coordinator_t **out, rg_error_t *err) {
    *out = NULL;
    rg_coordinator_t *co = co_new(1, err);
    if (!co) return RG_ERR_NOMEM;
    co->hosted = co->succession = 1;
    co->office_id = config->id;
    co->max_members = config->max_members;
    co->heartbeat_ns = config->heartbeat_ns;
    co->takeover_ns = config->takeover_ns;
    co->reconnect_ns = config->reconnect_ns;
    co->log = config->log;
    snprintf(co->office_group, sizeof co->office_group, "%s", config->group);
    snprintf(co->address, sizeof co->address, "%s", config->where);
    rg_status_t status = rg_tls_copy(config->tls, &co->tls, err);
    if (!status) status = co_run(co, err);
    if (status) co_free(co);
    else *out = co;
    return status;
}

const char *rg_coordinator_address(const rg_coordinator_t *coordinator) {
    return coordinator ? coordinator->address : "";
}

void rg_coordinator_stop(rg_coordinator_t *co) {
    RG_OS_STAY;
    if (!co || co->forks != rg_os_forks()) return; /* a forked child has neither its thread nor its sockets */
    rg_watch_stop(co->watch);
    uv_async_send(&co->wake);
    pthread_join(co->thread, NULL);
    uv_loop_close(&co->loop);
    co_free(co);
}
