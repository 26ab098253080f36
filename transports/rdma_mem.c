/* rdma_mem.c: memory of callers that the adapter may use in place of a copy: what rg_register() and rg_alloc() have
 * told of, and nothing else. It is registered at its first use and let go when its owner takes it back. Other buffers
 * are copied: a registration for one message costs more than the copy up to far beyond what messages measure, and one
 * that is kept would have to hear of every munmap(). Relies on memory.h, whose numbers never name two ranges. It must
 * not register what is not told of, nor let a registration go that a window or the adapter still uses. */
#include "rdma_internal.h"
#include "memory.h"
#include "observe/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOWS_MAX 1024u

static void let_go(rg_tp_t *tp, rgr_mem_t *m) {
    rgr_mem_t **at = &tp->mems;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    if (m->mr) (void)ibv_dereg_mr(m->mr);
    free(m);
}

void rgr_mem_use(rgr_mem_t *m) { m->uses++; }

void rgr_mem_put(rg_tp_t *tp, rgr_mem_t *m) {
    if (m && --m->uses == 0 && m->gone) let_go(tp, m);
}

void rgr_mem_look(rg_tp_t *tp) {
    uint64_t now = rg_memory_generation();
    if (now == tp->mems_seen) return;
    tp->mems_seen = now;
    for (rgr_mem_t *m = tp->mems, *next; m; m = next) {
        next = m->next;
        if (!m->gone) m->gone = !rg_memory_alive(m->id);
        if (m->gone && !m->uses) let_go(tp, m);
    }
}

static rgr_mem_t *add(rg_tp_t *tp, const rg_memory_range_t *r) {
    rgr_mem_t *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    *m = (rgr_mem_t){ .next = tp->mems, .id = r->id, .from = (uintptr_t)r->base };
    m->to = m->from + r->bytes;
    m->mr = ibv_reg_mr(tp->pd, r->base, r->bytes, IBV_ACCESS_LOCAL_WRITE | (tp->windowed ? IBV_ACCESS_MW_BIND : 0));
    if (!m->mr && tp->log) {
        char line[200];
        snprintf(line, sizeof line, "rdma: %zu bytes that were registered are copied all the same: %s%s", r->bytes,
                 strerror(errno), errno == ENOMEM ? "; see `ulimit -l`" : "");
        tp->log(tp->log_user, RG_LOG_WARN, line);
    }
    tp->mems = m;
    return m;
}

rgr_mem_t *rgr_mem_get(rg_tp_t *tp, const void *p, uint64_t bytes) {
    rg_memory_range_t r;
    if (!tp->direct || !rg_memory_find(p, bytes, &r)) return NULL;
    rgr_mem_look(tp);
    rgr_mem_t *m = tp->mems;
    while (m && m->id != r.id) m = m->next;
    if (!m) m = add(tp, &r);
    if (!m || !m->mr) return NULL;
    m->uses++;
    return m;
}

void rgr_mem_free(rg_tp_t *tp) {
    while (tp->windows) {
        rgr_window_t *w = tp->windows;
        tp->windows = w->next;
        (void)ibv_dealloc_mw(w->mw);
        free(w);
    }
    while (tp->mems) let_go(tp, tp->mems);
}

rgr_window_t *rgr_window_new(rg_tp_t *tp) {
    rgr_window_t *w = tp->windows;
    if (w) {
        tp->windows = w->next;
        w->next = NULL;
        return w;
    }
    if (!tp->windowed || tp->n_windows >= WINDOWS_MAX || !(w = calloc(1, sizeof *w))) return NULL;
    if (!(w->mw = ibv_alloc_mw(tp->pd, IBV_MW_TYPE_2))) {
        free(w);
        return NULL;
    }
    tp->n_windows++;
    return w;
}

void rgr_window_closed(rg_tp_t *tp, rgr_window_t *w) {
    rgr_mem_put(tp, w->mem);
    w->mem = NULL;
    w->next = tp->windows;
    tp->windows = w;
}

void rgr_window_drop(rg_tp_t *tp, rgr_window_t *w) {
    (void)ibv_dealloc_mw(w->mw);
    rgr_mem_put(tp, w->mem);
    tp->n_windows--;
    free(w);
}
