#!/bin/bash
# Hierarchy and latency on emulated networks, made of network namespaces: usage hierarchy.sh BUILD.
#  1. Two hosts with 2 members each and a link of RATE_MBIT between them: how many bytes of an all-reduce cross the link,
#     beside the least that must, and how long it takes beside what the link alone needs.
#  2. DELAY_MS one way between any two of 8 members (tests/wan): the time of an all-reduce of 4 KiB.
# Needs root, ip and tc; without them it says so and ends with 77. The last line is JSON. Figures of the link are those
# of the interface, headers included. It must leave no namespace behind.
set -u
build=${1:-build}
regroup=$PWD/$build/regroup
rate=${RATE_MBIT:-200}
mib=${SIZE_MIB:-16}
delay=${DELAY_MS:-10}
calls=${CALLS:-5}
tag=rgh$$
port=7741

skip() { echo "bench-hierarchy: skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root to make network namespaces"
command -v ip > /dev/null && command -v tc > /dev/null || skip "needs the ip and tc commands (apt-get install iproute2)"
ip netns add $tag-a 2> /dev/null || skip "the kernel gives no network namespaces"

tmp=$(mktemp -d)
finish() {
    for n in a b l1 l2 l3 l4 l5 l6 l7 l8; do
        for p in $(ip netns pids $tag-$n 2> /dev/null); do kill -9 "$p" 2> /dev/null; done
        ip netns del $tag-$n 2> /dev/null
    done
    rm -rf "$tmp"
}
trap finish EXIT
trap 'exit 1' INT TERM

# in NAMESPACE COMMAND...: as a host of that name, so that members of one namespace share it and others do not
inside() { local ns=$1; shift; RG_HOST=host-$ns RG_COORDINATOR=10.78.0.1:$port ip netns exec "$tag-$ns" "$@"; }

two_hosts() {
    ip netns add $tag-b
    ip link add $tag type veth peer name $tag-p
    ip link set $tag netns $tag-a name eth0
    ip link set $tag-p netns $tag-b name eth0
    local i=1
    for n in a b; do
        ip -n $tag-$n addr add 10.78.0.$i/24 dev eth0
        ip -n $tag-$n link set eth0 mtu 16000 up
        ip -n $tag-$n link set lo up
        tc -n $tag-$n qdisc add dev eth0 root tbf rate "${rate}mbit" burst 256kb latency 100ms
        i=$((i + 1))
    done
}

sent() { ip netns exec "$tag-$1" cat /sys/class/net/eth0/statistics/tx_bytes; }

# bench OUT EXTRA...: four members, two on each host, all-reduce together; rank 0 writes JSON to OUT
bench_hosts() {
    local out=$1 pids=() i=0; shift
    for n in a a b b; do
        RG_MIN_SIZE=4 RG_ORDER=$i inside $n timeout -k 1 300 "$regroup" bench all_reduce -b "${mib}M" -e "${mib}M" -w 1 -i "$calls" \
            --json "$@" > "$tmp/out.$i" 2> "$tmp/err.$i" < /dev/null &
        pids+=($!)
        i=$((i + 1))
    done
    local bad=0
    for p in "${pids[@]}"; do wait "$p" || bad=1; done
    cat "$tmp"/out.* > "$out"
    [ $bad = 0 ] || { cat "$tmp"/err.*; return 1; }
}

median() { sed -n 's/.*"median_us": *\([0-9.]*\).*/\1/p' "$1" | head -1; }

echo "two hosts with 2 members each, ${rate} Mbit/s between them, all-reduce of ${mib} MiB, f32 sum"
two_hosts
inside a timeout -k 1 900 "$regroup" coordinator -l 10.78.0.1:$port > "$tmp/coordinator" 2>&1 < /dev/null &
until inside a "$regroup" status 10.78.0.1:$port > /dev/null 2>&1; do kill -0 $! 2> /dev/null || { cat "$tmp/coordinator"; exit 1; }; done

rows=""
for alg in ${ALGORITHMS-hier auto ring direct2}; do
    force=""
    [ "$alg" = auto ] || force="all_reduce=$alg"
    before_a=$(sent a) before_b=$(sent b)
    RG_GROUP=g-$alg RG_ALGORITHM=$force bench_hosts "$tmp/$alg.json" --no-check || exit 1
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
names=()
for i in 1 2 3 4 5 6 7 8; do
    ip netns add $tag-l$i
    names+=("$tag-l$i")
done
mkfifo "$tmp/wan.in"
"$PWD/$build/tests/wan" --set "all delay=$delay" "${names[@]}" < "$tmp/wan.in" > "$tmp/wan.out" 2>&1 &
wan=$!
exec 9> "$tmp/wan.in"
until grep -q ready "$tmp/wan.out"; do kill -0 $wan 2> /dev/null || { cat "$tmp/wan.out"; exit 1; }; done
ip netns exec $tag-l1 timeout -k 1 900 "$regroup" coordinator -l 10.79.0.1:$port > "$tmp/coordinator2" 2>&1 < /dev/null &
until ip netns exec $tag-l1 "$regroup" status 10.79.0.1:$port > /dev/null 2>&1; do kill -0 $! 2> /dev/null || { cat "$tmp/coordinator2"; exit 1; }; done
late=""
for alg in ${LATE_ALGORITHMS-auto direct star ring}; do
    force=""
    [ "$alg" = auto ] || force="all_reduce=$alg"
    pids=()
    for i in 1 2 3 4 5 6 7 8; do
        RG_HOST=host-$i RG_COORDINATOR=10.79.0.1:$port RG_GROUP=late-$alg RG_MIN_SIZE=8 RG_ALGORITHM=$force \
            ip netns exec $tag-l$i timeout -k 1 120 "$regroup" bench all_reduce -b 4K -e 4K -w 3 -i 20 --json \
            > "$tmp/late.$i" 2> "$tmp/late-err.$i" < /dev/null &
        pids+=($!)
    done
    for p in "${pids[@]}"; do wait "$p" || { cat "$tmp"/late-err.*; exit 1; }; done
    cat "$tmp"/late.? > "$tmp/late.json"
    row=$(printf '{"algorithm": "%s", "median_ms": %.2f}' "$alg" "$(awk "BEGIN { print $(median "$tmp/late.json") / 1000 }")")
    echo "  $row"
    late="$late${late:+, }$row"
done
echo "{\"rate_mbit\": $rate, \"mib\": $mib, \"two_hosts\": [$rows], \"delay_ms\": $delay, \"eight_members_4k\": [$late]}"
