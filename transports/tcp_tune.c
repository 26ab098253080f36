/* tcp_tune.c: congestion control, pacing and socket buffers of a connection, chosen by what the kernel measured on it.
 * A short connection begins with reno, a long one with what the system prefers. Between hosts that are near each other
 * both carry some megabytes of real traffic in turn, and the quicker one stays; nothing is sent for the sake of
 * measuring. A long one is paced, and its buffer follows the product of bandwidth and delay. Relies on TCP_INFO: bytes
 * acknowledged over the time in which the connection was busy and not held up by the other side's window. Must not
 * choose the congestion control where the owner named it. */
#include "tcp_internal.h"

#include <linux/tcp.h>
#include <string.h>

#define SAMPLE (32ull << 20) /* payload bytes that a trial carries */
#define TRIALS 6u            /* three of each, in turn; the best of each counts, for outside work only slows down */
#define AGAIN_FACTOR 512u    /* so many samples the winner runs before it is tried against the other again */
#define BETTER 1.15          /* the system's has to be this much quicker: measurements scatter */
#define SAME_HOST_RTT_US                                                                                               \
    50u                   /* below it nothing is measured: within a host the work of the processors decides, and       \
                           * samples of it scatter more than the candidates differ (docs/performance.md) */
#define LONG_RTT_US 5000u /* from here on losses and queues matter more than a trial shows */
#define LONG_SAMPLE (2ull << 20) /* between two looks at a long connection: its buffer has to keep up with its rate */
#define FIRST_SAMPLE (64u << 10) /* until a round trip has been timed */
#define LONG_FRAME (64u << 10)   /* of several long rails: what one of them has taken waits for that one */
#define BUFFER_MOST (64u << 20)
#define BUFFER_ENOUGH (2u << 20) /* the kernel's own sizing reaches this, of payload */
#define NO_RATE (1ull << 62)     /* paced, but as fast as the congestion control wants */

static int take_sample(int fd, tune_sample_t *s) {
    struct tcp_info ti;
    socklen_t len = sizeof ti;
    memset(&ti, 0, sizeof ti);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) != 0 || ti.tcpi_busy_time < ti.tcpi_rwnd_limited) return 0;
    s->acked = ti.tcpi_bytes_acked;
    s->busy_us = ti.tcpi_busy_time - ti.tcpi_rwnd_limited;
    s->min_rtt_us = ti.tcpi_min_rtt;
    return 1;
}

