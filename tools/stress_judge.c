/* stress_judge.c: what `regroup stress` holds against the library. Records of workers are read as they come. Those of a
 * worker wait until a tally that ended well confirms that it was still in touch with everybody of its view afterwards;
 * then they are compared with what the other confirmed members of that group wrote down for the same operation. A
 * worker that was lost before is held to what concerns it alone: its input, its elements, its deadline. It relies on
 * nothing that a worker concludes, but for its own elements, and must not wait. */
#include "stress.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000ull
#define WINDOW 64 /* steps that are remembered */
#define MARGIN_NS (6 * SECOND)

struct entry {
    uint32_t n;
    struct stress_record *r[STRESS_PEERS];
};

static struct window {
    uint64_t incarnation, step;
    struct entry entry[STRESS_IN_STEP];
} window[WINDOW];

double stress_at(const struct stress *s) { return (double)(int64_t)(tool_now_ns() - s->start_ns) / 1e9; }

/* ---- Violations ------------------------------------------------------------------------------------------------ */

static size_t ids_text(char *buf, size_t cap, const uint64_t *ids, uint32_t n) {
    size_t at = 0;
    for (uint32_t i = 0; i < n && i < STRESS_PEERS && at + 24 < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%llu", i ? "," : "", (unsigned long long)ids[i]);
    return at;
}

void stress_record_line(const struct stress_record *r, char *buf, size_t cap) {
    char ids[160] = "", members[160] = "", extra[96] = "";
    ids_text(ids, sizeof ids, r->ids, r->contributors);
    ids_text(members, sizeof members, r->members, r->world);
    if (stress_kind_is((stress_kind_t)r->kind, 'p'))
        snprintf(extra, sizeof extra, " sent to %llu: %s, got from %llu: %s", (unsigned long long)r->sent_to,
                 rg_status_name((rg_status_t)r->sent_status), (unsigned long long)r->got_from,
                 rg_status_name((rg_status_t)r->got_status));
    snprintf(buf, cap,
             "member %llu step %llu.%u %s%s %s: group %llx epoch %llu rank %u of %u [%s], %llu %s %s root %u%s%s%s, "
             "contributors %u [%s] retries %u wrong %llu intact %u hash %llx, %.3f ms (fault %.3f ms)%s%s%s",
             (unsigned long long)r->member_id, (unsigned long long)r->step, r->index, r->sub ? "sub-group " : "",
             stress_kind_name((stress_kind_t)r->kind), rg_status_name((rg_status_t)r->status),
             (unsigned long long)r->incarnation, (unsigned long long)r->epoch, r->rank, r->world, members,
             (unsigned long long)r->count, rg_dtype_name((rg_dtype_t)r->dtype), rg_op_name((rg_op_t)r->op), r->root,
             r->in_place ? " in place" : "", r->on_fault == RG_RETURN ? " return" : "", r->flying ? " flying" : "",
             r->contributors, ids, r->retries, (unsigned long long)r->wrong, r->intact, (unsigned long long)r->hash,
             (double)(int64_t)(r->end_ns - r->start_ns) / 1e6, (double)r->fault_ns / 1e6, extra, r->text[0] ? ": " : "",
             r->text);
}

void stress_violate(struct stress *s, const char *kind, const struct stress_record *a, const struct stress_record *b,
                    const char *fmt, ...) {
    struct stress_violation v = { .at = stress_at(s) };
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(v.text, sizeof v.text, fmt, ap);
    va_end(ap);
    snprintf(v.kind, sizeof v.kind, "%s", kind);
    if (a) stress_record_line(a, v.lines[0], sizeof v.lines[0]);
    if (b) stress_record_line(b, v.lines[1], sizeof v.lines[1]);
    if (s->tally.violations < STRESS_VIOLATIONS) {
        s->tally.violation[s->tally.violations] = v;
        fprintf(stderr, "%sstress: %.3f s: VIOLATION (%s): %s\n", s->tty ? "\r\033[K" : "", v.at, v.kind, v.text);
        for (int i = 0; i < 2; i++)
            if (v.lines[i][0]) fprintf(stderr, "    %s\n", v.lines[i]);
    }
    s->tally.violations++;
    if (s->fail_fast) s->interrupted = 1;
}

/* ---- One record by itself -------------------------------------------------------------------------------------- */

/* What was done to a worker may cost it its group for so long after: suspected late, told late. */
#define EXCUSE_NS (20 * SECOND)

static int gone_status(int32_t st) {
    return st == RG_ERR_EXPELLED || st == RG_ERR_NO_QUORUM || st == RG_ERR_CLOSED || st == RG_ERR_COORDINATOR;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Whether what was done while the call ran may, by what docs/fault-tolerance.md promises for each fault, add up to its
 * whole deadline: then all may end with TIMEOUT. Several that are silent at once are waited for longer, and who takes
 * the office over may itself be the one that is stopped next. */
static int explained(const struct stress *s, const struct stress_record *r) {
    const uint64_t t = s->plan_opts.heartbeat_ns, silence = t + t / 4 + SECOND / 4;
    /* Whoever comes late shares the end of those who waited: whole_time() asks whether somebody did. */
    const uint64_t wait = s->setup->op_ms * 1000000ull, from = least(r->start_ns, r->end_ns - least(r->end_ns, wait));
    uint64_t longest, cost = 2 * stress_stood_still(from < 2 * t ? 0 : from - 2 * t, r->end_ns, &longest);
    int silent = longest >= t / 2, away = 0;
    for (uint32_t i = 0; i < s->n_done; i++) {
        const struct stress_event *e = &s->done[i].event;
        const uint64_t at = s->start_ns + (uint64_t)(s->done[i].at * 1e9), lasts = e->for_ns ? e->for_ns : UINT64_MAX;
        if (!s->done[i].happened || at > r->end_ns || at + 2 * t < from) continue;
        switch (e->action) {
        case STRESS_ACT_STOP:
            cost += least(lasts, silence);
            silent += lasts >= t;
            break;
        case STRESS_ACT_KILL: cost += SECOND / 4; break;
        case STRESS_ACT_DROP:
        case STRESS_ACT_DROP_ONE_WAY: cost += least(lasts, silence); break;
        case STRESS_ACT_COORDINATOR_KILL:
            cost += least(lasts, 2 * t) + SECOND;
            away = 1;
            break;
        case STRESS_ACT_COORDINATOR_STOP: /* these two are noticed by its silence */
        case STRESS_ACT_CUT_COORDINATOR:
            cost += least(lasts, silence + 2 * t) + SECOND;
            away = 1;
            break;
        default: break;
        }
    }
    if (silent > 1 && cost < 6 * t) cost = 6 * t;
    if (silent && away) cost += 2 * t;
    return cost >= wait;
}

static int allowed(const struct stress *s, const struct stress_record *r) {
    stress_kind_t k = (stress_kind_t)r->kind;
    int pairs = stress_kind_is(k, 'p'), rooted = stress_kind_is(k, 'r');
    if (r->status == RG_OK || gone_status(r->status)) return 1;
    if (r->status == RG_ERR_ROOT_LOST) return rooted;
    if (r->status == RG_ERR_INVALID) return rooted && r->world <= r->root;
    /* Ranks move when a member is lost: then a message may wait for a partner that it does not have. It ends at both
     * ends when one has waited for long enough, however late the other one came: see whole_time(). */
    if (r->status == RG_ERR_TIMEOUT && pairs) return 1;
    if (r->status == RG_ERR_TIMEOUT && explained(s, r)) return 1;
    if (r->status == RG_ERR_PEER_LOST)
        return pairs || stress_kind_is(k, 's') || r->on_fault == RG_RETURN || k == STRESS_STATE ||
               k == STRESS_SUB_GROUP;
    if (k == STRESS_JOIN) return 1; /* the worker tries again; that nobody gets in at all is seen at the end */
    return 0;
}

static uint64_t latest(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* What a call has on top of its deadline: a loaded host is not a hang, and one that stands still holds up several
 * processes that wait for each other, one after the other. */
static uint64_t margin(uint64_t from, uint64_t until) {
    uint64_t longest;
    return MARGIN_NS + 2 * stress_stood_still(from, until, &longest);
}

/* Nothing was done to it, but whoever does not run for half a heartbeat may be taken for dead by those who do. */
static int host_did_it(const struct stress *s) {
    uint64_t longest, now = tool_now_ns();
    stress_stood_still(now - EXCUSE_NS, now, &longest);
    return longest >= s->plan_opts.heartbeat_ns / 2;
}

static void judge_one(struct stress *s, uint32_t slot, const struct stress_record *r) {
    struct stress_peer *p = &s->peers[slot];
    stress_kind_t k = (stress_kind_t)r->kind;
    int shaped = stress_kind_is(k, 's'), stale = r->status == RG_OK && shaped && r->contributors != r->world;
    uint64_t from = latest(r->start_ns, p->continued_ns);
    if (stale) stress_violate(s, "shape", r, NULL, "succeeded in a shape that its caller does not know of");
    if (r->wrong && !stale) {
        if (k == STRESS_GONE)
            stress_violate(s, "leak", r, NULL, "worker %u: something is left after the group's end", slot);
        else stress_violate(s, "wrong", r, NULL, "worker %u: a wrong result for its contributors", slot);
    }
    if (!r->intact) stress_violate(s, "input", r, NULL, "worker %u: an input is not intact", slot);
    if (!allowed(s, r)) stress_violate(s, "outcome", r, NULL, "worker %u: an outcome that it must not have", slot);
    if (r->deadline_ns && r->end_ns > from && r->end_ns - from > r->deadline_ns + margin(from, r->end_ns))
        stress_violate(s, "late", r, NULL, "worker %u: ended %.1f s after its call, %.1f s were allowed", slot,
                       (double)(r->end_ns - from) / 1e9, (double)r->deadline_ns / 1e9);
    if (gone_status(r->status) && k != STRESS_JOIN && k != STRESS_LEAVE) {
        s->tally.rejoins++;
        if (tool_now_ns() - p->harmed_ns > EXCUSE_NS && !host_did_it(s))
            stress_violate(s, "cause", r, NULL, "worker %u lost its group, and nothing had been done to it for %.1f s",
                           slot, (double)(tool_now_ns() - p->harmed_ns) / 1e9);
    }
    if (k == STRESS_JOIN && r->status) s->tally.join_failures++;
}

static void count(struct stress *s, const struct stress_record *r) {
    struct stress_tally *t = &s->tally;
    double ms = (double)(int64_t)(r->end_ns - r->start_ns) / 1e6;
    t->by_status[r->kind][stress_status_index(r->status)]++;
    if (r->kind < STRESS_SUB_GROUP || r->kind == STRESS_STATE || r->kind == STRESS_TALLY) t->operations++;
    if (ms > t->slowest[r->kind]) t->slowest[r->kind] = ms;
}

/* The longest that any member took from its freeze to its next activation, for each view. */
static void recovery(struct stress *s, const struct stress_record *r) {
    struct stress_tally *t = &s->tally;
    if (r->kind != STRESS_BOUNDARY || !r->fault_ns || !r->incarnation) return;
    for (uint32_t i = t->recoveries; i-- > 0 && i + 64 > t->recoveries;) {
        struct stress_recovery *q = &t->recovery[i];
        if (q->epoch != r->epoch || q->incarnation != r->incarnation) continue;
        q->ns = latest(q->ns, r->fault_ns);
        return;
    }
    if (t->recoveries == STRESS_RECOVERIES) return;
    t->recovery[t->recoveries++] = (struct stress_recovery){ r->epoch, r->incarnation, r->fault_ns, stress_at(s) };
}

static void take_sample(struct stress_peer *p, const struct stress_record *r) {
    if (r->kind != STRESS_BOUNDARY || !r->threads) return;
    if (p->samples == STRESS_SAMPLES) { /* every second one is enough from here on */
        for (uint32_t i = 0; i < STRESS_SAMPLES / 2; i++) p->sample[i] = p->sample[2 * i];
        p->samples /= 2;
        p->sample_stride = p->sample_stride ? p->sample_stride * 2 : 2;
    }
    if (p->sample_skip++ % (p->sample_stride ? p->sample_stride : 1)) return;
    p->sample[p->samples++] = (struct stress_sample){ r->end_ns, r->fds, r->threads, r->world, r->rss_kb };
}

/* ---- Comparing ------------------------------------------------------------------------------------------------- */

static int same(const struct stress_record *a, const struct stress_record *b) {
    if (a->status != b->status) return 0;
    if (a->status || a->kind == STRESS_SUB_GROUP) return 1;
    if (a->contributors != b->contributors || a->root_id != b->root_id) return 0;
    if (a->kind == STRESS_STATE) return 1; /* members that took part are named by number only */
    if (a->epoch != b->epoch || memcmp(a->ids, b->ids, sizeof a->ids) != 0) return 0;
    return !stress_kind_is((stress_kind_t)a->kind, 'a') || a->hash == b->hash;
}

/* A message succeeds at both ends or at neither. */
static void compare_message(struct stress *s, const struct stress_record *from, const struct stress_record *to) {
    if (from->kind == STRESS_BATCH || from->sent_to != to->member_id) return;
    if (to->got_from == from->member_id) {
        if (from->sent_status != to->got_status)
            stress_violate(s, "disagreement", from, to, "a message that ended differently at its other end");
    } else if (from->sent_status == RG_OK)
        stress_violate(s, "disagreement", from, to, "a message succeeded that nobody received");
}

static void compare(struct stress *s, const struct stress_record *a, const struct stress_record *b) {
    if (a->sub != b->sub || (a->sub && a->colour != b->colour)) return;
    s->tally.compared++;
    if (a->kind != b->kind || a->count != b->count || a->dtype != b->dtype || a->root != b->root) {
        if (a->kind != STRESS_STATE && a->kind != STRESS_SUB_GROUP)
            stress_violate(s, "disagreement", a, b, "members called different operations");
        return;
    }
    if (stress_kind_is((stress_kind_t)a->kind, 'p')) {
        compare_message(s, a, b);
        compare_message(s, b, a);
    } else if (!same(a, b)) stress_violate(s, "disagreement", a, b, "members that stayed have different outcomes");
}

/* What ended by its deadline, where everybody has said how long it took: somebody has waited until then. */
static void whole_time(struct stress *s, const struct entry *e) {
    const struct stress_record *early = NULL;
    for (uint32_t k = 0; k < e->n; k++) {
        const struct stress_record *r = e->r[k];
        int message = stress_kind_is((stress_kind_t)r->kind, 'p');
        if (r->status != RG_ERR_TIMEOUT || (!message && !r->deadline_ns)) continue;
        if (r->end_ns - r->start_ns >= (message ? STRESS_MESSAGE_MS * 1000000ull : r->deadline_ns)) return;
        early = r;
    }
    if (early && e->n >= early->world)
        stress_violate(s, "outcome", early, NULL, "ended by a deadline that nobody had reached");
}

/* s NULL: the run is over, and nothing is judged any more. */
static void forget(struct stress *s, struct window *w) {
    for (uint32_t i = 0; i < STRESS_IN_STEP; i++) {
        if (s) whole_time(s, &w->entry[i]);
        for (uint32_t k = 0; k < w->entry[i].n; k++) free(w->entry[i].r[k]);
        w->entry[i].n = 0;
    }
}

/* Takes the record over. */
static void confirm(struct stress *s, struct stress_record *r) {
    struct window *w = &window[(r->step ^ stress_mix(r->incarnation)) % WINDOW];
    int keep = r->kind < STRESS_BOUNDARY && r->index < STRESS_IN_STEP && !gone_status(r->status);
    if (keep && (w->incarnation != r->incarnation || w->step != r->step)) {
        if (w->incarnation == r->incarnation && w->step > r->step) keep = 0; /* too late: compared with nobody */
        else {
            forget(s, w);
            w->incarnation = r->incarnation;
            w->step = r->step;
            s->tally.steps++;
        }
    }
    struct entry *e = &w->entry[r->index % STRESS_IN_STEP];
    if (!keep || e->n == STRESS_PEERS) {
        free(r);
        return;
    }
    /* The state's index is used again when a comparison has to be repeated: the last one counts. */
    for (uint32_t k = 0; k < e->n; k++)
        if (e->r[k]->member_id != r->member_id) compare(s, e->r[k], r);
    e->r[e->n++] = r;
    s->tally.confirmed++;
}

static void drop_queue(struct stress_peer *p) {
    for (uint32_t i = 0; i < p->queued; i++) free(p->queue[i]);
    p->queued = 0;
}

/* All but the newest record, which is the tally that says so: whether it is known to others in the end, only a later
 * one can tell. */
static void flush_queue(struct stress *s, struct stress_peer *p, uint64_t incarnation) {
    uint32_t n = p->queued ? p->queued - 1 : 0;
    for (uint32_t i = 0; i < n; i++) {
        p->queue[i]->incarnation = incarnation;
        confirm(s, p->queue[i]);
    }
    if (p->queued) p->queue[0] = p->queue[n];
    p->queued = p->queued ? 1 : 0;
}

static void see_group(struct stress_tally *t, uint64_t incarnation) {
    for (uint32_t i = 0; i < t->groups && i < 64; i++)
        if (t->group[i] == incarnation) return;
    t->group[t->groups++ % 64] = incarnation;
}

static void take(struct stress *s, uint32_t slot, const struct stress_record *r) {
    struct stress_peer *p = &s->peers[slot];
    char line[700];
    if (p->journal) {
        stress_record_line(r, line, sizeof line);
        fprintf(p->journal, "%.6f %s\n", (double)(int64_t)(r->start_ns - s->start_ns) / 1e9, line);
    }
    judge_one(s, slot, r);
    count(s, r);
    recovery(s, r);
    take_sample(p, r);
    if (r->life != p->life) drop_queue(p);
    p->life = r->life;
    if (p->queued == sizeof p->queue / sizeof *p->queue) drop_queue(p); /* no tally for so long */
    struct stress_record *copy = r->kind < STRESS_BOUNDARY ? malloc(sizeof *copy) : NULL;
    if (copy) {
        *copy = *r;
        p->queue[p->queued++] = copy;
    }
    if (r->kind == STRESS_STATE && r->status && copy) { /* only how it ended at last is compared */
        p->queued--;
        free(copy);
    }
    if (r->kind == STRESS_TALLY && r->status == RG_OK) {
        if (r->incarnation != p->incarnation) see_group(&s->tally, r->incarnation);
        p->incarnation = r->incarnation;
        p->confirmed_step = r->step;
        p->confirmed_by = r->contributors;
        p->confirmed_ns = r->end_ns;
        flush_queue(s, p, r->incarnation);
    }
    if (r->kind == STRESS_GONE) drop_queue(p);
}

void stress_judge_drain(struct stress *s) {
    for (uint32_t slot = 0; slot < s->setup->peers; slot++) {
        struct stress_seat *seat = &s->setup->seats[slot];
        uint64_t n = __atomic_load_n(&seat->written, __ATOMIC_ACQUIRE);
        while (seat->read < n) {
            take(s, slot, &seat->ring[seat->read % STRESS_RING]);
            __atomic_store_n(&seat->read, seat->read + 1, __ATOMIC_RELEASE);
        }
    }
}

void stress_judge_over(struct stress *s, uint32_t slot) {
    struct stress_seat *seat = &s->setup->seats[slot];
    stress_judge_drain(s);
    drop_queue(&s->peers[slot]);
    memset(seat, 0, sizeof *seat);
}

void stress_judge_free(struct stress *s) {
    for (uint32_t i = 0; i < WINDOW; i++) forget(NULL, &window[i]);
    for (uint32_t i = 0; i < STRESS_PEERS; i++) drop_queue(&s->peers[i]);
}

/* ---- Over time ------------------------------------------------------------------------------------------------- */

void stress_judge_hangs(struct stress *s) {
    for (uint32_t i = 0; i < s->setup->peers; i++) {
        struct stress_peer *p = &s->peers[i];
        struct stress_now *now = &s->setup->seats[i].now;
        uint64_t start = __atomic_load_n(&now->start_ns, __ATOMIC_ACQUIRE), t = tool_now_ns();
        if (!p->pid || p->stopped_ns || p->hung || !start) continue;
        uint64_t from = latest(start, p->continued_ns);
        if (t < from || t - from <= now->deadline_ns + margin(from, t) || now->start_ns != start) continue;
        p->hung = 1;
        stress_violate(s, "hang", NULL, NULL,
                       "worker %u (pid %d) is in %s, step %llu.%u, since %.1f s; %.1f s are allowed", i, (int)p->pid,
                       stress_kind_name((stress_kind_t)now->kind), (unsigned long long)now->step, now->index,
                       (double)(t - from) / 1e9, (double)now->deadline_ns / 1e9);
    }
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t median(uint64_t *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_value);
    return n ? v[n / 2] : 0;
}

/* The second quarter of a process's life against the last one: the first is for what is made once. */
void stress_judge_resources(struct stress *s, uint32_t slot) {
    struct stress_peer *p = &s->peers[slot];
    uint64_t v[2][3][STRESS_SAMPLES], m[2][3];
    uint32_t n = p->samples / 4;
    if (p->samples < 40 || p->sample[p->samples - 1].at_ns - p->sample[0].at_ns < 40 * SECOND) return;
    for (uint32_t i = 0; i < n; i++)
        for (int k = 0; k < 2; k++) {
            const struct stress_sample *x = &p->sample[k ? p->samples - n + i : n + i];
            v[k][0][i] = x->fds;
            v[k][1][i] = x->threads;
            v[k][2][i] = x->rss_kb;
        }
    for (int k = 0; k < 2; k++)
        for (int j = 0; j < 3; j++) m[k][j] = median(v[k][j], n);
    /* Descriptors follow the number of members, a few for each. */
    if (m[1][0] > m[0][0] + 4 * s->setup->peers)
        stress_violate(s, "leak", NULL, NULL, "worker %u: descriptors grew from %llu to %llu", slot,
                       (unsigned long long)m[0][0], (unsigned long long)m[1][0]);
    /* Two more for as long as it holds the coordinator's office. */
    if (m[1][1] > m[0][1] + 2)
        stress_violate(s, "leak", NULL, NULL, "worker %u: threads grew from %llu to %llu", slot,
                       (unsigned long long)m[0][1], (unsigned long long)m[1][1]);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (m[1][2] > m[0][2] + m[0][2] / 5 + 32768)
        stress_violate(s, "leak", NULL, NULL, "worker %u: memory grew from %llu to %llu KiB", slot,
                       (unsigned long long)m[0][2], (unsigned long long)m[1][2]);
#endif
}
