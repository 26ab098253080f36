/* api.c: the public functions of groups: joining, boundaries, leaving, what there is to know. Together with the other
 * src/api*.c the only place that sees both a caller and the engine. It must not hold the lock of a group across
 * anything but the engine's own calls. */
#include "api.h"
#include "config.h"
#include "engine/lifecycle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static rg_status_t join_config(const rg_config_t *config, rg_join_t *j, rg_error_t *err) {
    const rg_config_t none = RG_CONFIG_INIT;
    memset(j, 0, sizeof *j);
    rg_status_t st =
        rg_struct_in(&j->config, sizeof j->config, RG_CONFIG_SIZE_FIRST, config ? config : &none, "rg_config_t", err);
    j->config.struct_size = sizeof j->config;
    return st;
}

static rg_status_t open_group(const rg_join_t *j, rg_group_t **out, rg_error_t *err) {
    rg_status_t st = rg_group_open(j, out, err);
    if (st != RG_OK) return st;
    rg_lock(*out);
    rg_roster_t *r = (*out)->phase == RG_PHASE_MEMBER ? rg_roster_for(*out, (*out)->gen) : NULL;
    if (r) (*out)->told_n = r->n;
    rg_roster_put(r);
    rg_unlock(*out);
    return RG_OK;
}

rg_status_t rg_join_with(const rg_config_t *config, const rg_join_first_t *first, rg_group_t **out, rg_error_t *err) {
    rg_join_t j;
    *out = NULL;
    rg_status_t st = join_config(config, &j, err);
    j.first = first;
    return st == RG_OK ? open_group(&j, out, err) : st;
}

rg_status_t rg_group_join(const rg_config_t *config, rg_group_t **out, rg_error_t *err) {
    if (!out)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_group_join: out is NULL; pass the address of an rg_group_t pointer");
    return rg_join_with(config, NULL, out, err);
}

/* An id is text: "RG1 address group". Its coordinator lives as long as the process, so it stays reachable from here. */
struct hosted {
    struct hosted *next;
    rg_coordinator_t *coordinator;
};
static struct hosted *hosted_list;
static pthread_mutex_t hosted_lock = PTHREAD_MUTEX_INITIALIZER;

RG_OS_HELD_OVER_FORKS(hosted_lock)

/* A wildcard address says nothing to others: replace it by one of this host's. */
static rg_status_t reachable_address(const char *bound, char *out, size_t cap, rg_error_t *err) {
    const char *colon = strrchr(bound, ':');
    if (strncmp(bound, "0.0.0.0:", 8) != 0 && strncmp(bound, "[::]:", 5) != 0) {
        snprintf(out, cap, "%s", bound);
        return RG_OK;
    }
    struct sockaddr_storage sa;
    char text[96];
    int n = rg_os_local_addresses(getenv("RG_INTERFACE"), NULL, &sa, 1, err);
    if (n < 1)
        return n < 0
                   ? (rg_status_t)n
                   : rg_fail(err, RG_ERR_SYSTEM, 0, "this host has no address but loopback; set RG_COORDINATOR_LISTEN");
    rg_os_addr_text((const struct sockaddr *)&sa, text, sizeof text);
    *strrchr(text, ':') = 0;
    snprintf(out, cap, "%s%s", text, colon);
    return RG_OK;
}

rg_status_t rg_unique_id(rg_unique_id_t *id, rg_error_t *err) {
    RG_OS_STAY;
    uint8_t random[8];
    char address[96];
    if (!id) return rg_fail(err, RG_ERR_INVALID, 0, "rg_unique_id: id is NULL");
    memset(id, 0, sizeof *id);
    rg_status_t st = rg_os_random(random, sizeof random);
    struct hosted *h = st == RG_OK ? calloc(1, sizeof *h) : NULL;
    if (!h)
        return rg_fail(err, st != RG_OK ? st : RG_ERR_NOMEM, 0, "rg_unique_id: %s",
                       rg_strerror(st != RG_OK ? st : RG_ERR_NOMEM));
    rg_coordinator_config_t cc = RG_COORDINATOR_CONFIG_INIT;
    st = rg_coordinator_start(&cc, &h->coordinator, err);
    if (st == RG_OK) st = reachable_address(rg_coordinator_address(h->coordinator), address, sizeof address, err);
    if (st != RG_OK) {
        rg_coordinator_stop(h->coordinator);
        free(h);
        return st;
    }
    snprintf(id->bytes, sizeof id->bytes, "RG1 %s id-%02x%02x%02x%02x%02x%02x%02x%02x", address, random[0], random[1],
             random[2], random[3], random[4], random[5], random[6], random[7]);
    pthread_mutex_lock(&hosted_lock);
    h->next = hosted_list;
    hosted_list = h;
    pthread_mutex_unlock(&hosted_lock);
    return RG_OK;
}

