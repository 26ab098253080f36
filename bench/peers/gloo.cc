// gloo.cc: Gloo's all-reduces over its TCP transport for bench/peers.sh: N forked processes on 127.0.0.1. In place its
// four algorithms are offered (the two older classes reduce in place only), out of place the two that can. It relies on
// a folder in /dev/shm for the rendezvous, which it removes.
#include "timing.h"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using Run = std::function<void()>;
static std::shared_ptr<gloo::rendezvous::Context> context;

static Run options_run(bool ring, float *in, float *out, size_t count) {
    return [=] {
        gloo::AllreduceOptions o(context);
        o.setAlgorithm(ring ? gloo::AllreduceOptions::Algorithm::RING : gloo::AllreduceOptions::Algorithm::BCUBE);
        if (in != out) o.setInput(in, count);
        o.setOutput(out, count);
        o.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
        gloo::allreduce(o);
    };
}

static void *prepare(const char *algorithm, float *in, float *out, size_t count) {
    std::string name(algorithm);
    std::vector<float *> ptrs{ out };
    if (name == "halving_doubling") {
        auto a = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context, ptrs, (int)count);
        return new Run([a] { a->run(); });
    }
    if (name == "ring_chunked") {
        auto a = std::make_shared<gloo::AllreduceRingChunked<float>>(context, ptrs, (int)count);
        return new Run([a] { a->run(); });
    }
    return new Run(options_run(name == "ring", in, out, count));
}

static void call(void *op, float *, float *, size_t) { (*static_cast<Run *>(op))(); }
static void finish(void *op) { delete static_cast<Run *>(op); }

static int member(int rank, int ranks, const std::string &folder) {
    gloo::transport::tcp::attr attr("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(folder);
    context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->connectFullMesh(store, device);
    timing t = timing_open("gloo", rank, ranks);
    int rc = 0;
    for (const char *name : { "ring", "bcube", "halving_doubling", "ring_chunked" }) {
        bool older = !strcmp(name, "halving_doubling") || !strcmp(name, "ring_chunked");
        if (older && !t.in_place) continue;
        timing_op op = { name, prepare, call, finish };
        rc |= timing_sweep(&t, &op);
    }
    timing_meet(&t);
    context.reset();
    return rc;
}

int main(int argc, char **argv) {
    int ranks = argc > 1 ? atoi(argv[1]) : 0, bad = 0, status;
    char folder[] = "/dev/shm/peers-gloo.XXXXXX";
    if (ranks < 2 || ranks > TIMING_RANKS) return fprintf(stderr, "usage: gloo RANKS\n"), 2;
    if (!mkdtemp(folder)) timing_die("mkdtemp");
    for (int r = 0; r < ranks; r++) {
        if (fork()) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int rc = 1;
        try {
            rc = member(r, ranks, folder);
        } catch (const std::exception &e) {
            fprintf(stderr, "gloo: rank %d: %s\n", r, e.what());
        }
        fflush(stdout);
        _exit(rc);
    }
    while (wait(&status) > 0) bad |= status != 0;
    std::string remove = std::string("rm -rf ") + folder;
    return system(remove.c_str()) || bad;
}
