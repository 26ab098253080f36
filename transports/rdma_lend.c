/* rdma_lend.c: memory of callers that the peer of a link may read when it likes (lend, fetch and the others of the
 * table). The owner's adapter opens two memory windows for the link, one over the memory and one over its stamp, and
 * the peer is told their keys, which let it read and nothing else; after that the owner's processor has no part in it.
 * A key that is taken back while its holder reads would break the connection, and there must be no need to wait for
 * that one either: so the memory stays with the adapter until the holder has said that it reads no more, or the link is
 * gone. Who reads does so in three steps, of which none begins before the last one's bytes are here, whatever order an
 * adapter reads memory in. Relies on rdma_msg.c for what is sent. It must not lend memory that was not told of
 * (rdma_mem.c), nor let a read that has ended for its user reach the user's memory. */
#include "rdma_internal.h"
#include "os/os.h"
#include "rdma_hooks.h"

#include <stdlib.h>
#include <string.h>

#define LEASES_MAX 256u /* of a process: two windows each, of those that large messages need, too */
#define LENT_MAX 4096u  /* by one peer */
#define GETS_MAX 16u    /* slots of a process that wait for what is read */
#define STAMP_BYTES (RG_TP_STAMP * (uint32_t)sizeof(uint64_t))
#define BYTES_AT 64u /* in the slot: the stamps are before that */

static rgr_side_t *side_up(rg_tp_t *tp, uint32_t link) {
    const rg_mbox_link_t *l = rg_mbox_link(&tp->box, link);
    rgr_side_t *s = link < tp->n_sides ? tp->sides[link] : NULL;
    return l && l->state == MBOX_UP && s && s->queue_pair ? s : NULL;
}

/* ---- The owner --------------------------------------------------------------------------------------------------- */

static int holds(const rgr_lease_t *k) { return k->state == RGR_LEASE_NEW || k->state == RGR_LEASE_TOLD; }

static void lease_free(rg_tp_t *tp, rgr_side_t *s, rgr_lease_t **at) {
    rgr_lease_t *k = *at;
    *at = k->next;
    for (int i = 0; i < 2; i++) {
        rgr_window_spent(s, &k->window[i]);
        rgr_mem_put(tp, k->mem[i]);
    }
    tp->n_leases--;
    free(k);
}

int rgr_lend(rg_tp_t *tp, uint32_t link, const rg_tp_lend_t *lend) {
    rgr_side_t *s = side_up(tp, link);
    if (!s || !s->serves || !tp->windowed || !lend->bytes) return 0;
    for (const rgr_lease_t *k = s->leases; k; k = k->next)
        if (k->l.name == lend->name && holds(k)) return 1;
    rgr_lease_t *k = tp->n_leases < LEASES_MAX ? calloc(1, sizeof *k) : NULL;
    if (!k) return 0;
    tp->n_leases++;
    k->l = *lend;
    k->next = s->leases;
    s->leases = k;
    k->mem[0] = rgr_mem_get(tp, lend->memory, lend->bytes);
    k->mem[1] = k->mem[0] ? rgr_mem_get(tp, lend->stamp, STAMP_BYTES) : NULL;
    if (!k->mem[1]) {
        lease_free(tp, s, &s->leases);
        return 0;
    }
    if (!++s->next_lease) s->next_lease = 1;
    k->sid = s->next_lease;
    s->lend_due++;
    rgr_pump(tp, s);
    return 1;
}

void rgr_reclaim(rg_tp_t *tp, uint64_t name) {
    for (uint32_t i = 0; i < tp->n_sides; i++) {
        rgr_side_t *s = tp->sides[i];
        for (rgr_lease_t **at = s ? &s->leases : NULL; at && *at;) {
            rgr_lease_t *k = *at;
            if (k->l.name != name || !holds(k)) {
                at = &k->next;
            } else if (k->state == RGR_LEASE_NEW) {
                s->lend_due--;
                lease_free(tp, s, at); /* nobody has been told its keys */
            } else {
                k->state = RGR_LEASE_ENDS;
                s->lend_due++;
                at = &k->next;
            }
        }
        if (s && s->lend_due) rgr_pump(tp, s);
    }
}

/* Opens what is not open yet and says so. */
static int lease_tell(rg_tp_t *tp, rgr_side_t *s, rgr_lease_t **at) {
    rgr_lease_t *k = *at;
    const void *from[2] = { k->l.memory, k->l.stamp };
    const uint64_t bytes[2] = { k->l.bytes, STAMP_BYTES };
    if (!rgr_room(s, 3)) return 0;
    for (int i = 0; i < 2; i++) {
        int rc = k->window[i] ? 1 : rgr_window_open(tp, s, k->mem[i], from[i], bytes[i], &k->window[i]);
        if (rc < 0) return rc;
        if (rc) continue;
        s->lend_due--; /* there are no more windows, so that one is not lent */
        lease_free(tp, s, at);
        return 1;
    }
    rgr_head_t h = { .type = RGR_LEND,
                     .sid = k->sid,
                     .key = k->window[0]->mw->rkey,
                     .offset = (uintptr_t)k->l.memory,
                     .total = k->l.bytes,
                     .lent = k->l.name,
                     .stamp_key = k->window[1]->mw->rkey,
                     .stamp = (uintptr_t)k->l.stamp };
    int rc = rgr_post_head(tp, s, &h);
    if (rc != 1) return rc;
    k->state = RGR_LEASE_TOLD;
    s->lend_due--;
    return 1;
}

