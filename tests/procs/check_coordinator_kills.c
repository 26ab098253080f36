/* check_coordinator_kills.c: the coordinator killed at random moments of a running group of four, alone and together
 * with members: by restart at the same address, by a standby, by a member that takes the office over. No operation may
 * fail, and the next membership change must be over one second after the new coordinator's start or the time for a
 * takeover. It relies on succession.h; the last line of a long run is JSON. */
#include "succession.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

struct tally {
    int kills, late, failed, stops, together;
    double worst_ms, join_ms;
    uint64_t ops;
    const char *why;
};

static void nap_us(struct succ *s, uint32_t most) {
    uint64_t until = procs_now() + succ_random(s, most) * 1000ull;
    while (procs_now() < until) {}
}

static int victim_of(struct succ *s, int not_this) {
    int slot;
    do slot = (int)succ_random(s, SUCC_SLOTS);
    while (!s->m[slot].pid || slot == not_this);
    return slot;
}

static void replace(struct succ *s) {
    for (int i = 0; i < SUCC_SLOTS; i++)
        if (!s->m[i].pid) {
            succ_member(s, i);
            return;
        }
}

/* From `since` the change to n members may take a second, and what the host was late. A join has no such bound: it
 * waits for a process to start, and may find the office only at the end of its list. */
static int change_in_time(struct succ *s, struct tally *t, uint32_t n, uint64_t since, const char *what) {
    double *worst = n == SUCC_N ? &t->join_ms : &t->worst_ms;
    uint64_t now = procs_now();
    double until = since > now ? (double)(since - now) / 1e9 : 0;
    int done = succ_up(s, n, until + 10);
    double ms = procs_now() > since ? (double)(procs_now() - since) / 1e6 : 0, most = 1000 + procs_late_ms(since);
    if (ms > *worst) *worst = ms;
    if (!succ_clean(s)) {
        t->failed++;
        t->why = what;
        return 0;
    }
    if (!done || (n < SUCC_N && ms > most)) {
        t->late++;
        fprintf(stderr, "kill %d: %s: %s after %.0f ms\n", t->kills, what, done ? "late" : "not over", ms);
    }
    return done;
}

/* Kills coordinator `which` now, and a member a moment before or after it or not at all; returns when it died. */
static uint64_t strike(struct succ *s, struct tally *t, int which, int *victim) {
    int when = (int)succ_random(s, 3);
    *victim = when ? victim_of(s, -1) : -1;
    t->kills++;
    t->together += when != 0;
    nap_us(s, 60000);
    if (when == 1) {
        succ_kill_member(s, *victim);
        nap_us(s, 4000);
    }
    uint64_t at = procs_now();
    succ_kill_coordinator(s, which);
    if (when == 2) {
        nap_us(s, 4000);
        succ_kill_member(s, *victim);
    }
    return at;
}

/* A member is lost, if none is yet; then one comes. Both are changes that need the new coordinator, from `ready` on. */
static int changes(struct succ *s, struct tally *t, int victim, uint64_t ready, const char *mode) {
    char what[64];
    snprintf(what, sizeof what, "%s: a member lost", mode);
    if (victim < 0) {
        if (!succ_moves(s, 5, 10) || !succ_clean(s)) {
            t->failed++;
            t->why = mode;
            return 0;
        }
        succ_kill_member(s, victim_of(s, -1));
        if (procs_now() > ready) ready = procs_now();
    }
    if (!change_in_time(s, t, SUCC_N - 1, ready, what)) return 0;
    replace(s);
    uint64_t now = procs_now();
    snprintf(what, sizeof what, "%s: a member joins", mode);
    return change_in_time(s, t, SUCC_N, now > ready ? now : ready, what);
}

static int kill_and_restart(struct succ *s, struct tally *t) {
    int victim;
    strike(s, t, 0, &victim);
    nap_us(s, SUCC_TAKEOVER_MS * 400);
    uint64_t start = procs_now();
    if (succ_coordinator(s, 0, 0)) return 0;
    return changes(s, t, victim, start, "restart");
}

/* The two take turns: who died comes back as the standby of the other. */
static int kill_with_standby(struct succ *s, struct tally *t) {
    int active = t->kills % 2, victim;
    uint64_t at = strike(s, t, active, &victim);
    int ok = changes(s, t, victim, at + SUCC_HEARTBEAT_MS * 1250000ull, "standby");
    return ok && !succ_coordinator(s, active, 1);
}

