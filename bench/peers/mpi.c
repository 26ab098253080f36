/* mpi.c: MPI_Allreduce for bench/peers.sh, compiled once with Open MPI and once with MPICH. It relies on mpirun and on
 * PEERS_LIBRARY for its name. It ends by _exit() after a last barrier: MPICH's finalize over UCX hangs now and then,
 * which would be measured as a failure of the comparison. */
#include "timing.h"

#include <mpi.h>

static void meet(void) { MPI_Barrier(MPI_COMM_WORLD); }

static void call(void *op, float *in, float *out, size_t count) {
    (void)op;
    MPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    struct timing_op op = { "default", NULL, call, NULL };
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
