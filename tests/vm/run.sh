#!/bin/bash
# Scenarios in virtual machines, one after the other: real verbs (soft-RoCE), whole machines that die or freeze, ports
# that go down, packets that are lost. Usage: run.sh BUILD; VM_ONLY="name name" runs those with one of these in their
# name, VM_SHORT=1 a subset that takes a few minutes, VM_LIMIT=SECONDS ends after that; README.md has the rest.
# Prints a line for each and the sum; 77 when there can be no guests here. It must leave no process behind.
set -u
build=$(cd "${1:?usage: run.sh BUILD}" && pwd)
cd "$(dirname "$0")/../.."
here=$PWD/tests/vm
. tests/vm/guests.sh
mkdir -p "$vm/run"
passed=0 failed=0 skipped=0
stop_at=$((SECONDS + ${VM_LIMIT:-3600}))
trap 'guests_end' EXIT
trap 'exit 130' INT TERM

why=$(guests_prepare)
code=$?
if [ $code -ne 0 ]; then
    echo "vm: skipped: $why"
    [ $code -eq 77 ] && echo "0 passed, 0 failed, 1 skipped"
    exit $code
fi
guests_accelerator
slow=${VM_SLOW:-1}
echo "vm: kernel $(cat "$vm/version"), $guests_kind"
# Where not even an empty guest comes up in time, nothing that follows would say anything about Regroup.
guests_boot trial none true
if ! guests_wait $((60 * slow)) > "$run/log" 2>&1; then
    echo "vm: skipped: a guest does not come up here within $((60 * slow)) s: $(tail -n 1 "$run/log"); files in $run"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi

wanted() { # NAME LONG
    local w
    if [ -n "${VM_ONLY:-}" ]; then
        for w in $VM_ONLY; do [[ $1 == *$w* ]] && return 0; done
        return 1
    fi
    [ -z "${VM_SHORT:-}" ] || [ "$2" = short ]
}

# scenario NAME short|long SECONDS DEVICES COMMAND JUDGE: JUDGE is run here afterwards, with $run.
scenario() {
    local name=$1 size=$2 limit=$(($3 * slow)) devices=$4 command=$5 judge=${6:-true} begin=$SECONDS cut=0 log code
    wanted "$name" "$size" || return 0
    if [ $((SECONDS + 15)) -ge $stop_at ]; then
        echo "skip   $name: no time is left of VM_LIMIT=${VM_LIMIT:-}"
        skipped=$((skipped + 1))
        return 0
    fi
    [ $limit -gt $((stop_at - SECONDS)) ] && limit=$((stop_at - SECONDS)) && cut=1
    guests_boot "$name" "$devices" ". $here/inside.sh; $command"
    log=$run/log
    guests_wait $limit > "$log" 2>&1
    code=$?
    if [ $code -eq 124 ] && [ $cut = 1 ] && ! cat "$run"/ctl/code.[0-9] 2> /dev/null | grep -qv '^0$'; then
        echo "skip   $name: VM_LIMIT=${VM_LIMIT:-} ended it after $((SECONDS - begin)) s"
        skipped=$((skipped + 1))
        return 0
    fi
    [ $code -eq 0 ] && { $judge >> "$log" 2>&1 || code=1; }
    if [ $code -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok     $name ($((SECONDS - begin)) s) $(tail -n 1 "$log")"
    else
        failed=$((failed + 1))
        echo "FAILED $name ($((SECONDS - begin)) s), files in $run"
        sed 's/^/       /' "$log"
        for i in "$run"/out.*; do tail -n 15 "$i" | sed "s/^/       guest ${i##*.}: /"; done
    fi
}

# Judges: the records of all members agree, and so many stayed.
judge() { # MEMBERS-THAT-STAYED AT-LEAST-CALLS
    "$build/tests/vm" judge --calls "$2" "$run"/record.* | tee "$run/verdict"
    [ "${PIPESTATUS[0]}" -eq 0 ] && grep -q " $1 members stayed" "$run/verdict"
}
undisturbed() { judge "$@" && grep -q ", 0 calls failed" "$run/verdict"; }
one_out() { judge "$@" && grep -q ", 1 expelled or cut off" "$run/verdict"; }
measured() { undisturbed "$@" && echo "$(cat "$run/verdict"); $(cat "$run"/bench.all_reduce.* | grep '^ *[0-9]' | tail -n 1 |
    awk '{ printf "all_reduce of %d bytes: %d us", $1, $5 }')"; }
# As measured, and the devices of the first two guests did carry it.
over_rdma() {
    local packets n
    measured "$@" > "$run/measured" || { cat "$run/measured"; return 1; }
    for n in 1 2; do
        packets=$(sed -n 's/.*sent_pkts \([0-9]*\).*/\1/p' "$run/device.$n")
        [ "${packets:-0}" -ge 100 ] || { echo "the device of guest $n sent ${packets:-no} packets"; return 1; }
    done
    echo "$(tail -n 1 "$run/measured"), $packets packets over RDMA"
}
# Every member that joins sends or gets, from buffers of the library's own, up to four bursts of 256 KiB (as many as their
# time allows: a quick host makes all four) to learn how quick the links are; the benchmark moved at least 16 MiB. An
# all-reduce of two reduces one half of what it receives.
uncopied() {
    cat "$run"/copies.*.[0-9] | awk '/over RDMA/ { n++; sent += $8; copied += $16; reduced += $19
            if ($16 > 1100000) { print "copied: " $0; bad = 1 }
            if ($19 && ($19 * 2 > $12 || $19 * 2 + 1100000 < $12)) { print "not one pass: " $0; bad = 1 } }
        END { if (n != 3 || sent < 3 * 8000000 || reduced != 4 * 2097152) { print n + 0 " lines, sent " sent ", reduced " reduced; bad = 1 }
            print "of " sent " bytes sent " copied " were copied"; exit bad }'
}
fell_back() { undisturbed 2 150 && echo "$(cat "$run/verdict"); $(sed -n "s/.*link to member [0-9]*: \(rdma.*\)/\1/p" "$run"/out.* | sort -u | tr "\n" ";")"; }
shown() { grep -h 'apart\|^[a-z0-9]*: works\|says why\|cases passed' "$run/out.1" | tr '\n' ';'; }
stood_still() { grep -h 'reads of a member that stood still' "$run"/out.[0-9]; }

# Built in, and not merely to be asked for in vain?
has_rdma=
grep -q '"rdma"' tests/conformance.c && ldd "$build/libregroup.so" | grep -q libibverbs && has_rdma=1
. tests/vm/scenarios.sh
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