/* The one that holds the office dies: the coordinator, which comes back every third time, or a member. */
static int kill_for_takeover(struct succ *s, struct tally *t) {
    int host = succ_office(s), victim = -1;
    uint64_t at = procs_now(), rank_ms = SUCC_HEARTBEAT_MS / 2;
    if (s->co[0]) {
        at = strike(s, t, 0, &victim);
    } else if (host >= 0) {
        t->kills++;
        nap_us(s, 60000);
        at = procs_now();
        succ_kill_member(s, victim = host);
    }
    /* Whoever is first in the view may be the one that died: the second waits half a heartbeat longer. */
    int ok = changes(s, t, victim, at + (SUCC_TAKEOVER_MS + (victim >= 0 ? rank_ms : 0)) * 1000000ull, "takeover");
    if (!ok || t->kills % 3) return ok;
    if (succ_coordinator(s, 0, 0)) return 0;
    PROCS_WAIT(succ_office(s) < 0, 10);
    return succ_moves(s, 20, 10);
}

/* Stopped for less or more than it takes until somebody takes over, then continued. */
static int stop_and_continue(struct succ *s, struct tally *t) {
    int victim = succ_random(s, 2) ? victim_of(s, -1) : -1;
    uint32_t ms = succ_random(s, 5 * SUCC_HEARTBEAT_MS);
    t->stops++;
    kill(s->co[0], SIGSTOP);
    uint64_t at = procs_now();
    if (victim >= 0) succ_kill_member(s, victim);
    PROCS_WAIT(0, ms / 1000.0);
    kill(s->co[0], SIGCONT);
    uint64_t takeover = at + (SUCC_TAKEOVER_MS + SUCC_HEARTBEAT_MS) * 1000000ull, now = procs_now();
    return changes(s, t, victim, now > takeover ? now : takeover, "stop");
}

static int run_mode(struct tally *t, int kills, unsigned seed, int mode) {
    struct succ *s = succ_new("kills", seed);
    int ok = 1, before = t->kills;
    if (mode == KILL_TAKEOVER) succ_list(s, 1);
    ok = !succ_coordinator(s, 0, 0) && (mode != KILL_STANDBY || !succ_coordinator(s, 1, 1));
    for (int i = 0; i < SUCC_N; i++) succ_member(s, i);
    ok = ok && succ_up(s, SUCC_N, 20);
    t->kills = mode == KILL_STANDBY ? (t->kills + 1) & ~1 : t->kills; /* the first one is active when it is even */
    before = t->kills;
    while (ok && t->kills - before < kills) {
        if (mode == KILL_STANDBY) ok = kill_with_standby(s, t);
        else if (mode == KILL_RESTART && succ_random(s, 8) == 0) ok = stop_and_continue(s, t);
        else ok = mode == KILL_RESTART ? kill_and_restart(s, t) : kill_for_takeover(s, t);
    }
    for (int i = 0; i < SUCC_SLOTS; i++) t->ops += s->m[i].ops;
    if (!ok && !t->why) t->why = "the group did not go on";
    if (!ok) fprintf(stderr, "mode %d: stopped after %d kills: %s\n", mode, t->kills - before, t->why);
    succ_clean(s);
    succ_free(s);
    return ok;
}

int check_coordinator_kills(int kills, unsigned seed, int modes) {
    struct tally t = { 0 };
    int ok = 1;
    for (int mode = KILL_RESTART; mode <= KILL_TAKEOVER; mode *= 2)
        if (modes & mode) ok = run_mode(&t, kills, seed + (unsigned)mode, mode) && ok;
    printf("{\"kills\": %d, \"stops\": %d, \"with_members\": %d, \"modes\": \"%s%s%s\", \"seed\": %u, \"operations\": "
           "%llu, \"failed\": %d, \"late\": %d, \"worst_change_ms\": %.0f, \"worst_join_ms\": %.0f, \"ok\": %s}\n",
           t.kills, t.stops, t.together, modes & KILL_RESTART ? "restart " : "", modes & KILL_STANDBY ? "standby " : "",
           modes & KILL_TAKEOVER ? "takeover" : "", seed, (unsigned long long)t.ops, t.failed, t.late, t.worst_ms,
           t.join_ms, ok && !t.failed && !t.late ? "true" : "false");
    return !(ok && !t.failed && !t.late);
}

/* A coordinator that nobody replaces, in a group that may not take over, is a change that is never made. */
int check_coordinator_kills_planted(void) {
    struct succ *s = succ_new("planted", 7);
    struct tally t = { 0 };
    s->host_office_off = 1;
    int ok = !succ_coordinator(s, 0, 0);
    for (int i = 0; i < SUCC_N; i++) succ_member(s, i);
    ok = ok && succ_up(s, SUCC_N, 20);
    succ_kill_coordinator(s, 0);
    succ_kill_member(s, 3);
    ok = ok && !succ_up(s, SUCC_N - 1, SUCC_TAKEOVER_MS / 1000.0 + 1);
    s->m[1].wrong = 1;
    FILE *quiet = stderr;
    stderr = fopen("/dev/null", "w");
    ok = ok && !succ_clean(s) && !change_in_time(s, &t, SUCC_N - 1, procs_now(), "planted") && t.failed == 1;
    if (stderr) fclose(stderr);
    stderr = quiet;
    succ_free(s);
    return ok;
}