rg_status_t rg_group_init_rank(uint32_t n, uint32_t rank, const rg_unique_id_t *id, const rg_config_t *config,
                               rg_group_t **out, rg_error_t *err) {
    rg_join_t j;
    char address[128], group[128], text[sizeof id->bytes + 1];
    if (!out || !id) return rg_fail(err, RG_ERR_INVALID, 0, "rg_group_init_rank: %s is NULL", out ? "id" : "out");
    *out = NULL;
    if (!n || rank >= n)
        return rg_fail(err, RG_ERR_INVALID, 0, "rg_group_init_rank: rank %u of %u: ranks are 0 to n - 1", rank, n);
    memcpy(text, id->bytes, sizeof id->bytes);
    text[sizeof id->bytes] = 0;
    if (sscanf(text, "RG1 %127s %127s", address, group) != 2)
        return rg_fail(err, RG_ERR_INVALID, 0,
                       "rg_group_init_rank: this is no id; make one with rg_unique_id() in one process and give all "
                       "128 bytes to the others");
    rg_status_t st = join_config(config, &j, err);
    if (st != RG_OK) return st;
    j.config.coordinator = address;
    j.config.group = group;
    j.config.min_size = n;
    j.config.order = 0;
    j.n = n;
    j.rank = rank;
    return open_group(&j, out, err);
}

void rg_caught_up(rg_group_t *h) {
    rg_group_t *g = rg_root(h);
    rg_lock(g);
    if (g->stale) rg_stale_set(g, 0);
    rg_unlock(g);
}

/* What a child must leave to its root. */
static rg_status_t root_only(rg_group_t *h, const char *what) {
    rg_status_t st = rg_usable(h);
    if (st != RG_OK || !h->root) return st;
    return rg_refuse(h, RG_ERR_INVALID, "%s belongs to the group that was joined, not to one of its sub-groups", what);
}

rg_status_t rg_group_boundary(rg_group_t *g, rg_change_t *change) {
    rg_change_t c = RG_CHANGE_INIT;
    rg_status_t st = root_only(g, "rg_group_boundary");
    if (st == RG_OK) st = rg_change_check(change, NULL);
    if (st != RG_OK) return st;
    /* What became of it differs between members where a pair ran out of time, and all have to pass the boundary or
     * nobody. What ended the group ends the boundary too. */
    if (g->cfg.measure_every && g->gen % g->cfg.measure_every == 0 && g->gen) (void)rg_group_measure(g);
    rg_lock(g);
    st = rg_group_pass_boundary(g, &c);
    if (st == RG_OK) g->told_n = c.world_size;
    rg_unlock(g);
    if (st == RG_OK) rg_change_out(change, &c);
    return st;
}

rg_status_t rg_group_leave(rg_group_t *g) {
    rg_status_t st = root_only(g, "rg_group_leave");
    return st == RG_OK ? rg_group_close(g) : st;
}

rg_status_t rg_group_abort(rg_group_t *h) {
    rg_status_t st = rg_usable(h);
    if (st != RG_OK) return st;
    rg_lock(rg_root(h));
    if (h->root) rg_child_end(h, RG_ERR_ABORTED, "rg_group_abort of a sub-group was called");
    else rg_group_over(h, RG_ERR_ABORTED, "rg_group_abort was called");
    rg_unlock(rg_root(h));
    return RG_OK;
}

void rg_group_destroy(rg_group_t *h) {
    if (!h) return;
    rg_batch_forget(h);
    if (rg_group_inherited(rg_root(h))) return; /* a child process would write to shared descriptors */
    if (h->root) rg_child_destroy(h);
    else rg_group_free(h);
}

