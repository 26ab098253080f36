#!/bin/bash
# Links that are far apart, emulated between network namespaces (tests/wan): usage wan-links.sh BUILD.
#  rails   one pair, 400 Mbit/s, 100 ms there and back, 0.1 % loss: what a broadcast gets of the link's goodput, with the
#          system's congestion control and with cubic, with one connection and with several
#  ring    all-reduce of 64 MiB over 4 members with 100 Mbit/s and 50 ms there and back, beside the bound
#          2 (n-1)/n * bytes / rate, headers not counted, and round trips
#  uneven  the same with 100, 100, 100 and 25 Mbit/s and 20 ms: as it is, and measured first (rg_group_measure), beside
#          the optimum of the linear program
#  order   4 members where the ring by rank crosses links of 20 Mbit/s and another one only those of 100
# PARTS="rails ring uneven order" in the environment runs some of them, ROUNDS (2) says how many calls are timed, MIB (64)
# how large all-reduces are (broadcasts are of 4 times as much, the last part of half). Needs root, ip and /dev/net/tun;
# without them it says so and ends with 77. The last line is JSON. It must leave no namespace and no process behind.
set -u
build=${1:-build}
parts=${PARTS:-rails ring uneven order}
rounds=${ROUNDS:-2}
mib=${MIB:-64}
port=7743
goodput=0.9653 # payload of what a link carries: 1448 of 1500 bytes

. "$(dirname "$0")/../scripts/netns.sh"
# The network is a program: where it is kept from the processor for a second nobody is to be taken for dead.
export RG_HEARTBEAT_MS=${RG_HEARTBEAT_MS:-10000}

net_begin bench-wan-links "$build"

# up NODES LINE...: that many hosts and what their links are like; a coordinator at the first
up() {
    local n=$1
    shift
    net_wan "$@" -- $(seq "$n")
    net_coordinator 1 10.79.0.1:$port
}

calls=0
# run MEMBERS COLLECTIVE SIZE OPTIONS...: median seconds in $seconds
run() {
    local n=$1 coll=$2 size=$3 i
    shift 3
    calls=$((calls + 1))
    for i in $(seq "$n"); do
        RG_HOST=host-$i RG_COORDINATOR=10.79.0.1:$port RG_GROUP=g$calls RG_MIN_SIZE=$n RG_ORDER=$i net_in $i \
            timeout -k 1 280 "$build/regroup" bench "$coll" -b "$size" -e "$size" -w 1 -i "$rounds" --no-check --json "$@" \
            > "$tmp/out.$i" 2> "$tmp/err.$i" < /dev/null &
        net_pids+=($!)
    done
    net_members
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
    local offered size
    offered=$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
    up 2 "pair 1 2 rate=400 delay=50 loss=0.1"
    for n in 1 4; do
        RG_RAILS=$n run 2 broadcast $((4 * mib))M
        row rails "$(cat /proc/sys/net/ipv4/tcp_congestion_control), $n connection(s), $((4 * mib)) MiB" "$seconds" "$(bound "4 * $mib * 8.388608 / 400 / $goodput")"
    done
    for n in 1 16; do
        case " $offered " in *" cubic "*) ;; *) continue ;; esac
        size=$((n > 1 ? mib : (mib + 7) / 8)) # so that one, which is slow, takes about as long
        RG_TCP_CONGESTION=cubic RG_RAILS=$n run 2 broadcast ${size}M -i 1
        row rails "cubic, $n connection(s), $size MiB" "$seconds" "$(bound "$size * 8.388608 / 400 / $goodput")"
    done
    net_down
}

four() { for i in 1 2 3 4; do echo "node $i up=${!i} down=${!i}"; done; }

ring() {
    local lines
    mapfile -t lines < <(four 100 100 100 100)
    up 4 "all delay=25" "${lines[@]}"
    run 4 all_reduce ${mib}M
    row ring "as chosen, $mib MiB" "$seconds" "$(bound "1.5 * $mib * 8.388608 / 100 + 6 * 0.025 + 0.05")"
    RG_RAILS=4 run 4 all_reduce ${mib}M
    row ring "as chosen, 4 connections a pair, $mib MiB" "$seconds" "$(bound "1.5 * $mib * 8.388608 / 100 + 6 * 0.025 + 0.05")"
    net_down
}

uneven() {
    local lines
    mapfile -t lines < <(four 100 100 100 25)
    up 4 "all delay=10" "${lines[@]}"
    run 4 all_reduce ${mib}M -i 1
    row uneven "as it is, $mib MiB" "$seconds" "$(bound "$mib * 8.388608 / 25")"
    run 4 all_reduce ${mib}M --measure -i 1
    row uneven "measured first, $mib MiB" "$seconds" "$(bound "$mib * 8.388608 / 25")"
    net_down
}

order() {
    up 4 "all delay=10 rate=100" "pair 1 2 rate=20" "pair 3 4 rate=20"
    run 4 all_reduce $((mib / 2))M --algorithm ring -i 1
    row order "ring by rank, $((mib / 2)) MiB" "$seconds" "$(bound "1.5 * $mib / 2 * 8.388608 / 100")"
    run 4 all_reduce $((mib / 2))M --algorithm ring --measure -i 1
    row order "ring as measured, $((mib / 2)) MiB" "$seconds" "$(bound "1.5 * $mib / 2 * 8.388608 / 100")"
    net_down
}

echo "emulated links; bound: what the links need for the payload alone (ring: and round trips); $(nproc) cores"
for part in $parts; do
    case $part in rails | ring | uneven | order) $part ;; *) echo "bench-wan-links: no part $part"; exit 2 ;; esac
done
echo "{\"bench\": \"wan-links\", \"rounds\": $rounds, \"rows\": [$rows]}"
