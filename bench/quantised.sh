#!/bin/bash
# Quantised all-reduces beside f32 over a slow network: usage quantised.sh BUILD. MEMBERS network namespaces, RATE_MBIT up
# and down for each and DELAY_MS one way between any two (build/tests/wan), all-reduce of ELEMENTS f32, the median of
# CALLS, for each of FORMS (bench/bench_quantised.c says what they are). Then HOSTS=2: the same members two by two on hosts
# whose link they share, for the two-level form. Needs root, ip and /dev/net/tun; without them it says so and ends with
# 77. The last line is JSON. It must leave no namespace behind.
set -u
build=${1:-build}
members=${MEMBERS:-4}
rate=${RATE_MBIT:-100}
delay=${DELAY_MS:-1}
elements=${ELEMENTS:-2097152}
calls=${CALLS:-3}
forms=${FORMS:-f32 bf16 int8 int8/ring int8/integer int4 mxfp4 ternary/integer}
tag=rgq$$
port=7742

skip() { echo "bench-quantised: skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root to make network namespaces"
command -v ip > /dev/null || skip "needs the ip command (apt-get install iproute2)"
[ -c /dev/net/tun ] || skip "needs /dev/net/tun"
ip netns add $tag-1 2> /dev/null || skip "the kernel gives no network namespaces"

tmp=$(mktemp -d)
finish() {
    for ((i = 1; i <= members; i++)); do
        for p in $(ip netns pids $tag-$i 2> /dev/null); do kill -9 "$p" 2> /dev/null; done
        ip netns del $tag-$i 2> /dev/null
    done
    rm -rf "$tmp"
}
trap finish EXIT
trap 'exit 1' INT TERM

names=($tag-1)
for ((i = 2; i <= members; i++)); do
    ip netns add $tag-$i
    names+=("$tag-$i")
done
settings=(--set "all delay=$delay")
for ((i = 1; i <= members; i++)); do settings+=(--set "node $i up=$rate down=$rate"); done
mkfifo "$tmp/wan.in"
"$PWD/$build/tests/wan" "${settings[@]}" "${names[@]}" < "$tmp/wan.in" > "$tmp/wan.out" 2>&1 &
wan=$!
exec 9> "$tmp/wan.in"
until grep -q ready "$tmp/wan.out"; do kill -0 $wan 2> /dev/null || { cat "$tmp/wan.out"; exit 1; }; done
ip netns exec $tag-1 timeout -k 1 1800 "$PWD/$build/regroup" coordinator -l 10.79.0.1:$port > "$tmp/coordinator" 2>&1 < /dev/null &
coordinator=$!
disown # its end is none of the shell's business
until ip netns exec $tag-1 "$PWD/$build/regroup" status 10.79.0.1:$port > /dev/null 2>&1; do
    kill -0 $coordinator 2> /dev/null || { cat "$tmp/coordinator"; exit 1; }
done

# members NAME PER_NODE FORM...: PER_NODE members on each node, which then is a host
run() {
    local name=$1 per=$2 pids=() k=0; shift 2
    for ((i = 1; i <= members; i++)); do
        for ((j = 0; j < per; j++)); do
            RG_COORDINATOR=10.79.0.1:$port RG_GROUP=$name RG_MIN_SIZE=$((members * per)) RG_ORDER=$k RG_HOST=host-$i \
                ip netns exec $tag-$i timeout -k 1 900 "$PWD/$build/bench/bench_quantised" "$elements" "$calls" "$@" \
                > "$tmp/$name.$k" 2>&1 < /dev/null &
            pids+=($!)
            k=$((k + 1))
        done
    done
    local bad=0
    for p in "${pids[@]}"; do wait "$p" || bad=1; done
    cat "$tmp/$name".0
    [ $bad = 0 ] || { cat "$tmp/$name".*; exit 1; }
}

echo "$members members, $rate Mbit/s up and down, $delay ms one way, $elements elements"
run far 1 $forms
far=$(tail -1 "$tmp/far.0")
near=null
if [ "${HOSTS:-1}" != 0 ]; then
    echo "2 members on each of the $members hosts"
    run near 2 f32 int8/direct int8/two-level int8
    near=$(tail -1 "$tmp/near.0")
fi
echo "{\"rate_mbit\": $rate, \"delay_ms\": $delay, \"one_per_host\": $far, \"two_per_host\": $near}"
