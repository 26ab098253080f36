/* progress.c: who moves the group forward. One thread at a time drives: a caller that blocks, else the group's own
 * thread. The driver polls for a while, gives way to others, then sleeps until a descriptor or a timer says that there
 * is work. A caller takes over from the thread at any time; the thread stays away as long as callers keep driving, so
 * that a tight loop of blocking calls costs no hand-over. */
#include "engine/lent.h"
#include "engine/side.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define CONTROL_EVERY_NS 50000u       /* look at the control connection at least so often while busy */
#define THREAD_STAYS_AWAY_NS 2000000u /* after a caller drove */
/* Polls without giving way for this long: when it is not known where the others run; when none is on this processor. */
#define POLITE_NS 1000u
#define ALONE_NS 20000u
#define WATCHED_LINKS 64u
#define SHARED_LOOKS 4u   /* on one processor with a peer at so many looks in a row, */
#define SHARED_NS 500000u /* and for so long */
#define MOVE_WAIT_NS 2000000u
#define MOVE_WAIT_MOST_NS 500000000u
#define CALM_NS 2000000000u /* behind the last move: then it begins anew */
#define SPIN_NS 100000u
#define SPIN_CROWDED_NS 300000u
#define COMPLETIONS 64
#define NOTES_MOST 32u       /* put off: copies that could go fill places that are wanted again */
#define ANEW_MOST 8          /* a link whose stream is lost so often, */
#define ANEW_NS 60000000000u /* each time within so long, is left to the coordinator */

/* A thread that is cancelled with the lock would keep it. */
void rg_lock(rg_group_t *g) {
    int was = rg_os_stay();
    if (pthread_mutex_trylock(&g->lock) != 0) {
        atomic_fetch_add(&g->lock_waiters, 1);
        pthread_mutex_lock(&g->lock);
        atomic_fetch_sub(&g->lock_waiters, 1);
        g->let_in++;
    }
    g->lock_cancel = was;
}

void rg_unlock(rg_group_t *g) {
    int was = g->lock_cancel;
    pthread_mutex_unlock(&g->lock);
    rg_os_may_go(&was);
}

void rg_wake(rg_group_t *g) {
    if (!g->sleeping) return;
    uint64_t one = 1;
    ssize_t n = write(g->wakefd, &one, sizeof one);
    (void)n; /* a full counter wakes as well */
}

/* Who comes back from a condition wants its mutex without a word to rg_lock(): so it is counted before. */
void rg_wake_callers(rg_group_t *g) {
    if (!g->cond_waiters) return;
    g->woken = g->cond_waiters;
    pthread_cond_broadcast(&g->cond);
}

int rg_wanted(rg_group_t *g) { return atomic_load(&g->lock_waiters) != 0 || g->woken != 0; }

void rg_wake_thread(rg_group_t *g) {
    if (!g->thread_running) return;
    pthread_mutex_lock(&g->thread_lock);
    g->thread_wanted = 1;
    pthread_cond_signal(&g->thread_cond);
    pthread_mutex_unlock(&g->thread_lock);
}

/* L9. Its stream is lost, not the peer: it is made anew under its number, so that what it relays goes on, and a round
 * lets everything else begin anew. A stream that is lost again and again has a cause that this does not mend. */
static void begin_anew(rg_group_t *g, uint32_t link, uint64_t now) {
    rg_link_t *l = &g->links[link];
    rg_error_t err = { 0 };
    if (now - l->anew_at > ANEW_NS) l->anew = 0;
    if (l->anew >= ANEW_MOST) return;
    const rg_tp_peer_t peer = rg_link_peer(g, l, g->cfg.join_timeout_ms);
    if (g->tp_ops->connect(g->tp, link, &peer, &err) != RG_OK) {
        RG_LOGF(&g->log, RG_LOG_DEBUG, "link to member %llu: not made anew: %s", (unsigned long long)l->id, err.text);
        return;
    }
    l->fresh = 1;
    l->anew++;
    l->anew_at = now;
}

/* What members said of how far they are. That lets copies go, which nobody waits for: it is told to the core in a round
 * that brings nothing else, so that it does not stand between a result and its caller. A later word replaces an earlier
 * one, and the core takes one that comes late like one that was long on its way. */
