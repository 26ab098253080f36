/* print.c: a schedule as text, one step a line, for documents, golden tests and error reports. Relies on snprintf
 * only; must not allocate. The text names steps by index, so that dependencies can be followed by eye:
 *     3 recv_reduce out[64+32] = in[64+32] op 1#0 final <- 1,2 */
#include "sched.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct sink {
    char *buf;
    size_t cap, len;
} sink_t;

__attribute__((format(printf, 2, 3))) static void put(sink_t *o, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    size_t room = o->len < o->cap ? o->cap - o->len : 0;
    int n = vsnprintf(room ? o->buf + o->len : NULL, room, fmt, ap);
    va_end(ap);
    if (n > 0) o->len += (size_t)n;
}

static void put_span(sink_t *o, rg_span_t x) {
    static const char *const names[] = { "in", "out", "tmp", "aux" };
    put(o, "%s[%" PRIu64 "+%" PRIu64 "]", names[x.buf], x.off, x.len);
}

static void put_step(sink_t *o, const rg_schedule_t *s, uint32_t id) {
    static const char *const names[] = { "send", "recv", "recv_reduce", "reduce", "copy", "prepare" };
    const rg_step_t *x = &s->steps[id];
    put(o, "%5" PRIu32 " %s", id, names[x->kind]);
    if (x->kind != RG_STEP_PREPARE) put(o, " ");
    if (x->kind == RG_STEP_SEND) {
        put_span(o, x->a);
        put(o, " to %" PRIu32 "#%" PRIu32, x->peer, x->ord);
    } else if (x->kind != RG_STEP_PREPARE) {
        put_span(o, x->dst);
        put(o, " = ");
    }
    if (x->kind == RG_STEP_RECV) {
        put(o, "%" PRIu32 "#%" PRIu32, x->peer, x->ord);
    } else if (x->kind == RG_STEP_RECV_REDUCE) {
        put_span(o, x->a);
        put(o, " op %" PRIu32 "#%" PRIu32, x->peer, x->ord);
    } else if (x->kind == RG_STEP_REDUCE || x->kind == RG_STEP_COPY) {
        put_span(o, x->a);
        if (x->kind == RG_STEP_REDUCE) {
            put(o, " op ");
            put_span(o, x->b);
        }
    }
    put(o, "%s%s%s%s", x->flags & RG_STEP_WIRE_ACC ? " acc" : "", x->flags & RG_STEP_SWAP ? " swap" : "",
        x->flags & RG_STEP_FINAL ? " final" : "", x->flags & RG_STEP_PHASE2 ? " done" : "");
    for (uint32_t i = 0; i < x->n_deps; i++) put(o, "%s%" PRIu32, i == 0 ? " <- " : ",", s->deps[x->first_dep + i]);
    put(o, "\n");
}

size_t rg_sched_print(const rg_schedule_t *s, char *buf, size_t cap) {
    sink_t o = { buf, cap, 0 };
    if (cap != 0) buf[0] = 0;
    put(&o, "%s rank %" PRIu32 " of %" PRIu32 ", count %" PRIu64 ", tmp %" PRIu64 ", steps %" PRIu32 "+%" PRIu32 "%s\n",
        rg_kind_name(s->desc.kind), s->desc.rank, s->desc.size, s->desc.count, s->tmp_elems, s->phase1_steps,
        s->n_steps - s->phase1_steps, s->flags & RG_SCHED_ZERO_COPY ? ", zero copy" : "");
    for (uint32_t i = 0; i < s->n_steps; i++) put_step(&o, s, i);
    return o.len;
}
