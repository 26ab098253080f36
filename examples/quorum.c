/* quorum.c: local training whose members meet now and then and wait for nobody. Each member fits the same small linear
 * model to data of its own; after some steps it gives the change of its parameters, weighted by the samples it has
 * seen, to a round that is over when half of the members and whoever comes within 50 ms have given theirs. Start it
 * with: build/regroup run -n 4 -- build/quorum
 * and slow the last member down with: build/regroup run -n 4 -- build/quorum --slow 150
 * With --window it trains without rounds: the first member owns the parameters, the others read them from its window
 * and add their gradients to it, each at its own pace. It relies on nothing but the public headers. */
#include <regroup.h>
#include <regroup_quorum.h>
#include <regroup_window.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N 8 /* parameters */
#define ROUNDS 30
#define STEPS 5 /* between two rounds */

static void check(rg_group_t *group, const char *what, rg_status_t status) {
    char text[256] = "";
    if (status == RG_OK) return;
    rg_group_errmsg(group, text, sizeof text);
    fprintf(stderr, "quorum: %s: %s (%s); %s\n", what, rg_strerror(status), text, rg_status_advice(status));
    exit(1);
}

static void compute_for(long ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&t, NULL);
}

static float uniform(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / (float)(1 << 23) - 1;
}

/* The mean squared error of one sample and its gradient; the truth is p[i] = i. */
static float sample(const float *p, float *gradient, uint64_t *state) {
    float x[N], error = 0;
    for (int i = 0; i < N; i++) {
        x[i] = uniform(state);
        error += (p[i] - (float)i) * x[i];
    }
    for (int i = 0; i < N; i++) gradient[i] = 2 * error * x[i];
    return error * error;
}

static float train(float *p, int steps, uint64_t *state) {
    float g[N], loss = 0;
    for (int s = 0; s < steps; s++) {
        loss += sample(p, g, state);
        for (int i = 0; i < N; i++) p[i] -= 0.1f * g[i];
    }
    return loss / (float)steps;
}

static void rounds(rg_group_t *group, uint32_t rank, long ms) {
    rg_quorum_config_t config = RG_QUORUM_CONFIG_INIT;
    rg_quorum_t *q;
    rg_error_t err;
    float anchor[N] = { 0 }, p[N], delta[N], mean[N];
    uint64_t state = rank + 1;
    config.count = N;
    config.op = RG_AVG;
    config.late = RG_LATE_NEXT_ROUND;
    config.grace_us = 50000;
    config.history = ROUNDS; /* so that whoever is late can follow all rounds */
    if (rg_quorum_create(group, &config, &q, &err) != RG_OK) {
        fprintf(stderr, "quorum: %s\n", err.text);
        exit(1);
    }
    rg_quorum_result_t r = RG_QUORUM_RESULT_INIT;
    while (r.round < ROUNDS) {
        memcpy(p, anchor, sizeof p);
        float loss = train(p, STEPS, &state);
        compute_for(ms);
        for (int i = 0; i < N; i++) delta[i] = p[i] - anchor[i];
        rg_quorum_input_t input = RG_QUORUM_INPUT_INIT;
        input.weighted = 1;
        input.weight = STEPS;
        /* Who was late takes the results that it missed, and gives its change to the round that is open by then. */
        const float *in = delta;
        do {
            check(group, "a round", rg_quorum_reduce(q, in, mean, &input, 0, &r));
            for (int i = 0; i < N; i++) anchor[i] += mean[i]; /* the same on all members */
            in = NULL;
        } while ((r.carried || r.newest > r.round) && r.round < ROUNDS);
        if (r.round <= 3 || r.round % 10 == 0)
            printf("rank %u, round %llu: loss %.3g; %u contributed, %u late, %g samples%s\n", rank,
                   (unsigned long long)r.round, (double)loss, r.contributors, r.late, r.weight_sum,
                   r.included ? "" : "; this member was late");
    }
    printf("rank %u: first parameters %g, %g, %g\n", rank, (double)anchor[0], (double)anchor[1], (double)anchor[2]);
    check(group, "barrier", rg_barrier(group, NULL, NULL)); /* others may still want results that are kept here */
    rg_quorum_destroy(q);
}

static void window(rg_group_t *group, uint32_t rank, uint32_t n, long ms) {
    rg_window_t *w;
    rg_error_t err;
    uint64_t owner, version = 0, state = rank + 1, all = (uint64_t)(n - 1) * ROUNDS * STEPS;
    float mine[N] = { 0 }, p[N], g[N], loss = 0;
    check(group, "the owner", rg_group_member(group, 0, &owner));
    if (rg_window_register(group, 1, mine, rank == 0 ? N : 0, &w, &err) != RG_OK) {
        fprintf(stderr, "quorum: %s\n", err.text);
        exit(1);
    }
    for (int step = 0; rank != 0 && step < ROUNDS * STEPS; step++) {
        check(group, "get", rg_window_get(w, owner, 0, N, p, 0, &version));
        loss = sample(p, g, &state);
        if (step % STEPS == 0) compute_for(ms);
        check(group, "accumulate", rg_window_accumulate(w, owner, 0, N, g, -0.05f, 0));
    }
    if (rank == 0) check(group, "wait", rg_window_wait(w, all, 0));
    else
        printf("rank %u: last loss %.5f, with parameters after %llu additions\n", rank, (double)loss,
               (unsigned long long)version);
    rg_window_lock(w);
    for (int i = 0; rank == 0 && i < N; i++) printf("%s%.3f", i ? ", " : "parameters: ", (double)mine[i]);
    if (rank == 0) printf(" after %llu additions\n", (unsigned long long)rg_window_count(w));
    rg_window_unlock(w);
    check(group, "barrier", rg_barrier(group, NULL, NULL));
    rg_window_destroy(w);
}

int main(int argc, char **argv) {
    rg_config_t config = RG_CONFIG_INIT;
    rg_info_t me = RG_INFO_INIT;
    rg_group_t *group;
    rg_error_t err;
    long slow = 0;
    int by_window = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--window") == 0) by_window = 1;
        else if (strcmp(argv[i], "--slow") == 0 && i + 1 < argc) slow = atol(argv[++i]);
        else {
            fprintf(stderr, "usage: quorum [--window] [--slow MS]\n");
            return 2;
        }
    }
    if (rg_group_join(&config, &group, &err) != RG_OK) {
        fprintf(stderr, "quorum: %s\n", err.text);
        return 1;
    }
    check(group, "info", rg_group_info(group, &me));
    long ms = me.rank + 1 == me.world_size && slow > 0 ? slow : 40;
    if (by_window) window(group, me.rank, me.world_size, ms);
    else rounds(group, me.rank, ms);
    check(group, "leave", rg_group_leave(group));
    rg_group_destroy(group);
    return 0;
}