void rg_tell_notes(rg_group_t *g, uint64_t now) {
    if (g->quick.n_done && !g->quick.telling) { /* this comes first there */
        rg_quick_tell(g);
        return;
    }
    if (!g->notes_due) return;
    g->notes_due = 0;
    for (uint32_t i = 0; i < g->n_links && g->phase != RG_PHASE_OVER; i++) {
        rg_link_t *l = &g->links[i];
        if (!l->id || !l->noted) continue;
        l->noted = 0;
        rg_member_event_t ev = { .type = RG_MEV_WATERMARK, .now_ns = now, .peer = l->id, .note = l->note };
        rg_core_event(g, &ev);
    }
}

static void on_link(rg_group_t *g, const rg_completion_t *c, uint64_t now) {
    if (c->link >= g->n_links || !g->links[c->link].id) return;
    if (c->event == RG_TP_NOTE) {
        if (c->note < g->links[c->link].note) return; /* a later word has been taken (quick.c), or it is a lie */
        g->links[c->link].note = c->note;
        g->links[c->link].noted = 1;
        g->notes_due++;
        return;
    }
    rg_tell_notes(g, now);                                      /* they were said before this happened */
    if (c->link >= g->n_links || !g->links[c->link].id) return; /* no longer */
    rg_member_event_t ev = { .now_ns = now, .peer = g->links[c->link].id, .text = c->text };
    int anew = 0;
    if (c->event == RG_TP_LINK_UP) {
        int again = g->links[c->link].lost;
        g->links[c->link].up = 1;
        g->links[c->link].lost = 0;
        g->links[c->link].relayed = c->note != 0;
        ev.type = RG_MEV_LINK_UP;
        ev.via = c->note ? g->links[c->link].via : 0;
        ev.fresh = (uint32_t)g->links[c->link].fresh;
        if (again)
            RG_LOGF(&g->log, RG_LOG_INFO, "link to member %llu: back%s", (unsigned long long)ev.peer,
                    ev.via ? ", relayed" : "");
        else if (rg_netstat_up(g, c->link, now)) return; /* which says later that it is up */
        g->links[c->link].fresh = 0;
        if (g->phase == RG_PHASE_JOINING) g->errmsg[0] = 0; /* what kept it down is no reason any more */
    } else if (c->event == RG_TP_LINK_LOST) {
        g->links[c->link].lost = 1;
        ev.type = RG_MEV_LINK_DOWN;
        ev.dead = c->status == RG_TP_GONE;
        RG_LOGF(&g->log, RG_LOG_INFO, "link to member %llu: lost%s: %s", (unsigned long long)ev.peer,
                ev.dead ? ", and its process seems to be gone" : "", c->text ? c->text : "?");
    } else {
        anew = g->reconnect_ns && (g->links[c->link].up || g->links[c->link].fresh);
        g->links[c->link].up = g->links[c->link].lost = 0;
        ev.type = RG_MEV_LINK_DOWN;
        rg_netstat_down(g, c->link);
        RG_LOGF(&g->log, RG_LOG_INFO, "link to member %llu: %s", (unsigned long long)ev.peer,
                c->text ? c->text : "down");
        if (g->phase == RG_PHASE_JOINING)
            rg_group_set_errmsg(g, "link to member %llu: %s", (unsigned long long)ev.peer, c->text ? c->text : "down");
    }
    rg_core_event(g, &ev);
    if (anew && g->phase != RG_PHASE_OVER && g->links[c->link].id == ev.peer) begin_anew(g, c->link, now);
}

static int poll_transport(rg_group_t *g, uint64_t now) {
    rg_completion_t c[COMPLETIONS];
    g->polls++;
    int n = g->tp_ops->poll(g->tp, c, COMPLETIONS), other = 0;
    for (int i = 0; i < n; i++) {
        other += c[i].event != RG_TP_NOTE;
        if (c[i].event == RG_TP_LINK_UP || c[i].event == RG_TP_LINK_DOWN || c[i].event == RG_TP_LINK_LOST ||
            c[i].event == RG_TP_NOTE)
            on_link(g, &c[i], now);
        else if (!rg_netstat_completion(g, &c[i]) && !rg_side_completion(g, &c[i]) && !rg_lent_completion(g, &c[i]))
            rg_op_completion(g, &c[i]);
        if (g->phase == RG_PHASE_OVER) break;
    }
    if (g->notes_due && (!other || g->notes_due >= NOTES_MOST)) rg_tell_notes(g, now);
    if (n < COMPLETIONS) g->polls_drained = g->polls; /* what it had to report has been dealt with */
    return n;
}

