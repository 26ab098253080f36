#!/bin/bash
# `regroup stress` as a user meets it: a short run over each transport with nothing violated, the same plan for the same
# seed, and each fault that it is there to find, planted, is found. Usage: stress.sh BUILD. Every run has a time limit.
set -u
build=${1:?usage: stress.sh BUILD}
regroup=$build/regroup
tmp=$(mktemp -d)
export TMPDIR=$tmp
passed=0 failed=0 skipped=0
trap 'rm -rf "$tmp"' EXIT

ok() { # NAME CONDITION...
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); echo "ok     stress__$name"
    else failed=$((failed + 1)); echo "FAILED stress__$name"; sed 's/^/       /' "$tmp/out" "$tmp/err" | tail -n 30; fi
}
exits() { # CODE ARGUMENTS...
    local want=$1 rc
    shift
    timeout -k 1 60 "$regroup" stress "$@" > "$tmp/out" 2> "$tmp/err" < /dev/null
    rc=$?
    [ $rc -eq "$want" ] || { echo "exit $rc, expected $want" >> "$tmp/err"; return 1; }
}
says() { grep -qE -- "$1" "$tmp/out" "$tmp/err"; }
both() { local want=$1 text=$2; shift 2; exits "$want" "$@" && says "$text"; }

ok help__has_examples both 0 examples --help
ok unknown_action__usage both 2 frobnicate --actions kill,frobnicate
ok unknown_kind__usage both 2 frobnicate --kinds frobnicate
ok interval_the_wrong_way_round__usage both 2 '"2..1" is not what --every takes' --every 2..1
ok one_peer__usage both 2 '"1" is not what --peers takes' --peers 1

plan() { "$regroup" stress --plan --minutes 5 --seed "$1" > "$2"; }
same_plan() { plan 7 "$tmp/p1" && plan 7 "$tmp/p2" && [ -s "$tmp/p1" ] && cmp -s "$tmp/p1" "$tmp/p2"; }
other_plan() { plan 8 "$tmp/p2" && ! cmp -s "$tmp/p1" "$tmp/p2"; }
ok same_seed__same_plan same_plan
ok other_seed__other_plan other_plan

# Loaded hosts are slow: what is looked for here is that nothing is violated, not how much is done.
ok run__nothing_violated both 0 'passed: seed 11.* 0 violations' -n 5 -m 0.09 -s 11 -e 0.3..0.8 --deadline 5 --json "$tmp/report.json"
report() {
    python3 - "$tmp/report.json" << 'END'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["passed"] and r["seed"] == 11 and r["peers"] == 5 and not r["violations"]
assert r["actions"] and r["operations"]["tally"]["OK"] > 5 and r["comparisons"] > 5
END
}
if command -v python3 > /dev/null; then ok report__complete report
else skipped=$((skipped + 1)); echo "skipped stress__report__complete: no python3"; fi
ok shared_memory__nothing_violated both 0 'transport shm.* 0 violations' -n 3 -m 0.04 -t shm -e 0.3..0.6 -s 12 --deadline 5
ok tls__nothing_violated both 0 'with TLS.* 0 violations' -n 3 -m 0.04 -t tcp --tls -e 0.3..0.6 -s 13 --deadline 5
ok network_where_there_is_none__said both 1 'shared memory needs one host' -n 2 -t shm --actions drop
clean() { ! ls -d "$tmp"/regroup-stress-* > /dev/null 2>&1; }
ok folder__removed clean

# All of it stands still for longer than a call may take, as when a host is suspended: that is nobody's fault.
stands_still() {
    local leader rc
    setsid timeout -k 1 90 "$regroup" stress -n 3 -m 0.15 --net off -t tcp --actions stop -e 60 --deadline 5 --keep "$tmp/kept" \
        > "$tmp/out" 2> "$tmp/err" < /dev/null &
    leader=$!
    for _ in $(seq 300); do # until all work
        [ "$(cat "$tmp"/kept/worker-?.journal 2> /dev/null | grep -c ' tally OK\| tally RG_OK')" -gt 5 ] && break
        sleep 0.1
    done
    pkill -STOP -s $leader && sleep 12.5 && pkill -CONT -s $leader
    wait $leader
    rc=$?
    [ $rc -eq 0 ] || { echo "exit $rc" >> "$tmp/err"; return 1; }
    says 'this host stood still for 1[0-9]'
}
ok host_stands_still__nothing_violated stands_still
rm -rf "$tmp/kept"

planted() { # PLANT VIOLATION MINUTES: at most; a violation ends the run
    ok "planted_$1__found" both 1 "VIOLATION \($2\)" -n 3 -m "$3" --net off -t tcp --actions stop -e 60 --plant "$1" --fail-fast
    rm -rf "$tmp"/regroup-stress-*
}
planted value wrong 0.7
planted result disagreement 0.7
planted input input 0.7
planted outcome disagreement 0.7
planted hang hang 0.7
planted stray stray 0.02
planted fds leak 0.02

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
