#!/bin/bash
# What the library has to show between members that are far apart, all of it in one run: usage wan.sh BUILD.
#  1 rails, rings         bench/wan-links.sh: one pair with losses; all-reduce beside its bound, and beside PCCL where
#                         RG_PCCL_PYTHON names an interpreter that has it
#  2 uneven members       bench/wan-links.sh: shares by rate, order by measurement; order against brute force (unit tests)
#  3 quantised            bench/quantised.sh at 100 Mbit/s; random operations with kills (tests/procs)
#  4 codecs               bench_codecs: f32 in GB/s of one core
#  5 sparse               bench/sparse.sh at 100 Mbit/s: time, bytes beside the best formula, placements
#  6 top-k                the bytes of 64 of 4096 in two bits; error feedback (unit tests)
#  7 quorum               bench_quorum: 2 of 4, one member stopped for 30 s
#  8 DiLoCo               data-parallel beside plain and streaming int8, equal tokens; golden vectors (unit tests); a death
#                         and a newcomer between emulated distances (scripts/demo_wan.sh)
# WAN_ONLY="3 5" runs some of them, WAN_QUICK=1 all of them in a few minutes with so little data that the times say
# nothing. Prints a table of what was asked for and what came; the last line is JSON, with what each part printed as its
# own, and goes to BUILD/bench-wan.json as well. Ends with 1 when a part failed to run, not for a figure, which is this
# host's. Parts that lack root, ip, /dev/net/tun or Criterion are skipped with the reason. It must not measure anything
# itself.
set -u
build=${1:-build}
here=$(cd "$(dirname "$0")" && pwd)
quick=${WAN_QUICK:-0}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
case $build in /*) ;; *) build=$PWD/$build ;; esac
failed=0 items= rows= raw=

# pick FULL QUICK
pick() { if [ "$quick" = 0 ]; then echo "$1"; else echo "$2"; fi; }

# part NAME COMMAND...: its output to $tmp/NAME; 0 unless it was skipped or failed, which is said
part() {
    local name=$1 rc; shift
    "$@" > "$tmp/$name" 2> "$tmp/$name.err" < /dev/null
    rc=$?
    if [ $rc = 77 ]; then
        note "$name" "$(tail -n 1 "$tmp/$name")"
    elif [ $rc != 0 ]; then
        failed=1
        note "$name" "FAILED with $rc"
        tail -n 5 "$tmp/$name" "$tmp/$name.err" | sed 's/^/        /'
    fi
    return $rc
}

# text TEXT: without what would end a string of JSON
text() { tr -d '"\\\n\r\t' <<< "$1"; }

note() {
    printf '    %-58s %s\n' "$1" "$2"
    rows="$rows${rows:+, }{\"what\": \"$(text "$1")\", \"note\": \"$(text "$2")\"}"
}

# row WHAT GOT OPERATOR LIMIT UNIT: OPERATOR is ge or le
row() {
    local met
    [ -n "$2" ] || { failed=1; note "$1" "no figure came"; return; }
    met=$(awk -v g="$2" -v o="$3" -v l="$4" 'BEGIN { print (o == "ge" ? g >= l : g <= l) ? "true" : "false" }')
    printf '    %-58s %12s %-8s %s %8s  %s\n' "$1" "$2" "$5" "$([ "$3" = ge ] && echo '>=' || echo '<=')" "$4" \
        "$([ "$met" = true ] && echo yes || echo NO)"
    rows="$rows${rows:+, }{\"what\": \"$(text "$1")\", \"got\": $2, \"unit\": \"$5\", \"$([ "$3" = ge ] && echo least || echo most)\": $4, \"met\": $met}"
}

# holds WHAT COMMAND...: a check that says yes or no by its exit status
holds() {
    local what=$1; shift
    if "$@" > "$tmp/holds" 2>&1 < /dev/null; then row "$what" 1 ge 1 ""; else row "$what" 0 ge 1 ""; failed=1; tail -n 5 "$tmp/holds"; fi
}

unit() {
    local what=$1 filter=$2
    if [ -x "$build/tests/unit" ]; then holds "$what (unit tests)" timeout -k 1 300 "$build/tests/unit" --filter "$filter"
    else note "$what" "not looked at: the unit tests are not built (make tests)"; fi
}

# value FILE SELECT FIELD [SCALE]: of the objects of a file of JSON, the first that has SELECT: the number of FIELD
value() {
    tr '{}' '\n\n' < "$tmp/$1" | grep -F -- "$2" | sed -n "s/.*\"$3\": *\(-\{0,1\}[0-9.e+-]*\).*/\1/p" |
        awk -v s="${4:-1}" 'NR == 1 { printf "%.6g", $1 * s }'
}