/* Where there is a processor for each, the scheduler leaves two that wait for each other on one all the same: they hand
 * it to each other, and so it is never busy for two. The later of them moves, once that has lasted; less and less often
 * where it does not stay so. */
static void move_over(rg_group_t *g, uint32_t with, int cpu, const uint32_t *taken, uint32_t n) {
    uint64_t now = g->now_ns;
    if (g->cfg.spread != RG_ON || g->driver == RG_DRIVER_THREAD) return;
    if (!g->shared_looks++) g->shared_since_ns = now;
    if (g->shared_looks < SHARED_LOOKS || now - g->shared_since_ns < SHARED_NS) return;
    if (now - g->moved_ns > CALM_NS) g->move_wait_ns = MOVE_WAIT_NS;
    if (g->moves && now - g->moved_ns < g->move_wait_ns) return;
    g->shared_looks = 0;
    g->moved_ns = now;
    if (g->move_wait_ns < MOVE_WAIT_MOST_NS) g->move_wait_ns *= 2;
    g->moves++;
    int to = rg_os_leave_cpu(cpu, taken, n);
    RG_LOGF(&g->log, RG_LOG_DEBUG, "shares processor %d with member %llu: %s %d", cpu,
            (unsigned long long)g->links[with].id, to < 0 ? "there is no other," : "moves to", to);
}

/* How long a driver polls before it gives its processor away. Somebody on the same processor needs it at once, or
 * nothing comes; with the others elsewhere there is nothing to be won, and on a busy host the turn comes back late.
 * A processor's share is one member, or as many as there must be on each; who is one too many there, moves. */
static void look_around(rg_group_t *g) {
    uint32_t at[WATCHED_LINKS], full[WATCHED_LINKS], n = 0, n_full = 0, here = 0, before = 0, with = 0;
    int cpu = sched_getcpu(), crowded = g->host_procs > g->cores;
    g->polite_ns = crowded ? 0 : POLITE_NS;
    if (g->n_links > WATCHED_LINKS || !g->tp_ops->peer_cpu || cpu < 0) return;
    for (uint32_t i = 0; i < g->n_links; i++) {
        if (!g->links[i].up) continue;
        uint32_t peer = g->tp_ops->peer_cpu(g->tp, i);
        if (!peer) return;
        at[n++] = peer - 1;
        if (peer != (uint32_t)cpu + 1) continue;
        here++;
        before += g->links[i].id < g->self_id;
        with = i;
    }
    uint32_t share = crowded ? (n + g->cores) / g->cores : 1;
    if (here) g->polite_ns = 0;
    else if (n && !crowded) g->polite_ns = ALONE_NS;
    if (here < share) g->shared_looks = 0;
    if (before < share) return; /* nobody is too many, or others move */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t same = 0;
        for (uint32_t k = 0; k < n; k++) same += at[k] == at[i];
        if (same >= share && at[i] != (uint32_t)cpu) full[n_full++] = at[i];
    }
    move_over(g, with, cpu, full, n_full);
}

/* One round. The control connection, timers and deadlines are looked at now and then, data every time. */
int rg_progress(rg_group_t *g, uint64_t now) {
    if (g->phase == RG_PHASE_OVER) return 0;
    g->now_ns = now;
    int any = poll_transport(g, now);
    if (g->phase != RG_PHASE_OVER) rg_side_tick(g);
    if (now - g->last_control_ns < CONTROL_EVERY_NS || g->phase == RG_PHASE_OVER) return any;
    g->last_control_ns = now;
    look_around(g);
    any += rg_control_poll(g, now);
    if (g->phase != RG_PHASE_OVER) rg_office_progress(g, now);
    if (g->phase != RG_PHASE_OVER && now >= rg_member_deadline(g->core)) {
        rg_member_event_t ev = { .type = RG_MEV_TICK, .now_ns = now };
        rg_core_event(g, &ev);
    }
    if (g->open_ops) rg_ops_check_deadlines(g, now);
    if (g->phase != RG_PHASE_OVER) rg_netstat_tick(g, now);
    return any;
}

void rg_progress_due(rg_group_t *g, uint64_t now) {
    if (now - g->last_control_ns >= CONTROL_EVERY_NS) rg_progress(g, now);
}