static int use(conn_t *c, const char *name) {
    return setsockopt(c->fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

/* What a long fat link keeps under way has to fit the buffers, beyond what the kernel does by itself. A buffer that is
 * too small holds the rate down to what it can carry, so twice what was seen is asked for, again and again. */
static void size_buffers(conn_t *c, double bytes_per_us, uint32_t rtt_us) {
    double bdp = 2 * bytes_per_us * rtt_us;
    if (c->tp->conf.socket_buffer_bytes || c->tune.buffer >= bdp || bdp <= BUFFER_ENOUGH) return;
    int bytes = bdp > BUFFER_MOST ? (int)BUFFER_MOST : (int)bdp, has = 0;
    socklen_t len = sizeof has;
    if (getsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &has, &len) == 0 && has / 2 >= bytes) return;
    if (setsockopt(c->fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0) return; /* needs the privilege */
    c->tune.buffer = bytes;
}

static void begin_sample(conn_t *c, const tune_sample_t *s, uint64_t bytes) {
    c->tune.acked = s->acked;
    c->tune.busy_us = s->busy_us;
    c->tune.next_at = c->tune.sent + bytes;
}

/* The kernel paces by itself from the moment that a limit is set, whatever the congestion control. */
static void pace(conn_t *c, int far) {
    uint64_t rate = (uint64_t)c->tp->conf.max_rate_mbit * 125000u / (c->link->rails ? c->link->rails : 1);
    if (rate == 0 && !far) return;
    if (rate == 0) rate = NO_RATE;
    (void)setsockopt(c->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate); /* else it is not paced */
}

/* Rails share a message by who has room: what waits in the buffer of a slow one, the others cannot take over. */
static void share(conn_t *c) {
    int most = (int)LONG_FRAME;
    if (c->link->rails < 2) return;
    c->tune.frame = LONG_FRAME;
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most, sizeof most); /* older kernels share less evenly */
}

/* A way can become a long one: a virtual machine moves, a route changes. What a short one is given would slow it down.
 */
static void become_far(conn_t *c) {
    tune_t *t = &c->tune;
    t->far = 1;
    pace(c, 1);
    share(c);
    if (t->name[0][0] && !t->now && use(c, t->name[1])) t->now = 1;
}

void rgt_tune_begin(conn_t *c) {
    tune_t *t = &c->tune;
    socklen_t len = sizeof t->name[1] - 1;
    tune_sample_t s = { 0 };
    int again = t->untimed;
    memset(t, 0, sizeof *t);
    t->next_at = UINT64_MAX;
    int known = take_sample(c->fd, &s);
    /* Of an accepted connection whose handshake needed a second try the kernel knows no time before data, and a long
     * one may be that of a host that was busy just then: pacing cannot be taken back, so it is looked at twice. */
    t->untimed = known && (s.min_rtt_us == UINT32_MAX || (s.min_rtt_us >= LONG_RTT_US && !again));
    t->far = known && !t->untimed && s.min_rtt_us >= LONG_RTT_US;
    pace(c, t->far);
    if (t->untimed) {
        begin_sample(c, &s, FIRST_SAMPLE);
        return;
    }
    if (t->far) {
        share(c);
        begin_sample(c, &s, LONG_SAMPLE);
        return;
    }
    if (!known) return;
    begin_sample(c, &s, SAMPLE);
    if (strcmp(c->tp->congestion, "auto") != 0) return;
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_CONGESTION, t->name[1], &len) != 0) return;
    strcpy(t->name[0], "reno");
    t->same = strcmp(t->name[1], "reno") == 0;
    /* Pacing, as bbr does it, halves the speed of loopback and guards against nothing on a short link. */
    t->now = t->same || !use(c, "reno");
}

/* Called when the connection has carried tune.next_at bytes. */
void rgt_tune(conn_t *c) {
    tune_sample_t s;
    if (c->tune.untimed) rgt_tune_begin(c);
    else if (take_sample(c->fd, &s)) rgt_tune_by(c, &s);
    else c->tune.next_at = UINT64_MAX;
}

void rgt_tune_by(conn_t *c, const tune_sample_t *s) {
    tune_t *t = &c->tune;
    double rate = s->busy_us > t->busy_us ? (double)(s->acked - t->acked) / (double)(s->busy_us - t->busy_us) : 0;
    size_buffers(c, rate, s->min_rtt_us);
    if (!t->far && s->min_rtt_us >= LONG_RTT_US) become_far(c);
    if (t->far) {
        begin_sample(c, s, LONG_SAMPLE);
        return;
    }
    if (!t->name[0][0] || t->same || s->min_rtt_us < SAME_HOST_RTT_US || t->rest) {
        t->rest -= t->rest != 0;
        begin_sample(c, s, SAMPLE);
        return;
    }
    if (rate > t->rate[t->now]) t->rate[t->now] = rate;
    if (++t->trial < TRIALS) {
        if (use(c, t->name[!t->now])) t->now = !t->now;
        begin_sample(c, s, SAMPLE);
        return;
    }
    int best = t->rate[1] > t->rate[0] * BETTER;
    if (best != t->now && use(c, t->name[best])) t->now = best;
    t->trial = 0;
    t->rest = AGAIN_FACTOR;
    t->rate[0] = t->rate[1] = 0;
    begin_sample(c, s, SAMPLE);
}
