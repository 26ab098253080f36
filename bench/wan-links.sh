#!/bin/bash
# Links that are far apart, emulated between network namespaces (tests/wan): usage wan-links.sh BUILD.
#  rails   one pair, 400 Mbit/s, 100 ms there and back, 0.1 % loss: what a broadcast gets of the link's goodput, with the
#          system's congestion control and with cubic, with one connection and with several
#  ring    all-reduce of 64 MiB over 4 members with 100 Mbit/s and 50 ms there and back, beside the bound
#          2 (n-1)/n * bytes / rate, headers not counted, and round trips
#  uneven  the same with 100, 100, 100 and 25 Mbit/s and 20 ms: as it is, and measured first (rg_group_measure), beside
#          the optimum of the linear program
#  order   4 members where the ring by rank crosses links of 20 Mbit/s and another one only those of 100
#  pccl    the network of "ring" again, where we and PCCL (bench/peers/pccl.py) take turns, with each of bbr and cubic that
#          the host offers: PCCL by one call on what it does by itself, and as published for long ways, as so many slices
#          at once over a pool of as many connections to a neighbour (PCCL_POOLS, "0 16"). RG_PCCL_PYTHON (python3) names
#          the interpreter that has the wheel pypccl (docs/wan.md says how to come by one); without it the part is left
#          out and says why, and no failure of PCCL's is one of this script
# PARTS="rails ring uneven order pccl" in the environment runs some of them, ROUNDS (2) says how many calls are timed, MIB
# (64) how large all-reduces are (broadcasts are of 4 times as much, those of "order" of half). Needs root, ip and
# /dev/net/tun; without them it says so and ends with 77. The last line is JSON. It must leave no namespace and no process
# behind.
set -u
build=${1:-build}
parts=${PARTS:-rails ring uneven order pccl}
rounds=${ROUNDS:-2}
mib=${MIB:-64}
port=7743
goodput=0.9653 # payload of what a link carries: 1448 of 1500 bytes

here=$(cd "$(dirname "$0")" && pwd)

. "$here/../scripts/netns.sh"
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
# row PART WHAT SECONDS BOUND [OURS]: a line of the table, and of the JSON; with the seconds that we took, of a peer
row() {
    local line
    line=$(awk -v part="$1" -v what="$2" -v s="$3" -v b="$4" -v o="${5:-0}" 'BEGIN {
        printf "{\"part\": \"%s\", \"what\": \"%s\", \"seconds\": %.3f, \"bound\": %.3f, \"of_bound\": %.4f", part, what, s, b, b / s
        if (o) printf ", \"times_ours\": %.3f", s / o
        printf "}" }')
    printf '  %-8s %-44s %9.3f s   bound %8.3f s   %5.1f %% of it%s\n' "$1" "$2" "$3" "$4" "$(awk "BEGIN { print 100 * $4 / $3 }")" \
        "${5:+$(awk "BEGIN { printf \", %.3f times ours\", $3 / $5 }")}"
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

# note PART WHAT TEXT: a line where a figure would be
note() {
    local text
    text=$(tr -d '"\\\n\r\t' <<< "$3")
    printf '  %-8s %-44s %s\n' "$1" "$2" "$text"
    rows="$rows${rows:+, }{\"part\": \"$1\", \"what\": \"$2\", \"note\": \"$text\"}"
}

