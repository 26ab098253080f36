#!/bin/bash
# Hierarchy and latency on emulated networks, made of network namespaces: usage hierarchy.sh BUILD.
#  1. Two hosts with 2 members each and a link of RATE_MBIT between them: how many bytes of an all-reduce cross the link,
#     beside the least that must, and how long it takes beside what the link alone needs.
#  2. DELAY_MS one way between any two of 8 members (tests/wan): the time of an all-reduce of 4 KiB.
# Needs root, ip and tc; without them it says so and ends with 77. The last line is JSON. Figures of the link are those
# of the interface, headers included. It must leave no namespace behind.
set -u
build=${1:-build}
rate=${RATE_MBIT:-200}
mib=${SIZE_MIB:-16}
delay=${DELAY_MS:-10}
calls=${CALLS:-5}
port=7741
. "$(dirname "$0")/../scripts/netns.sh"

net_begin bench-hierarchy "$build" tc
regroup=$build/regroup

# inside NODE COMMAND...: as a host of that name, so that members of one node share it and others do not
inside() { local ns=$1; shift; RG_HOST=host-$ns RG_COORDINATOR=10.78.0.1:$port net_in $ns "$@"; }

two_hosts() {
    net_add a b
    ip link add $net_tag type veth peer name $net_tag-p
    ip link set $net_tag netns $net_tag-a name eth0
    ip link set $net_tag-p netns $net_tag-b name eth0
    local i=1
    for n in a b; do
        ip -n $net_tag-$n addr add 10.78.0.$i/24 dev eth0
        ip -n $net_tag-$n link set eth0 mtu 16000 up
        ip -n $net_tag-$n link set lo up
        tc -n $net_tag-$n qdisc add dev eth0 root tbf rate "${rate}mbit" burst 256kb latency 100ms
        i=$((i + 1))
    done
}

sent() { net_in $1 cat /sys/class/net/eth0/statistics/tx_bytes; }

# bench OUT EXTRA...: four members, two on each host, all-reduce together; rank 0 writes JSON to OUT
bench_hosts() {
    local out=$1 i=0; shift
    for n in a a b b; do
        RG_MIN_SIZE=4 RG_ORDER=$i inside $n timeout -k 1 300 "$regroup" bench all_reduce -b "${mib}M" -e "${mib}M" -w 1 -i "$calls" \
            --json "$@" > "$tmp/out.$i" 2> "$tmp/err.$i" < /dev/null &
        net_pids+=($!)
        i=$((i + 1))
    done
    net_members
    cat "$tmp"/out.* > "$out"
}

median() { sed -n 's/.*"median_us": *\([0-9.]*\).*/\1/p' "$1" | head -1; }

echo "two hosts with 2 members each, ${rate} Mbit/s between them, all-reduce of ${mib} MiB, f32 sum"
two_hosts
RG_HOST=host-a net_coordinator a 10.78.0.1:$port

rows=""
for alg in ${ALGORITHMS-hier auto ring direct2}; do
    force=""
    [ "$alg" = auto ] || force="all_reduce=$alg"
    before_a=$(sent a) before_b=$(sent b)
    RG_GROUP=g-$alg RG_ALGORITHM=$force bench_hosts "$tmp/$alg.json" --no-check
    after_a=$(sent a) after_b=$(sent b)
    row=$(awk -v a=$((after_a - before_a)) -v b=$((after_b - before_b)) -v calls=$((calls + 1)) -v mib="$mib" -v rate="$rate" \
        -v us="$(median "$tmp/$alg.json")" -v alg="$alg" 'BEGIN {
            least = mib * 1048576; most = (a > b ? a : b) / calls; bound = least * 8 / rate
            printf "{\"algorithm\": \"%s\", \"bytes_over_least\": %.4f, \"median_us\": %.0f, \"time_over_bound\": %.4f}", alg,
                most / least, us, us / bound }')
    echo "  $row"
    rows="$rows${rows:+, }$row"
done

echo "8 members, $delay ms one way between any two, all-reduce of 4 KiB"
net_down
net_wan "all delay=$delay" -- 1 2 3 4 5 6 7 8
net_coordinator 1 10.79.0.1:$port
late=""
for alg in ${LATE_ALGORITHMS-auto direct star ring}; do
    force=""
    [ "$alg" = auto ] || force="all_reduce=$alg"
    for i in 1 2 3 4 5 6 7 8; do
        RG_HOST=host-$i RG_COORDINATOR=10.79.0.1:$port RG_GROUP=late-$alg RG_MIN_SIZE=8 RG_ALGORITHM=$force \
            net_in $i timeout -k 1 120 "$regroup" bench all_reduce -b 4K -e 4K -w 3 -i 20 --json \
            > "$tmp/late.$i" 2> "$tmp/err.$i" < /dev/null &
        net_pids+=($!)
    done
    net_members
    cat "$tmp"/late.? > "$tmp/late.json"
    row=$(printf '{"algorithm": "%s", "median_ms": %.2f}' "$alg" "$(awk "BEGIN { print $(median "$tmp/late.json") / 1000 }")")
    echo "  $row"
    late="$late${late:+, }$row"
done
echo "{\"rate_mbit\": $rate, \"mib\": $mib, \"two_hosts\": [$rows], \"delay_ms\": $delay, \"eight_members_4k\": [$late]}"