# most FILE SELECT FIELD, least likewise: of all such objects
most() { tr '{}' '\n\n' < "$tmp/$1" | grep -F -- "$2" | sed -n "s/.*\"$3\": *\([0-9.e+-]*\).*/\1/p" | sort -g | tail -1; }
least() { tr '{}' '\n\n' < "$tmp/$1" | grep -F -- "$2" | sed -n "s/.*\"$3\": *\([0-9.e+-]*\).*/\1/p" | sort -g | head -1; }

# keep FILE: the JSON that it ends with, from the first line that begins with a brace or bracket on
keep() { raw=$(sed -n '/^[[{]/,$p' "$tmp/$1" | tr '\n' ' '); }

links() { PARTS=$1 ROUNDS=$(pick 2 1) MIB=$(pick 64 4) bash "$here/wan-links.sh" "$build"; }

# What PCCL took for the same, in turns with us: figures to compare with, which nothing is asked of.
pccl() {
    local what seconds times why
    tr '{}' '\n\n' < "$tmp/rails" | grep -F '"part": "pccl"' > "$tmp/pccl"
    while read -r line; do
        what=$(sed -n 's/.*"what": "\([^"]*\)".*/\1/p' <<< "$line")
        why=$(sed -n 's/.*"note": "\([^"]*\)".*/\1/p' <<< "$line")
        seconds=$(sed -n 's/.*"seconds": \([0-9.]*\).*/\1/p' <<< "$line")
        times=$(sed -n 's/.*"times_ours": \([0-9.]*\).*/\1/p' <<< "$line")
        note "in turns: $what" "${why:-$seconds s${times:+, $times times ours}}"
    done < "$tmp/pccl"
}

item_1() {
    part rails links "rails ring pccl" || return
    row "one pair, 400 Mbit/s, 100 ms, 0.1 % loss: of its goodput" "$(value rails '"rails", "what": "'"$(cat /proc/sys/net/ipv4/tcp_congestion_control)"', 1' of_bound 100)" ge 90 %
    row "all-reduce, 4 members, 100 Mbit/s, 50 ms: of its bound" "$(value rails '"ring"' of_bound 100)" ge 90.9 %
    pccl
    keep rails
}

item_2() {
    part uneven links "uneven order" || return
    row "100/100/100/25 Mbit/s, measured: of the optimum" "$(value uneven 'measured first' of_bound 100)" ge 87 %
    row "order as measured: times the time of the order by rank" "$(awk -v a="$(value uneven 'ring as measured' seconds)" -v b="$(value uneven 'ring by rank' seconds)" 'BEGIN { printf "%.3f", a / b }')" le 1 ""
    unit "order of 8 members as brute force finds it" "order/*"
    keep uneven
}

quantised() { ELEMENTS=$(pick 2097152 262144) CALLS=$(pick 3 1) FORMS=$(pick "f32 bf16 int8 int8/ring int4 mxfp4" "f32 int8") HOSTS=$(pick 1 0) bash "$here/quantised.sh" "$build"; }
kills() { ROUNDS=$(pick 10000 300) EVERY=20 SEED=1 timeout -k 1 1200 "$build/tests/procs" quant; }

item_3() {
    part quantised quantised || return
    row "int8, 100 Mbit/s: times as fast as f32" "$(value quantised '"form": "int8"' speedup)" ge 3.4 times
    row "int8, 4 members: relative RMS error of a sum" "$(value quantised '"form": "int8"' error)" le 0.011 ""
    if [ -x "$build/tests/procs" ]; then holds "$(pick 10000 300) random operations with kills: equal bits" kills
    else note "random operations with kills" "not looked at: build/tests/procs is not built (make tests)"; fi
    keep quantised
}

item_4() {
    local level
    part codecs "$build/bench/bench_codecs" --json || return
    level=$(sed -n 's/.*"level": "\([a-z0-9]*\)".*/\1/p' "$tmp/codecs" | tail -1)
    grep "\"$level\".*nearest" "$tmp/codecs" > "$tmp/best"
    for wire in int8 bf16; do row "$wire encoded, $level" "$(value best "\"wire\": \"$wire\"" encode)" ge 4 GB/s; done
    row "the slowest form encoded, rounded to nearest, $level" "$(least best '"wire"' encode)" ge 2 GB/s
    row "the slowest form decoded, $level" "$(least best '"wire"' decode)" ge 2 GB/s
    keep codecs
}

sparse() { ELEMENTS=$(pick 4194304 262144) CALLS=$(pick 3 1) bash "$here/sparse.sh" "$build"; }

