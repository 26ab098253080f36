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
port=7742
. "$(dirname "$0")/../scripts/netns.sh"
# The network is a program: where it is kept from the processor for a second nobody is to be taken for dead.
export RG_HEARTBEAT_MS=${RG_HEARTBEAT_MS:-10000}

net_begin bench-quantised "$build"
settings=("all delay=$delay")
for ((i = 1; i <= members; i++)); do settings+=("node $i up=$rate down=$rate"); done
net_wan "${settings[@]}" -- $(seq "$members")
net_coordinator 1 10.79.0.1:$port

# members NAME PER_NODE FORM...: PER_NODE members on each node, which then is a host
run() {
    local name=$1 per=$2 k=0; shift 2
    rm -f "$tmp"/err.*
    for ((i = 1; i <= members; i++)); do
        for ((j = 0; j < per; j++)); do
            RG_COORDINATOR=10.79.0.1:$port RG_GROUP=$name RG_MIN_SIZE=$((members * per)) RG_ORDER=$k RG_HOST=host-$i \
                net_in $i timeout -k 1 900 "$build/bench/bench_quantised" "$elements" "$calls" "$@" \
                > "$tmp/$name.$k" 2> "$tmp/err.$k" < /dev/null &
            net_pids+=($!)
            k=$((k + 1))
        done
    done
    net_members
    cat "$tmp/$name".0
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
