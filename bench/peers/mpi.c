/* mpi.c: MPI's collectives for bench/peers.sh, compiled once with Open MPI and once with MPICH. It relies on mpirun, on
 * PEERS_LIBRARY for its name and on PEERS_ALGORITHM for what to call the setting it runs under. Asked to, it ends by
 * _exit() after a last barrier: MPICH's finalize over UCX hangs now and then, which would be measured as a failure of
 * the comparison. */
#include "timing.h"

#include <mpi.h>

static void meet(void) { MPI_Barrier(MPI_COMM_WORLD); }

static void call(struct timing *t, void *op) {
    int whole = (int)t->whole, segment = (int)t->segment;
    const void *in = t->in_place ? MPI_IN_PLACE : t->in;
    (void)op;
    switch (t->coll) {
    case TIMING_ALL_REDUCE: MPI_Allreduce(in, t->out, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case TIMING_ALL_GATHER: MPI_Allgather(in, segment, MPI_FLOAT, t->out, segment, MPI_FLOAT, MPI_COMM_WORLD); break;
    case TIMING_REDUCE_SCATTER: /* in place: the whole input is where the result goes, to its beginning */
        MPI_Reduce_scatter_block(in, t->in_place ? t->in : t->out, segment, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case TIMING_BROADCAST: MPI_Bcast(t->out, whole, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    default: MPI_Alltoall(in, segment, MPI_FLOAT, t->out, segment, MPI_FLOAT, MPI_COMM_WORLD); break;
    }
}

static void *prepare(struct timing *t, const char *algorithm) {
    (void)algorithm;
    if (t->coll == TIMING_REDUCE_SCATTER && t->in_place) t->result = t->in;
    return NULL;
}

int main(int argc, char **argv) {
    struct timing_op op = { timing_env("PEERS_ALGORITHM", "default"), prepare, call, NULL };
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct timing t = timing_open(timing_env("PEERS_LIBRARY", "mpi"), rank, ranks);
    t.barrier = meet;
    int rc = timing_sweep(&t, &op);
    MPI_Barrier(MPI_COMM_WORLD);
    fflush(stdout);
    if (getenv("PEERS_NO_FINALIZE")) {
        timing_meet(&t); /* nobody resets a connection that another still uses */
        _exit(rc);
    }
    MPI_Finalize();
    return rc;
}
