#!/bin/bash
# Sparse collectives between 4 members in network namespaces, each with RATE_MBIT up and down, DELAY_MS one way
# (tests/wan): usage sparse.sh BUILD. The last lines are the JSON of bench_sparse. Needs root, ip and /dev/net/tun;
# without them it says so and ends with 77. It must leave no namespace behind.
set -u
build=${1:-build}
rate=${RATE_MBIT:-100}
delay=${DELAY_MS:-1}
calls=${CALLS:-3}
elements=${ELEMENTS:-4194304}
tag=rgs$$
port=7743

skip() { echo "bench-sparse: skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root to make network namespaces"
command -v ip > /dev/null || skip "needs the ip command (apt-get install iproute2)"
[ -e /dev/net/tun ] || skip "needs /dev/net/tun"
ip netns add $tag-1 2> /dev/null || skip "the kernel gives no network namespaces"

tmp=$(mktemp -d)
finish() {
    for i in 1 2 3 4; do
        for p in $(ip netns pids $tag-$i 2> /dev/null); do kill -9 "$p" 2> /dev/null; done
        ip netns del $tag-$i 2> /dev/null
    done
    rm -rf "$tmp"
}
trap finish EXIT
trap 'exit 1' INT TERM

for i in 2 3 4; do ip netns add $tag-$i; done
set -- --set "all delay=$delay queue=4096"
for i in 1 2 3 4; do set -- "$@" --set "node $i up=$rate down=$rate queue=4096"; done
mkfifo "$tmp/wan.in"
"$build/tests/wan" "$@" $tag-1 $tag-2 $tag-3 $tag-4 < "$tmp/wan.in" > "$tmp/wan.out" 2>&1 &
wan=$!
exec 9> "$tmp/wan.in"
until grep -q ready "$tmp/wan.out"; do kill -0 $wan 2> /dev/null || { cat "$tmp/wan.out"; exit 1; }; done
ip netns exec $tag-1 timeout -k 1 900 "$build/regroup" coordinator -l 10.79.0.1:$port > "$tmp/coordinator" 2>&1 < /dev/null &
coordinator=$!
disown $coordinator
until ip netns exec $tag-1 "$build/regroup" status 10.79.0.1:$port > /dev/null 2>&1; do
    kill -0 $coordinator 2> /dev/null || { cat "$tmp/coordinator"; exit 1; }
done
pids=()
for i in 1 2 3 4; do
    RG_HOST=host-$i RG_COORDINATOR=10.79.0.1:$port RG_MIN_SIZE=4 RG_ORDER=$i ip netns exec $tag-$i timeout -k 1 600 \
        "$build/bench/bench_sparse" --json --calls "$calls" --elements "$elements" --rate "$rate" > "$tmp/out.$i" \
        2> "$tmp/err.$i" < /dev/null &
    pids+=($!)
done
for p in "${pids[@]}"; do wait "$p" || { cat "$tmp"/err.*; exit 1; }; done
echo "4 members, $rate Mbit/s up and down each, $delay ms one way:"
cat "$tmp"/out.?
