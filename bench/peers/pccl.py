"""PCCL's all-reduce (the wheel pypccl, over TCP) for bench/wan-links.sh: one process a member, wherever each is started.

  pccl.py probe                       ends with 0 and its version, or with 1 and why PCCL cannot be used, on one line
  pccl.py master IP:PORT              what its members need to find each other; until it is told to end
  pccl.py member IP:PORT RANK RANKS   one member. --bytes N of f32; --pool N connections to a neighbour, and as many
                                      slices of the vector under way at once, which is the method that was published for
                                      long ways (0: one call on what it does by itself); --slices N; --warmup N --calls N;
                                      --limit SECONDS

Every call has fresh inputs, starts after a small all-reduce of everybody, and counts as long as the slowest member took
(what `regroup bench` does too). Every result is compared in full, the untimed ones as well: a wrong one ends with 1. The
member of rank 0 prints one line of JSON. Whoever is not done in time says where each thread stands, and ends with 1.
"""
import argparse
import faulthandler
import importlib.metadata
import json
import os
import signal
import statistics
import sys
import threading
import time

# This file has the name of the module that it needs.
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]

PERIOD = 13


def library():
    """numpy and pccl, or an exception of any kind: the wheel loads a library of its own."""
    import numpy
    import pccl

    return numpy, pccl


def probe():
    try:
        library()
        print("pypccl", importlib.metadata.version("pypccl"))
        return 0
    except Exception as e:
        print(" ".join(f"{type(e).__name__}: {e}".split())[:200])
        return 1


def master(address):
    _, pccl = library()
    ended = threading.Event()
    for s in signal.SIGINT, signal.SIGTERM:
        signal.signal(s, lambda *_: ended.set())
    m = pccl.MasterNode(listen_address=address)
    m.run()
    print("ready", flush=True)
    ended.wait()
    m.interrupt()
    return 0


class Member:
    def __init__(self, args):
        self.np, self.pccl = library()
        np = self.np
        self.args = args
        self.count = max(args.bytes // 4, 64)
        self.slices = args.slices or max(args.pool, 1)
        self.calls = 0
        self.input = np.empty(self.count, np.float32)
        self.output = np.empty(self.count, np.float32)
        self.pulse = np.zeros(64, np.float64)
        self.pulses = np.zeros(64, np.float64)
        self.comm = self.pccl.Communicator(args.address, 0, p2p_connection_pool_size=args.pool)

    def meet(self):
        """Everybody is here. Whoever is a member already has to vote for those that come."""
        self.comm.connect(n_attempts=30)
        while True:
            there = self.comm.get_attribute(self.pccl.Attribute.GLOBAL_WORLD_SIZE)
            if there >= self.args.ranks:
                return
            if self.comm.are_peers_pending():
                self.comm.update_topology()
            else:
                time.sleep(0.02)

    def small(self, value):
        """The largest of everybody's values, and a barrier."""
        self.pulse[:] = value
        self.comm.all_reduce(self.pulse, self.pulses, op=self.pccl.ReduceOp.MAX)
        return float(self.pulses[0])

    def pattern(self, rank):
        """Small integers: every partial sum is exact, so any order of adding must give the same bits."""
        i = self.np.arange(PERIOD)
        return ((i * 3 + rank * 5 + self.calls * 7) % PERIOD + 1).astype(self.np.float32)

    def spread(self, target, pattern):
        whole = self.count // PERIOD * PERIOD
        target[:whole].reshape(-1, PERIOD)[:] = pattern
        target[whole:] = pattern[: self.count - whole]

    def right(self):
        want = sum(self.pattern(r) for r in range(self.args.ranks))
        whole = self.count // PERIOD * PERIOD
        return bool((self.output[:whole].reshape(-1, PERIOD) == want).all()) and bool(
            (self.output[whole:] == want[: self.count - whole]).all()
        )

    def descriptors(self):
        p, n = self.pccl, self.slices
        f32 = p.DataType.FLOAT
        all_of_them = []
        for s in range(n):
            at, end = self.count * s // n, self.count * (s + 1) // n
            what = p.ReduceDescriptor(
                count=end - at,
                op=p.ReduceOp.SUM,
                tag=s + 1,
                operand_descriptor=p.ReduceOperandDescriptor(datatype=f32, distribution_hint=p.DistributionHint.NONE),
                quantization_options=p.QuantizationOptions(f32, p.QuantizationAlgorithm.NONE),
            )
            all_of_them.append(p.ReduceOpDescriptor.from_numpy(self.input[at:end], self.output[at:end], what))
        return all_of_them

    def call(self):
        """Seconds of the slowest member."""
        self.calls += 1
        self.spread(self.input, self.pattern(self.args.rank))
        self.output[:] = -1
        parts = self.descriptors()
        self.small(0)
        began = time.monotonic()
        if self.slices == 1:
            info = self.comm.all_reduce(self.input, self.output, op=self.pccl.ReduceOp.SUM)
        else:
            info = self.comm.all_reduce_multiple_with_retry(parts, max_in_flight=max(self.args.pool, 1))
        took = time.monotonic() - began
        if info.local_world_size != self.args.ranks:
            raise RuntimeError(f"{info.local_world_size} members took part of {self.args.ranks}")
        # In turn, so that everybody knows of a wrong result before anybody ends.
        wrong = 0 if self.right() else 1
        took = self.small(took)
        if self.small(wrong):
            whose = "this member's" if wrong else "another member's"
            raise RuntimeError(f"call {self.calls}: {whose} result is wrong")
        return took


def member(args):
    faulthandler.dump_traceback_later(args.limit, exit=True)
    m = Member(args)
    m.meet()
    for _ in range(args.warmup):
        m.call()
    times = [m.call() for _ in range(args.calls)]
    if args.rank == 0:
        print(
            json.dumps(
                {
                    "library": "pccl",
                    "bytes": m.count * 4,
                    "ranks": args.ranks,
                    "pool": args.pool,
                    "slices": m.slices,
                    "median_us": statistics.median(times) * 1e6,
                    "min_us": min(times) * 1e6,
                    "max_us": max(times) * 1e6,
                    "errors": 0,
                }
            ),
            flush=True,
        )
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("probe")
    what.add_parser("master").add_argument("address")
    one = what.add_parser("member")
    one.add_argument("address")
    one.add_argument("rank", type=int)
    one.add_argument("ranks", type=int)
    one.add_argument("--bytes", type=int, default=1 << 20)
    one.add_argument("--pool", type=int, default=0)
    one.add_argument("--slices", type=int, default=0)
    one.add_argument("--warmup", type=int, default=1)
    one.add_argument("--calls", type=int, default=2)
    one.add_argument("--limit", type=int, default=280)
    args = parser.parse_args()
    if args.what == "probe":
        return probe()
    if args.what == "master":
        return master(args.address)
    return member(args)


if __name__ == "__main__":
    try:
        code = main()
    except Exception as e:
        sys.stderr.write(f"pccl.py: {type(e).__name__}: {e}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what the library does at its end may wait for others, and is nobody's measurement
