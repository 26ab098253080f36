// gloo.cc: Gloo's collectives over its TCP transport (it has no other for one host) for bench/peers.sh: N forked
// processes on 127.0.0.1. Where Gloo has several algorithms all are offered. Its older classes work in place only: out
// of place they are given the copy that a caller would make. Its all-to-all has no form in place and is left out there.
// It relies on a folder in /dev/shm for the rendezvous, which it removes.
#include "timing.h"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
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

static Run all_reduce(struct timing *t, const std::string &name) {
    float *in = t->in, *out = t->out;
    size_t count = t->whole;
    if (name == "halving_doubling" || name == "ring_chunked") {
        std::shared_ptr<gloo::Algorithm> a;
        std::vector<float *> ptrs{ out };
        if (name == "ring_chunked") a = std::make_shared<gloo::AllreduceRingChunked<float>>(context, ptrs, (int)count);
        else a = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context, ptrs, (int)count);
        return [=] {
            if (in != out) memcpy(out, in, count * sizeof(float));
            a->run();
        };
    }
    return [=] {
        gloo::AllreduceOptions o(context);
        o.setAlgorithm(name == "ring" ? gloo::AllreduceOptions::Algorithm::RING
                                      : gloo::AllreduceOptions::Algorithm::BCUBE);
        if (in != out) o.setInput(in, count);
        o.setOutput(out, count);
        o.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
        gloo::allreduce(o);
    };
}

// The result comes at the beginning of the buffer, and the input is overwritten: out of place it is copied first.
static Run reduce_scatter(struct timing *t) {
    auto scratch = std::make_shared<std::vector<float>>(t->in_place ? 0 : t->whole);
    float *in = t->in, *work = t->in_place ? t->in : scratch->data();
    size_t count = t->whole;
    std::vector<int> counts(t->ranks, (int)t->segment);
    auto a = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(context, std::vector<float *>{ work },
                                                                         (int)count, counts);
    t->result = work;
    return [=] {
        if (in != work) memcpy(work, in, count * sizeof(float));
        a->run();
        (void)scratch->size();
    };
}

static Run others(struct timing *t) {
    float *in = t->in, *out = t->out;
    size_t whole = t->whole, segment = t->segment;
    bool in_place = t->in_place;
    if (t->coll == TIMING_ALL_GATHER)
        return [=] {
            gloo::AllgatherOptions o(context);
            if (!in_place) o.setInput(in, segment);
            o.setOutput(out, whole);
            gloo::allgather(o);
        };
    if (t->coll == TIMING_BROADCAST)
        return [=] {
            gloo::BroadcastOptions o(context);
            o.setOutput(out, whole);
            o.setRoot(0);
            gloo::broadcast(o);
        };
    return [=] {
        gloo::AlltoallOptions o(context);
        o.setInput(in, whole);
        o.setOutput(out, whole);
        gloo::alltoall(o);
    };
}

static void *prepare(struct timing *t, const char *algorithm) {
    if (t->coll == TIMING_ALL_REDUCE) return new Run(all_reduce(t, algorithm));
    if (t->coll == TIMING_REDUCE_SCATTER) return new Run(reduce_scatter(t));
    return new Run(others(t));
}

static void call(struct timing *, void *op) { (*static_cast<Run *>(op))(); }
static void finish(void *op) { delete static_cast<Run *>(op); }

static std::vector<const char *> algorithms(const timing &t) {
    if (t.coll == TIMING_ALL_REDUCE) return { "ring", "bcube", "halving_doubling", "ring_chunked" };
    if (t.coll == TIMING_REDUCE_SCATTER) return { "halving_doubling" };
    if (t.coll == TIMING_ALL_TO_ALL && t.in_place) return {};
    return { "default" };
}

static int member(int rank, int ranks, const std::string &folder) {
    gloo::transport::tcp::attr attr("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(folder);
    context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->connectFullMesh(store, device);
    timing t = timing_open("gloo", rank, ranks);
    int rc = 0;
    auto names = algorithms(t);
    for (const char *name : names) {
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
