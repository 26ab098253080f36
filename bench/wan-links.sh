#!/bin/bash
# Links that are far apart, emulated between network namespaces (tests/wan): usage wan-links.sh BUILD.
#  rails   one pair, 400 Mbit/s, 100 ms there and back, 0.1 % loss: what a broadcast gets of the link's goodput, with the
#          system's congestion control and with cubic, with one connection and with several
#  ring    all-reduce of 64 MiB over 4 members with 100 Mbit/s and 50 ms there and back, beside the bound
#          2 (n-1)/n * bytes / rate, headers not counted, and round trips
#  uneven  the same with 100, 100, 100 and 25 Mbit/s and 20 ms: as it is, and measured first (rg_group_measure), beside
#          the optimum of the linear program
#  order   4 members where the ring by rank crosses links of 20 Mbit/s and another one only those of 100
# PARTS="rails ring uneven order" in the environment runs some of them, ROUNDS (2) says how many calls are timed. Needs
# root, ip and /dev/net/tun; without them it says so and ends with 77. The last line is JSON, and goes to
# BUILD/bench-wan.json as well. It must leave no namespace and no process behind.
set -u
build=${1:-build}
root=$(cd "$(dirname "$0")/.." && pwd)
case $build in /*) ;; *) build=$root/$build ;; esac
parts=${PARTS:-rails ring uneven order}
rounds=${ROUNDS:-2}
tag=rgw$$
port=7743
goodput=0.9653 # payload of what a link carries: 1448 of 1500 bytes

skip() { echo "bench-wan: skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root to make network namespaces"
command -v ip > /dev/null || skip "needs the ip command (apt-get install iproute2)"
[ -w /dev/net/tun ] || skip "needs /dev/net/tun"

tmp=$(mktemp -d)
nodes=0 wan=
down() {
    exec 9>&-
    for i in $(seq $nodes); do
        for p in $(ip netns pids $tag-$i 2> /dev/null); do kill -9 "$p" 2> /dev/null; done
        ip netns del $tag-$i 2> /dev/null
    done
    [ -z "$wan" ] || wait "$wan" 2> /dev/null
    nodes=0 wan=
}
trap 'down; rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM

# up NODES LINE...: that many hosts and what their links are like; a coordinator at the first
up() {
    local n=$1 names=() lines=() i
    shift
    for i in $(seq "$n"); do
        ip netns add $tag-$i 2> /dev/null || skip "the kernel gives no network namespaces"
        nodes=$i
        names+=("$tag-$i")
    done
    for i in "$@"; do lines+=(--set "$i"); done
    rm -f "$tmp/in"
    mkfifo "$tmp/in"
    "$build/tests/wan" "${lines[@]}" "${names[@]}" < "$tmp/in" > "$tmp/wan" 2>&1 9>&- &
    wan=$!
    exec 9> "$tmp/in"
    until grep -q ready "$tmp/wan"; do kill -0 $wan 2> /dev/null || { cat "$tmp/wan"; exit 1; }; done
    ip netns exec $tag-1 timeout -k 1 900 "$build/regroup" coordinator -l 10.79.0.1:$port > "$tmp/co" 2>&1 < /dev/null 9>&- &
    disown $!
    until ip netns exec $tag-1 "$build/regroup" status 10.79.0.1:$port > /dev/null 2>&1; do
        kill -0 $! 2> /dev/null || { cat "$tmp/co"; exit 1; }
    done
}

calls=0
# run MEMBERS COLLECTIVE SIZE OPTIONS...: median seconds in $seconds
run() {
    local n=$1 coll=$2 size=$3 pids=() i p bad=0
    shift 3
    calls=$((calls + 1))
    for i in $(seq "$n"); do
        RG_HOST=host-$i RG_COORDINATOR=10.79.0.1:$port RG_GROUP=g$calls RG_MIN_SIZE=$n RG_ORDER=$i ip netns exec $tag-$i \
            timeout -k 1 280 "$build/regroup" bench "$coll" -b "$size" -e "$size" -w 1 -i "$rounds" --no-check --json "$@" \
            > "$tmp/out.$i" 2> "$tmp/err.$i" < /dev/null 9>&- &
        pids+=($!)
    done
    for p in "${pids[@]}"; do wait "$p" || bad=1; done
    [ $bad = 0 ] || { cat "$tmp"/err.*; exit 1; }
    seconds=$(cat "$tmp"/out.* | sed -n 's/.*"median_us": *\([0-9.]*\).*/\1/p' | awk 'NR == 1 { print $1 / 1e6 }')
}