static void lent_free(rgr_side_t *s, rgr_lent_t **at) {
    rgr_lent_t *k = *at;
    *at = k->next;
    s->n_lent--;
    free(k);
}

int rgr_lend_tell(rg_tp_t *tp, rgr_side_t *s) {
    for (rgr_lease_t **at = &s->leases; *at; at = &(*at)->next) {
        rgr_lease_t *k = *at;
        rgr_head_t h = { .type = RGR_RECALL, .sid = k->sid };
        if (k->state == RGR_LEASE_NEW) return lease_tell(tp, s, at);
        if (k->state != RGR_LEASE_ENDS) continue;
        int rc = rgr_post_head(tp, s, &h);
        if (rc != 1) return rc;
        k->state = RGR_LEASE_RECALLED;
        s->lend_due--;
        return 1;
    }
    for (rgr_lent_t **at = &s->lent; *at; at = &(*at)->next) {
        rgr_head_t h = { .type = RGR_BACK, .sid = (*at)->sid };
        if (!(*at)->recalled || (*at)->uses) continue;
        int rc = rgr_post_head(tp, s, &h);
        if (rc != 1) return rc;
        lent_free(s, at);
        s->lend_due--;
        return 1;
    }
    return 0;
}

/* ---- Who reads --------------------------------------------------------------------------------------------------- */

static rgr_lent_t *lent_of(const rgr_side_t *s, uint64_t name) {
    rgr_lent_t *k = s->lent;
    while (k && (k->name != name || k->recalled)) k = k->next;
    return k;
}

/* The peer is to hear that one is given back. */
static void back_due(rgr_side_t *s) { s->lend_due += !rgr_hooks.keeps_lent; }

static void get_free(rg_tp_t *tp, rgr_side_t *s, rgr_get_t *get) {
    rgr_get_t **at = &s->gets;
    while (*at != get) at = &(*at)->next;
    *at = get->next;
    get->slot->next = tp->free_sends;
    tp->free_sends = get->slot;
    rgr_mem_put(tp, get->mem);
    if (!--get->from->uses && get->from->recalled) back_due(s);
    tp->n_gets--;
    free(get);
}

static void get_ended(rg_tp_t *tp, rgr_side_t *s, const rgr_get_t *get, rg_tp_event_t event, rg_tp_status_t st) {
    tp->box.n_ops--;
    rg_mbox_push(&tp->box, event, st, s->index, get->f.cookie, NULL);
}

int rgr_fetch(rg_tp_t *tp, uint32_t link, const rg_tp_fetch_t *f) {
    rgr_side_t *s = side_up(tp, link);
    rgr_lent_t *k = s && s->reads_max ? lent_of(s, f->name) : NULL;
    if (!k || f->off > k->bytes || f->len > k->bytes - f->off) return 0;
    if (tp->n_gets == GETS_MAX || !tp->free_sends || rg_mbox_reserve(&tp->box, 1) != 0) return 0;
    rgr_mem_t *mem = f->len ? rgr_mem_get(tp, f->dst, f->len) : NULL;
    rgr_get_t *get = mem || f->len <= RGR_SLOT - BYTES_AT ? calloc(1, sizeof *get) : NULL, **tail = &s->gets;
    if (!get) {
        rgr_mem_put(tp, mem);
        return 0;
    }
    *get = (rgr_get_t){ .f = *f, .from = k, .slot = tp->free_sends, .mem = mem };
    tp->free_sends = get->slot->next;
    k->uses++;
    tp->n_gets++;
    tp->box.n_ops++;
    while (*tail) tail = &(*tail)->next;
    *tail = get;
    rgr_pump(tp, s);
    return 1;
}

/* Bytes of the step that it is in; what one read of the adapter is to fetch next, from where to where. */
static uint64_t step_bytes(const rgr_get_t *get) { return get->part == 1 ? get->f.len : STAMP_BYTES; }

static int begin_read(rg_tp_t *tp, rgr_side_t *s, rgr_get_t *get) {
    const rgr_lent_t *k = get->from;
    uint64_t left = step_bytes(get) - get->begun;
    uint32_t n = left < RGR_READ ? (uint32_t)left : RGR_READ;
    int direct = get->part == 1 && get->mem;
    uint32_t at = get->part == 0 ? 0 : get->part == 1 ? BYTES_AT : STAMP_BYTES;
    struct ibv_sge sge = { .length = n };
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED
    };
    sge.addr = direct ? (uintptr_t)get->f.dst + get->begun : (uintptr_t)get->slot->bytes + at + get->begun;
    sge.lkey = direct ? get->mem->mr->lkey : get->slot->mr->lkey;
    wr.wr.rdma.remote_addr = (get->part == 1 ? k->remote + get->f.off : k->stamp) + get->begun;
    wr.wr.rdma.rkey = get->part == 1 ? k->key : k->stamp_key;
    get->begun += n;
    s->reads++;
    return rgr_hand_over(tp, s, &wr,
                         (rgr_work_t){ .slot = RGR_NO_SLOT, .bytes = n, .mem = direct ? get->mem : NULL, .get = get });
}