/* What is known of a group that this process is a member of. Locked. */
static rg_status_t info_now(rg_group_t *h, rg_info_t *i) {
    rg_group_t *g = rg_root(h);
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER && !h->ended ? rg_roster_for(h, h->gen) : NULL;
    i->member_id = g->self_id;
    i->boundary = g->gen;
    i->operations = g->operations;
    i->view_changes = g->view_changes;
    i->last_change_ns = g->last_change_ns;
    i->stale = (uint32_t)g->stale;
    if (!r) {
        rg_status_t st = rg_handle_ended(h);
        return st != RG_OK ? st : RG_ERR_NOMEM;
    }
    i->rank = r->rank;
    i->world_size = h->told_n = r->n;
    i->epoch = rg_member_view(g->core)->epoch;
    i->coordinator_lost = (uint32_t)rg_member_coordinator_lost(g->core);
    i->newcomers_waiting = (uint32_t)rg_member_newcomers(g->core);
    i->holds_office = g->office != NULL;
    g->tp_ops->stats(g->tp, RG_TP_ALL_LINKS, &i->bytes_sent, &i->bytes_received);
    if (g->tp_ops->work) g->tp_ops->work(g->tp, &i->bytes_copied, &i->bytes_reduced);
    rg_roster_put(r);
    return RG_OK;
}

rg_status_t rg_shape_ids(rg_group_t *h, uint32_t *n, uint32_t *rank, uint64_t *epoch, uint64_t *ids, uint32_t cap) {
    rg_status_t st = rg_usable(h);
    if (st != RG_OK) return st;
    rg_group_t *g = rg_root(h);
    rg_lock(g);
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER && !h->ended ? rg_roster_for(h, h->gen) : NULL;
    if (r) {
        *n = h->told_n = r->n;
        *rank = r->rank;
        *epoch = r->data_epoch;
        if (cap != 0) memcpy(ids, r->ids, (r->n < cap ? r->n : cap) * sizeof *ids);
        rg_roster_put(r);
    } else {
        st = g->over ? g->over : h->ended ? h->ended : RG_ERR_NOMEM;
    }
    rg_unlock(g);
    return st;
}

rg_status_t rg_shape(rg_group_t *h, uint32_t *n, uint32_t *rank, uint64_t *epoch) {
    return rg_shape_ids(h, n, rank, epoch, NULL, 0);
}

void rg_shape_hosts(rg_group_t *h, uint32_t *host, uint32_t n, rg_cost_model_t *m) {
    rg_group_t *g = rg_root(h);
    for (uint32_t i = 0; i < n; i++) host[i] = i;
    memset(m, 0, sizeof *m);
    rg_lock(g);
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER && !h->ended ? rg_roster_for(h, h->gen) : NULL;
    if (r) *m = r->model;
    if (r && r->n == n && r->topo.levels) memcpy(host, r->topo.group, n * sizeof *host);
    rg_roster_put(r);
    rg_unlock(g);
}

rg_status_t rg_group_info(rg_group_t *h, rg_info_t *info) {
    rg_info_t i = RG_INFO_INIT;
    rg_status_t st = info ? rg_usable(h) : RG_ERR_INVALID;
    if (st == RG_OK) st = rg_info_check(info, NULL);
    if (st != RG_OK) return st;
    rg_lock(rg_root(h));
    st = info_now(h, &i);
    rg_unlock(rg_root(h));
    rg_info_out(info, &i);
    return st;
}

rg_status_t rg_group_member(rg_group_t *h, uint32_t rank, uint64_t *member_id) {
    rg_status_t st = member_id ? rg_usable(h) : RG_ERR_INVALID;
    if (st != RG_OK) return st;
    rg_group_t *g = rg_root(h);
    rg_lock(g);
    st = g->over ? g->over : h->ended ? h->ended : RG_ERR_INVALID;
    rg_roster_t *r = g->phase == RG_PHASE_MEMBER && !h->ended ? rg_roster_for(h, h->gen) : NULL;
    if (r && rank < r->n) {
        *member_id = r->ids[rank];
        st = RG_OK;
    }
    rg_roster_put(r);
    rg_unlock(g);
    return st;
}

size_t rg_group_errmsg(rg_group_t *h, char *buf, size_t cap) {
    if (!h) return 0;
    rg_group_t *g = rg_root(h);
    if (rg_group_inherited(g)) {
        static const char text[] =
            "this process was forked from the member, which alone may use the handle; join anew here";
        if (buf && cap) snprintf(buf, cap, "%s", text);
        return sizeof text - 1;
    }
    rg_lock(g);
    const char *text = g->phase == RG_PHASE_OVER && !h->errmsg[0] ? g->errmsg : h->errmsg;
    size_t n = strlen(text);
    if (buf && cap) snprintf(buf, cap, "%s", text);
    rg_unlock(g);
    return n;
}
