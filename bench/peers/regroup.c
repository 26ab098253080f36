/* regroup.c: our collectives for bench/peers.sh: N forked processes and a coordinator, all settings at their defaults
 * (commit, undo and heartbeats are on) but for what RG_... in the environment says. With PEERS_ALLOC=1 the buffers come
 * from rg_alloc(). It relies on the public interface only. */
#include "regroup.h"
#include "timing.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static rg_group_t *group;

static void meet(void) {
    if (rg_barrier(group, NULL, NULL)) timing_die("rg_barrier");
}

static void *alloc(size_t bytes) {
    void *p = NULL;
    rg_error_t err;
    if (rg_alloc(bytes, &p, &err)) fprintf(stderr, "rg_alloc: %s\n", err.text);
    return p;
}

static void call(struct timing *t, void *op) {
    rg_status_t s;
    (void)op;
    switch (t->coll) {
    case TIMING_ALL_REDUCE: s = rg_all_reduce(group, t->in, t->out, t->whole, RG_F32, RG_SUM, NULL, NULL); break;
    case TIMING_ALL_GATHER: s = rg_all_gather(group, t->in, t->out, t->segment, RG_F32, NULL, NULL); break;
    case TIMING_REDUCE_SCATTER:
        s = rg_reduce_scatter(group, t->in, t->out, t->segment, RG_F32, RG_SUM, NULL, NULL);
        break;
    case TIMING_BROADCAST: s = rg_broadcast(group, t->out, t->whole, RG_F32, 0, NULL, NULL); break;
    default: s = rg_all_to_all(group, t->in, t->out, t->segment, RG_F32, NULL, NULL); break;
    }
    if (s) {
        char text[256];
        rg_group_errmsg(group, text, sizeof text);
        fprintf(stderr, "regroup: %s: %s: %s\n", timing_env("PEERS_COLLECTIVE", ""), rg_strerror(s), text);
        _exit(1);
    }
}

static int member(int rank, int ranks, const char *address) {
    struct timing t = timing_open(timing_env("PEERS_LIBRARY", "regroup"), rank, ranks);
    struct timing_op op = { "default", NULL, call, NULL };
    rg_config_t cfg = RG_CONFIG_INIT;
    rg_error_t err;
    cfg.coordinator = address;
    cfg.group = "peers";
    cfg.min_size = (uint32_t)ranks;
    cfg.order = (uint32_t)rank;
    if (rg_group_join(&cfg, &group, &err)) {
        fprintf(stderr, "regroup: %s\n", err.text);
        return 1;
    }
    t.barrier = meet;
    if (atoi(timing_env("PEERS_ALLOC", "0"))) {
        t.alloc = alloc;
        t.release = rg_free_memory;
    }
    int rc = timing_sweep(&t, &op);
    rg_group_leave(group);
    rg_group_destroy(group);
    return rc;
}

int main(int argc, char **argv) {
    int ranks = argc > 1 ? atoi(argv[1]) : 0, bad = 0, status, p[2];
    char address[128] = "";
    if (ranks < 2 || ranks > TIMING_RANKS) return fprintf(stderr, "usage: regroup RANKS\n"), 2;
    if (pipe(p)) timing_die("pipe");
    for (int r = 0; r < ranks; r++) { /* before this process has the coordinator's thread */
        if (fork()) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(p[1]);
        if (read(p[0], address, sizeof address) != (ssize_t)sizeof address) _exit(1);
        int rc = member(r, ranks, address);
        fflush(stdout);
        _exit(rc);
    }
    rg_coordinator_config_t cfg = RG_COORDINATOR_CONFIG_INIT;
    rg_coordinator_t *co;
    rg_error_t err;
    cfg.listen = "127.0.0.1:0";
    if (rg_coordinator_start(&cfg, &co, &err)) return fprintf(stderr, "regroup: %s\n", err.text), 1;
    snprintf(address, sizeof address, "%s", rg_coordinator_address(co));
    for (int r = 0; r < ranks; r++)
        if (write(p[1], address, sizeof address) != (ssize_t)sizeof address) timing_die("write");
    while (wait(&status) > 0) bad |= status != 0;
    rg_coordinator_stop(co);
    return bad;
}
