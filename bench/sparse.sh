#!/bin/bash
# Sparse collectives between 4 members in network namespaces, each with RATE_MBIT up and down, DELAY_MS one way
# (tests/wan): usage sparse.sh BUILD; DENSITY=0.01 measures lists of that density alone, DENSITY=0 none. The last
# lines are the JSON of bench_sparse. Needs root, ip and /dev/net/tun; without them it says so and ends with 77. It must
# leave no namespace behind.
set -u
build=${1:-build}
rate=${RATE_MBIT:-100}
delay=${DELAY_MS:-1}
calls=${CALLS:-3}
elements=${ELEMENTS:-4194304}
port=7743
. "$(dirname "$0")/../scripts/netns.sh"
# The network is a program: where it is kept from the processor for a second nobody is to be taken for dead.
export RG_HEARTBEAT_MS=${RG_HEARTBEAT_MS:-10000}

net_begin bench-sparse "$build"
settings=("all delay=$delay queue=4096")
for i in 1 2 3 4; do settings+=("node $i up=$rate down=$rate queue=4096"); done
net_wan "${settings[@]}" -- 1 2 3 4
net_coordinator 1 10.79.0.1:$port
for i in 1 2 3 4; do
    RG_HOST=host-$i RG_COORDINATOR=10.79.0.1:$port RG_MIN_SIZE=4 RG_ORDER=$i net_in $i timeout -k 1 600 \
        "$build/bench/bench_sparse" --json --calls "$calls" --elements "$elements" --rate "$rate" \
        ${DENSITY:+--density "$DENSITY"} > "$tmp/out.$i" 2> "$tmp/err.$i" < /dev/null &
    net_pids+=($!)
done
net_members
echo "4 members, $rate Mbit/s up and down each, $delay ms one way:"
cat "$tmp"/out.?