/* The driver may sleep on what the transport had to wait for before this round: where that has changed it must look
 * again, because the caller of this may not come back for long. */
void rg_help(rg_group_t *g) {
    int64_t ns = INT64_MAX;
    int any = rg_progress(g, rg_os_now_ns());
    if (g->sleeping && g->phase != RG_PHASE_OVER && (any || !g->tp_ops->arm(g->tp, &ns))) rg_wake(g);
}

/* ---- Sleeping ---------------------------------------------------------------------------------------------------- */

static int64_t sleep_budget(rg_group_t *g, uint64_t now, uint64_t until) {
    uint64_t at = until, core = rg_member_deadline(g->core), ops = rg_ops_next_deadline(g);
    if (core < at) at = core;
    if (ops < at) at = ops;
    if (g->control.fd < 0 && g->control.retry_at_ns && g->control.retry_at_ns < at) at = g->control.retry_at_ns;
    if (g->control.connecting && g->control.connect_by_ns < at) at = g->control.connect_by_ns;
    if (g->control.renew == 2) at = now;
    return at <= now ? 0 : at - now > 1000000000u ? 1000000000 : (int64_t)(at - now);
}

/* Sleeps without the lock until there is work or `until`. The caller drives, but perhaps no longer when it wakes up:
 * then a wake-up was meant for whoever drives now and sleeps on the same descriptors, and must stay to be seen
 * there. */
static void sleep_for_work(rg_group_t *g, uint64_t now, uint64_t until) {
    uint64_t ticket = g->driver_ticket;
    int64_t ns = sleep_budget(g, now, until);
    if (ns <= 0 || !g->tp_ops->arm(g->tp, &ns) || ns <= 0) return;
    if (g->control.fd >= 0) {
        struct epoll_event e = { .events = (uint32_t)rg_control_fd_events(&g->control), .data.u32 = 1 };
        epoll_ctl(g->epfd, EPOLL_CTL_MOD, g->control.fd, &e);
    }
    struct timespec ts = { ns / 1000000000, ns % 1000000000 };
    struct epoll_event ev[4];
    g->sleeping++;
    rg_unlock(g);
    int n = epoll_pwait2(g->epfd, ev, 4, &ts, NULL);
    if (n < 0 && (errno == ENOSYS || errno == EPERM)) /* before Linux 5.11, or a sandbox that does not know the call */
        n = epoll_wait(g->epfd, ev, 4, (int)((ns + 999999) / 1000000));
    rg_lock(g);
    g->sleeping--;
    for (int i = 0; i < n && g->driver_ticket == ticket; i++)
        if (ev[i].data.u32 == 2) {
            uint64_t count;
            ssize_t got = read(g->wakefd, &count, sizeof count);
            (void)got;
        }
    g->last_control_ns = 0; /* whatever it was, look at everything */
}

/* Until one of those who wait has had its turn, and no longer: somebody who asks without end (rg_test() in a loop)
 * would otherwise keep the driver from ever driving. */
void rg_let_others_in(rg_group_t *g) {
    uint32_t seen = g->let_in;
    while (g->let_in == seen && rg_wanted(g)) {
        int was = g->lock_cancel;
        pthread_mutex_unlock(&g->lock);
        sched_yield();
        pthread_mutex_lock(&g->lock);
        g->lock_cancel = was;
    }
}

static uint64_t spin_budget_ns(const rg_group_t *g) {
    if (g->driver == RG_DRIVER_THREAD && !g->async_work) return 0; /* nobody waits for an operation */
    if (g->spin_us) return (uint64_t)g->spin_us * 1000u;
    /* With more members than cores the turn comes back late, and a wake-up costs more than the yields until then. */
    return g->host_procs > g->cores ? SPIN_CROWDED_NS : SPIN_NS;
}

static void wait_for_driver(rg_group_t *g, uint64_t until) {
    struct timespec ts = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    if (until > (uint64_t)INT64_MAX) ts = (struct timespec){ INT32_MAX, 0 };
    int was = g->lock_cancel;
    g->cond_waiters++;
    pthread_cond_timedwait(&g->cond, &g->lock, &ts);
    g->lock_cancel = was;
    g->cond_waiters--;
    if (g->woken) g->woken--;
    g->let_in++;
}

static void take_over(rg_group_t *g, enum rg_driver who) {
    g->driver = who;
    g->driver_ticket++;
}

