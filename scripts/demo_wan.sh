#!/bin/bash
# The demonstration far apart, and its judge: usage demo_wan.sh BUILD. Four peers in network namespaces, RATE Mbit/s each,
# 20, 80 and 150 ms from each other and back (build/tests/wan carries the packets), train the byte-level model: data-parallel,
# then by outer optimisers that talk seldom. In every run one peer is slow, one is killed, and a fifth joins. Prints loss beside
# bytes sent and time; writes BUILD/demo-wan.csv, BUILD/demo-wan.png (where gnuplot is) and, as its last line, JSON. The demo
# fails unless every run ends well, with equal parameters. Needs root, ip and /dev/net/tun; without them it says so and ends with
# 77. It must leave no namespace and no process behind.
set -u
build=${1:-build}
steps=${STEPS:-1200} parallel_steps=${PARALLEL_STEPS:-120} rate=${RATE:-100} pause=${PAUSE_MS:-10} slow=${SLOW_MS:-15}
only=${ONLY:-parallel diloco streaming-int8 sparse}
port=7742
. "$(dirname "$0")/netns.sh"

net_begin demo-wan "$build"
csv=$build/demo-wan.csv

# Peers 1 and 2 are one region, 3 and 5 another, 4 a third. Half of the way back and forth each way.
net_wan "all delay=40" "pair 1 2 delay=10" "pair 3 5 delay=10" "pair 1 4 delay=75" "pair 2 4 delay=75" \
    "pair 3 4 delay=75" "pair 4 5 delay=75" -- 1:$rate:$rate 2:$rate:$rate 3:$rate:$rate 4:$rate:$rate 5:$rate:$rate
net_coordinator 1 10.79.0.1:$port

echo "variant,step,held_out_loss,loss,sent_bytes,seconds,members" > "$csv"
bad=0
verdict() { if [ "$1" = 1 ]; then echo "  yes  $2"; else echo "  NO   $2"; bad=1; fi; }

# peer NAME N PAUSE OPTION...: the N-th peer of that run, in the background; its number is in $!
peer() {
    local name=$1 n=$2 wait=$3; shift 3
    RG_COORDINATOR=10.79.0.1:$port RG_GROUP=$name RG_MIN_SIZE=$([ "$n" = 5 ] && echo 1 || echo 4) RG_ORDER=$n \
        net_in $n timeout -k 1 300 "$build/diloco_bytes" --csv "$tmp/$name.csv" --slow-ms "$wait" "$@" . \
        > "$tmp/$name.$n" 2>&1 < /dev/null &
}

# until_step LOG STEP PID: waits for a line about STEP or a later one, or for the peer's end
until_step() {
    local line step
    tail -n +1 -f --pid="$3" "$1" | while read -r line; do
        step=${line#at: *step=} step=${step%% *}
        case $line in at:*) [ "$step" -ge "$2" ] && break ;; esac
    done
}

# run NAME STEPS REPORT OPTION...
run() {
    local name=$1 n=$2 each=$3 pids=() peers=0; shift 3
    local options=("$@" --steps "$n" --report "$each")
    for i in 1 2 3 4; do
        peer "$name" $i "$([ $i = 3 ] && echo "$slow" || echo "$pause")" "${options[@]}"
        pids+=($!)
    done
    until_step "$tmp/$name.1" $((n / 4)) "${pids[0]}"
    net_kill 4 # the peer and what limits its time
    wait "${pids[3]}" 2> /dev/null
    until_step "$tmp/$name.1" $((n / 2)) "${pids[0]}"
    peer "$name" 5 "$pause" "${options[@]}"
    pids[3]=$!
    for p in "${pids[@]}"; do wait "$p" && peers=$((peers + 1)); done
    sed "s/^[a-z0-9]*,/$name,/" "$tmp/$name.csv" >> "$csv"
    echo "$name ($*):"
    sed 's/^/    /' "$tmp/$name.1" | grep -E "change:|end:"
    verdict "$([ $peers = 4 ] && echo 1)" "four peers ended well ($peers)"
    verdict "$([ "$(grep -c 'hashes equal: .* on 4 members' "$tmp/$name.1")" = 1 ] && echo 1)" "$(grep -o 'hashes equal.*' "$tmp/$name.1" || echo 'hashes equal')"
    verdict "$(grep -q 'change:.*lost=1' "$tmp/$name.1" && grep -q 'change:.*joined=1' "$tmp/$name.1" && echo 1)" "one was lost, one joined"
    [ $peers = 4 ] || cat "$tmp/$name".[1-5] | grep -v '^at:' | tail -20
}

echo "demo-wan: 4 peers at $rate Mbit/s, 20 to 150 ms apart; peer 3 is slow, peer 4 is killed, a fifth joins"
for name in $only; do
    case $name in
    parallel) run parallel "$parallel_steps" 10 --variant parallel ;;
    diloco) run diloco "$steps" 50 --variant plain --every 100 ;;
    streaming-int8) run streaming-int8 "$steps" 50 --variant streaming --every 100 --fragments 2 --overlap 45 --wire int8 --feedback 1 ;;
    sparse) run sparse "$steps" 50 --variant sparse --every 100 ;;
    decoupled) run decoupled "$steps" 50 --variant decoupled --every 100 --fragments 2 --overlap 45 --wire f32 --quorum 2 --grace-ms 20 ;;
    *) run "$name" "$steps" 50 --variant "$name" ;;
    esac
done

if command -v gnuplot > /dev/null; then
    gnuplot << PLOT
set terminal pngcairo size 1200,500
set output '$build/demo-wan.png'
set datafile separator ','
set multiplot layout 1,2 title 'Byte-level model, 4 peers, $rate Mbit/s, 20 to 150 ms apart; one dies, one joins, one is slow'
set grid
set key top right
set ylabel 'loss on text that nobody trained on (nats)'
set xlabel 'bytes sent by one peer'
set logscale x
set xrange [1e4:*]
set format x '10^{%L}'
plot for [v in "$only"] '< grep ^'.v.', $csv' using 5:3 with linespoints pointtype 7 pointsize 0.5 title v
unset logscale x
set xrange [0:*]
set format x '%g'
set xlabel 'seconds'
plot for [v in "$only"] '< grep ^'.v.', $csv' using 6:3 with linespoints pointtype 7 pointsize 0.5 title v
unset multiplot
PLOT
    echo "demo-wan: $csv and $build/demo-wan.png"
else echo "demo-wan: $csv; no plot: gnuplot is not installed (apt-get install gnuplot-nox)"; fi
awk -F, -v rate="$rate" 'NR > 1 { if (!($1 in s)) order[++n] = $1; s[$1] = $2; l[$1] = $3; b[$1] = $5; t[$1] = $6 }
    END {
        printf "{\"rate_mbit\": %s, \"runs\": [", rate
        for (i = 1; i <= n; i++) {
            v = order[i]
            printf "%s{\"variant\": \"%s\", \"steps\": %d, \"held_out_loss\": %.4f, ", (i == 1 ? "" : ", "), v, s[v], l[v]
            printf "\"sent_bytes\": %.0f, \"bytes_per_step\": %.0f, \"seconds\": %.1f}", b[v], b[v] / s[v], t[v]
        }
        print "]}"
    }' "$csv"
exit $bad