item_5() {
    part sparse sparse || return
    row "1 % of $(pick "4 Mi" "256 Ki") elements, 100 Mbit/s: times as fast as dense" "$(value sparse '"density": 0.01,' times_faster)" ge 12 times
    row "bytes beyond 1.02 of the best formula, densities 0.01 to 100 %" "$(tr '{}' '\n\n' < "$tmp/sparse" |
        sed -n 's/.*"bytes": \([0-9]*\), "best_formula": \([0-9]*\).*/\1 \2/p' |
        awk 'NR == 1 || $1 - 1.02 * $2 > m { m = $1 - 1.02 * $2 } END { printf "%.0f", m < 0 ? 0 : m }')" le 256 bytes
    row "8 hot chunks of 64 x 256 KiB: received bytes exact" "$(grep -c '"exact": true' "$tmp/sparse")" ge 2 of 2
    row "the same, each member owning two: times the bound" "$(value sparse '"spread"' over_bound)" le 1.25 times
    keep sparse
}

item_6() {
    part topk "$build/bench/bench_sparse" --json --elements 65536 --calls 1 || return
    row "64 of 4096 in two bits: times fewer bytes than f32" "$(value topk '"dct": false' times_fewer_bytes)" ge 140 times
    unit "error feedback, failed calls too" "topk/feedback*"
    keep topk
}

quorum() { "$build/bench/bench_quorum" 4 2 3 "$(pick 30 5)" 20 10 "$(pick 60000 20000)"; }

item_7() {
    part quorum quorum || return
    row "2 of 4, one stopped $(pick 30 5) s: steps that the others keep" "$(value quorum '"percent"' percent)" ge 95 %
    row "longest wait of a merge, grace 10 ms" "$(value quorum '"percent"' worst_wait_ms)" le 60 ms
    row "results that differ" "$(value quorum '"percent"' differ)" le 0 ""
    keep quorum
}

# trained NAME FIELD: of the end of a run of diloco_bytes
trained() { sed -n "s/.*end: .* $2=\([0-9.]*\).*/\1/p" "$tmp/$1" | head -1; }

item_8() {
    local v steps loss sent all
    steps=$(pick 4000 300)
    for v in parallel plain streaming; do
        [ $v = streaming ] && set -- --fragments 2 --overlap 45 --wire int8 --feedback 1 || set --
        [ $v = parallel ] || set -- --every 100 "$@"
        part $v timeout -k 1 1200 "$build/regroup" run -n 4 -- "$build/diloco_bytes" --variant $v --steps "$steps" --report 1000 "$@" "$here/.." || return
    done
    loss=$(trained parallel held_out)
    # What one member sends in data-parallel by the best all-reduce there is: 2 (n-1)/n of the parameters at each step.
    all=$(awk -v s="$steps" 'BEGIN { printf "%.0f", 1.5 * 4 * 53632 * s }')
    for v in plain streaming; do
        [ $v = plain ] && set -- "plain, H = 100" || set -- "streaming int8, H = 100"
        row "$1: loss above data-parallel's, $steps steps" "$(awk -v a="$(trained $v held_out)" -v b="$loss" 'BEGIN { printf "%.2f", 100 * (a / b - 1) }')" le 2 %
        sent=$(trained $v sent_bytes)
        row "$1: times fewer bytes" "$(awk -v a="$all" -v b="$sent" 'BEGIN { printf "%.0f", a / b }')" ge 100 times
    done
    row "streaming: of the time it kept training waiting" "$(awk -v a="$(trained streaming waited)" -v b="$(trained streaming seconds)" 'BEGIN { printf "%.2f", 100 * a / b }')" le 5 %
    unit "golden vectors of all variants" "diloco_outer/*"
    raw="{$(for v in parallel plain streaming; do printf '"%s": {"held_out": %s, "sent_bytes": %s, "seconds": %s}, ' $v "$(trained $v held_out)" "$(trained $v sent_bytes)" "$(trained $v seconds)"; done)\"steps\": $steps}"
    STEPS=$(pick 1200 600) ONLY=streaming-int8 part demo bash "$here/../scripts/demo_wan.sh" "$build" || return
    row "far apart, one dies, one joins: hashes equal at the end" "$(grep -c 'yes  hashes equal' "$tmp/demo")" ge 1 ""
}

titles=("" "rails and rings" "uneven members" "quantised" "codecs" "sparse" "top-k" "quorum" "DiLoCo")
for n in ${WAN_ONLY:-1 2 3 4 5 6 7 8}; do
    case $n in [1-8]) ;; *) echo "bench-wan: WAN_ONLY: there is no item $n; 1 to 8 are known"; exit 2 ;; esac
    echo "$n  ${titles[$n]}$([ "$quick" = 0 ] || echo " (quick: the times say nothing)")"
    rows= raw=
    item_$n
    items="$items${items:+, }{\"item\": $n, \"title\": \"${titles[$n]}\", \"rows\": [$rows], \"raw\": ${raw:-null}}"
done
echo "{\"bench\": \"wan\", \"quick\": $([ "$quick" = 0 ] && echo false || echo true), \"cores\": $(nproc), \"items\": [$items]}" |
    tee "$build/bench-wan.json"
exit $failed