/* The group's own thread takes the time of a program that computes, so it never keeps a processor for long. */
static uint64_t polite_ns(const rg_group_t *g) {
    return g->driver == RG_DRIVER_THREAD && g->polite_ns > POLITE_NS ? POLITE_NS : g->polite_ns;
}

/* Polls, then sleeps, until finished(arg), somebody takes over, or the deadline. */
static void drive(rg_group_t *g, int (*finished)(void *), void *arg, uint64_t deadline_ns) {
    uint64_t ticket = g->driver_ticket, now = rg_os_now_ns(), idle_since = now;
    while (g->driver_ticket == ticket && g->phase != RG_PHASE_OVER && !finished(arg) && now < deadline_ns) {
        int any = rg_progress(g, now);
        if (finished(arg)) break;
        now = rg_os_now_ns();
        if (any) {
            idle_since = now;
            rg_let_others_in(g);
            continue;
        }
        if (now - idle_since > spin_budget_ns(g)) {
            sleep_for_work(g, now, deadline_ns);
            now = idle_since = rg_os_now_ns();
        } else if (now - idle_since >= polite_ns(g)) {
            rg_unlock(g); /* whoever we wait for may need this core */
            sched_yield();
            rg_lock(g);
            now = rg_os_now_ns();
        }
        rg_let_others_in(g);
    }
    g->last_drive_ns = now;
}

/* It gives the lock back now and then, but not the office of the one who drives, so it is not cancelled then either. */
void rg_drive(rg_group_t *g, int (*finished)(void *), void *arg, uint64_t deadline_ns) {
    const int was = g->lock_cancel;
    g->lock_cancel = PTHREAD_CANCEL_DISABLE;
    while (g->phase != RG_PHASE_OVER && !finished(arg) && rg_os_now_ns() < deadline_ns) {
        if (g->driver == RG_DRIVER_CALLER) {
            wait_for_driver(g, deadline_ns);
            continue;
        }
        take_over(g, RG_DRIVER_CALLER);
        drive(g, finished, arg, deadline_ns);
        take_over(g, RG_DRIVER_NONE);
        if (g->cond_waiters) rg_wake_callers(g);
        else if (g->async_work) rg_wake_thread(g);
    }
    g->lock_cancel = was;
}

/* ---- The group's own thread -------------------------------------------------------------------------------------- */

static int thread_finished(void *arg) { return ((rg_group_t *)arg)->stop; }

/* Keeps off for a while, without the lock of the group. It does not queue for that lock either: a lock that somebody
 * waits for costs its holder a system call at each turn, and one that is held means that somebody makes progress. */
static void thread_stay_away(rg_group_t *g) {
    struct timespec ts;
    int wanted = 0;
    rg_unlock(g);
    do {
        clock_gettime(CLOCK_MONOTONIC, &ts);
        ts.tv_nsec += THREAD_STAYS_AWAY_NS;
        if (ts.tv_nsec >= 1000000000) {
            ts.tv_nsec -= 1000000000;
            ts.tv_sec++;
        }
        pthread_mutex_lock(&g->thread_lock);
        if (!g->thread_wanted) pthread_cond_timedwait(&g->thread_cond, &g->thread_lock, &ts);
        wanted = g->thread_wanted;
        g->thread_wanted = 0;
        pthread_mutex_unlock(&g->thread_lock);
    } while (!wanted && pthread_mutex_trylock(&g->lock) != 0);
    if (wanted) rg_lock(g);
}

void *rg_progress_thread(void *arg) {
    rg_group_t *g = arg;
    pthread_mutex_lock(&g->lock);
    while (!g->stop && g->phase != RG_PHASE_OVER) {
        int recent = !g->async_work && rg_os_now_ns() - g->last_drive_ns < THREAD_STAYS_AWAY_NS;
        if (g->driver != RG_DRIVER_NONE || recent) {
            thread_stay_away(g);
            continue;
        }
        take_over(g, RG_DRIVER_THREAD);
        uint64_t ticket = g->driver_ticket, was = g->last_drive_ns;
        drive(g, thread_finished, g, UINT64_MAX);
        if (g->driver_ticket == ticket) {
            take_over(g, RG_DRIVER_NONE);
            g->last_drive_ns = was; /* the thread's own driving is no reason to stay away */
        }
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}