int rgr_lend_read(rg_tp_t *tp, rgr_side_t *s) {
    if (s->reads >= s->reads_max || !rgr_room(s, 1)) return 0;
    for (rgr_get_t *get = s->gets; get; get = get->next)
        if (!get->stopped && get->begun < step_bytes(get)) return begin_read(tp, s, get);
    return 0;
}

/* The step after this one; 3: there is none. */
static uint32_t next_part(const rgr_get_t *get) {
    if (rgr_hooks.early_stamp) return get->part == 0 ? 2 : get->part == 2 && get->f.len ? 1 : 3;
    return get->part == 0 && !get->f.len ? 2 : get->part + 1;
}

void rgr_get_read(rg_tp_t *tp, rgr_side_t *s, rgr_get_t *get) {
    s->reads--;
    if (--get->busy) return;
    if (get->stopped) {
        get_free(tp, s, get);
        return;
    }
    if (get->begun < step_bytes(get)) return;
    get->part = next_part(get);
    get->begun = 0;
    if (get->part < 3) return;
    const uint8_t *here = get->slot->bytes;
    memcpy(get->f.before, here, STAMP_BYTES);
    memcpy(get->f.after, here + STAMP_BYTES, STAMP_BYTES);
    if (!get->mem && get->f.len) {
        memcpy(get->f.dst, here + BYTES_AT, get->f.len);
        tp->copied += get->f.len;
    }
    tp->box.links[s->index]->received += get->f.len;
    get_ended(tp, s, get, RG_TP_RECEIVED, RG_TP_DONE);
    get_free(tp, s, get);
}

/* Whether the adapter may still write to memory of this one's user, who has been told that it has ended. */
static int reaches(const rg_tp_t *tp, uint32_t link, const rgr_get_t *which) {
    const rgr_get_t *get = tp->sides[link]->gets;
    while (get && get != which) get = get->next;
    return get && get->mem && get->busy;
}

/* As a fence does: what is under way cannot be called back, but comes soon, or the link ends. */
void rgr_unfetch(rg_tp_t *tp, uint32_t link, uint64_t cookie) {
    rgr_side_t *s = side_up(tp, link);
    rgr_get_t *get = s ? s->gets : NULL;
    uint64_t begin = rg_os_now_ns();
    while (get && (get->stopped || get->f.cookie != cookie)) get = get->next;
    if (!get) return;
    get_ended(tp, s, get, RG_TP_FAILED, RG_TP_FENCED);
    get->stopped = 1;
    if (!get->busy) {
        get_free(tp, s, get);
        rgr_pump(tp, s);
        return;
    }
    while (reaches(tp, link, get) && !rgr_hooks.no_fence_wait) {
        rgr_completions(tp);
        if (reaches(tp, link, get) && rg_os_now_ns() - begin >= s->quiet_ns)
            rgr_down(tp, link, "rdma: the peer's adapter does not answer while its memory is read");
    }
}

static const char *lent_new(rgr_side_t *s, const rgr_head_t *h) {
    if (s->n_lent == LENT_MAX) return "more is lent than anybody lends";
    rgr_lent_t *k = calloc(1, sizeof *k);
    if (!k) return "no memory for what is lent";
    *k = (rgr_lent_t){ .next = s->lent,
                       .name = h->lent,
                       .remote = h->offset,
                       .bytes = h->total,
                       .stamp = h->stamp,
                       .sid = h->sid,
                       .key = h->key,
                       .stamp_key = h->stamp_key };
    s->lent = k;
    s->n_lent++;
    return NULL;
}

const char *rgr_on_lending(rg_tp_t *tp, rgr_side_t *s, const rgr_head_t *h) {
    if (h->type == RGR_LEND) return lent_new(s, h);
    for (rgr_lent_t *k = s->lent; k && h->type == RGR_RECALL; k = k->next) {
        if (k->sid != h->sid || k->recalled) continue;
        k->recalled = 1;
        if (!k->uses) back_due(s);
        return NULL;
    }
    for (rgr_lease_t **at = &s->leases; *at && h->type == RGR_BACK; at = &(*at)->next) {
        if ((*at)->sid != h->sid || (*at)->state != RGR_LEASE_RECALLED) continue;
        lease_free(tp, s, at);
        return NULL;
    }
    return "something is given or taken back that was not lent";
}

void rgr_lend_ends(rg_tp_t *tp, rgr_side_t *s) {
    while (s->gets) {
        if (!s->gets->stopped) get_ended(tp, s, s->gets, RG_TP_FAILED, RG_TP_GONE);
        get_free(tp, s, s->gets);
    }
    while (s->leases) lease_free(tp, s, &s->leases);
    while (s->lent) lent_free(s, &s->lent);
    s->lend_due = 0;
}