rows=
# row PART WHAT SECONDS BOUND: a line of the table, and of the JSON
row() {
    local line
    line=$(awk -v part="$1" -v what="$2" -v s="$3" -v b="$4" 'BEGIN {
        printf "{\"part\": \"%s\", \"what\": \"%s\", \"seconds\": %.3f, \"bound\": %.3f, \"of_bound\": %.4f}", part, what, s, b, b / s }')
    printf '  %-8s %-44s %9.3f s   bound %8.3f s   %5.1f %% of it\n' "$1" "$2" "$3" "$4" "$(awk "BEGIN { print 100 * $4 / $3 }")"
    rows="$rows${rows:+, }$line"
}
bound() { awk "BEGIN { print $1 }"; }

rails() {
    local offered
    offered=$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
    up 2 "pair 1 2 rate=400 delay=50 loss=0.1"
    for n in 1 4; do
        RG_RAILS=$n run 2 broadcast 256M
        row rails "$(cat /proc/sys/net/ipv4/tcp_congestion_control), $n connection(s), 256 MiB" "$seconds" "$(bound "256 * 8.388608 / 400 / $goodput")"
    done
    for n in 1 16; do
        case " $offered " in *" cubic "*) ;; *) continue ;; esac
        RG_TCP_CONGESTION=cubic RG_RAILS=$n run 2 broadcast $((n > 1 ? 64 : 8))M -i 1
        row rails "cubic, $n connection(s), $((n > 1 ? 64 : 8)) MiB" "$seconds" "$(bound "$((n > 1 ? 64 : 8)) * 8.388608 / 400 / $goodput")"
    done
    down
}

four() { for i in 1 2 3 4; do echo "node $i up=${!i} down=${!i}"; done; }

ring() {
    local lines
    mapfile -t lines < <(four 100 100 100 100)
    up 4 "all delay=25" "${lines[@]}"
    run 4 all_reduce 64M
    row ring "as chosen, 64 MiB" "$seconds" "$(bound "1.5 * 64 * 8.388608 / 100 + 6 * 0.025 + 0.05")"
    RG_RAILS=4 run 4 all_reduce 64M
    row ring "as chosen, 4 connections a pair, 64 MiB" "$seconds" "$(bound "1.5 * 64 * 8.388608 / 100 + 6 * 0.025 + 0.05")"
    down
}

uneven() {
    local lines
    mapfile -t lines < <(four 100 100 100 25)
    up 4 "all delay=10" "${lines[@]}"
    run 4 all_reduce 64M -i 1
    row uneven "as it is, 64 MiB" "$seconds" "$(bound "64 * 8.388608 / 25")"
    run 4 all_reduce 64M --measure -i 1
    row uneven "measured first, 64 MiB" "$seconds" "$(bound "64 * 8.388608 / 25")"
    down
}

order() {
    up 4 "all delay=10 rate=100" "pair 1 2 rate=20" "pair 3 4 rate=20"
    run 4 all_reduce 32M --algorithm ring -i 1
    row order "ring by rank, 32 MiB" "$seconds" "$(bound "1.5 * 32 * 8.388608 / 100")"
    run 4 all_reduce 32M --algorithm ring --measure -i 1
    row order "ring as measured, 32 MiB" "$seconds" "$(bound "1.5 * 32 * 8.388608 / 100")"
    down
}

echo "emulated links; bound: what the links need for the payload alone (ring: and round trips); $(nproc) cores"
for part in $parts; do
    case $part in rails | ring | uneven | order) $part ;; *) echo "bench-wan: no part $part"; exit 2 ;; esac
done
echo "{\"bench\": \"wan\", \"rounds\": $rounds, \"rows\": [$rows]}" | tee "$build/bench-wan.json"