# run_pccl MEMBERS POOL: seconds of one call in $seconds; 1 when it failed, with why in $why. Each run has a master of its
# own, at the first host.
run_pccl() {
    local n=$1 i p of_it=() bad=0 head
    calls=$((calls + 1)) seconds= why=
    local at=10.79.0.1:$((port + calls)) # it would have to wait for a port that was in use
    : > "$tmp/master"
    # Not by net_in, a function, which a shell of its own would run: these processes are the ones to be ended.
    ip netns exec "$net_tag-1" timeout -k 1 300 "$pccl" "$here/peers/pccl.py" master $at > "$tmp/master" 2>&1 < /dev/null 9>&- &
    head=$!
    until grep -q ready "$tmp/master"; do
        kill -0 $head 2> /dev/null || { why="its master: $(tail -n 1 "$tmp/master")"; return 1; }
        sleep 0.1
    done
    for i in $(seq "$n"); do
        ip netns exec "$net_tag-$i" timeout -k 5 280 "$pccl" "$here/peers/pccl.py" member $at $((i - 1)) "$n" --limit 270 \
            --bytes $((mib << 20)) --pool "$2" --warmup 1 --calls 1 > "$tmp/out.$i" 2> "$tmp/err.$i" < /dev/null 9>&- &
        of_it+=($!)
    done
    for p in "${of_it[@]}"; do wait "$p" || bad=$?; done
    kill $head 2> /dev/null
    wait $head 2> /dev/null
    seconds=$(sed -n 's/.*"median_us": *\([0-9.]*\).*/\1/p' "$tmp"/out.* | awk 'NR == 1 { print $1 / 1e6 }')
    [ $bad = 0 ] && [ -n "$seconds" ] && return
    why="ended with $bad: $(cat "$tmp"/err.* | grep -E '^pccl.py|Timeout' | head -n 1)"
    return 1
}

# congestion NODE NAME: for the connections of everybody there from now on. By the route, for a namespace may be allowed
# fewer by its setting, and PCCL has none.
congestion() {
    local route
    route=$(net_in "$1" ip route show dev eth0 proto kernel | head -1)
    net_in "$1" ip route change ${route%% congctl *} dev eth0 proto kernel congctl "$2" ||
        { echo "bench-wan-links: no congestion control by route"; exit 1; }
}

median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

pccl() {
    local pccl=${RG_PCCL_PYTHON:-python3} pools=${PCCL_POOLS:-0 16} offered wanted=() lines said cc i pool round who ours limit
    if ! said=$(timeout -k 1 60 "$pccl" "$here/peers/pccl.py" probe 2>&1); then
        note pccl "left out" "RG_PCCL_PYTHON=$pccl has no pypccl that works: $(tail -n 1 <<< "$said")"
        return
    fi
    offered=$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
    for cc in bbr cubic; do case " $offered " in *" $cc "*) wanted+=($cc) ;; esac; done
    [ ${#wanted[@]} -gt 0 ] || wanted=("$(cat /proc/sys/net/ipv4/tcp_congestion_control)")
    mapfile -t lines < <(four 100 100 100 100)
    up 4 "all delay=25" "${lines[@]}"
    rm -f "$tmp"/times.* "$tmp"/failed.*
    for round in $(seq "$rounds"); do
        for cc in "${wanted[@]}"; do
            for i in 1 2 3 4; do congestion $i $cc; done
            run 4 all_reduce ${mib}M -i 1
            echo "$seconds" >> "$tmp/times.$cc.ours"
            for pool in $pools; do
                [ ! -e "$tmp/failed.$cc.$pool" ] || continue
                if run_pccl 4 "$pool"; then echo "$seconds" >> "$tmp/times.$cc.$pool"; else echo "$why" > "$tmp/failed.$cc.$pool"; fi
            done
        done
    done
    net_down
    limit=$(bound "1.5 * $mib * 8.388608 / 100 + 6 * 0.025 + 0.05")
    for cc in "${wanted[@]}"; do
        ours=$(median < "$tmp/times.$cc.ours")
        row pccl "$cc, regroup, $mib MiB" "$ours" "$limit"
        for pool in $pools; do
            who="$cc, $said, $([ "$pool" = 0 ] && echo "one call" || echo "$pool slices at once"), $mib MiB"
            if [ -e "$tmp/failed.$cc.$pool" ]; then note pccl "$who" "failed: $(cat "$tmp/failed.$cc.$pool")"; continue; fi
            row pccl "$who" "$(median < "$tmp/times.$cc.$pool")" "$limit" "$ours"
        done
    done
}

echo "emulated links; bound: what the links need for the payload alone (ring: and round trips); $(nproc) cores"
for part in $parts; do
    case $part in rails | ring | uneven | order | pccl) $part ;; *) echo "bench-wan-links: no part $part"; exit 2 ;; esac
done
echo "{\"bench\": \"wan-links\", \"rounds\": $rounds, \"rows\": [$rows]}"
