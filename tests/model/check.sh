#!/bin/bash
# Explores group.pml with spin: check.sh BUILD [small|two|large]. Small is what `make check` can afford; two adds two
# faults of some kinds (3 to 10 minutes, 300 MB); large is `make model`, with hours of search, and has both.
# Every instance must be explored to its end without an error, and every planted error must give a counterexample in
# the instance that is named beside it: a model that cannot fail proves nothing. The trail of an error stays in
# BUILD/model/NAME.trail; "spin -t" shows it. Ends with "N passed, N failed, N skipped"; 77 when spin is missing.
set -u
build=$1 size=${2:-small} passed=0 failed=0
here=$(cd "$(dirname "$0")" && pwd)
command -v spin > /dev/null || { echo "model: spin is not installed (apt-get install -y spin)"; exit 77; }
mkdir -p "$build/model" && cd "$build/model" || exit 1
cc=${CC:-gcc}

# make_checker NAME DEFINES FLAGS: a search is as long as its states are many, so they are compressed.
make_checker() {
    [ "$1" -nt "$here/group.pml" ] && [ "$1" -nt "$here/check.sh" ] && return 0
    mkdir -p "src-$1"
    (cd "src-$1" && spin $2 -a "$here/group.pml" > spin.log 2>&1 &&
        $cc -O1 -w -DVECTORSZ=2048 $3 -o "../$1" pan.c >> spin.log 2>&1) || { cat "src-$1/spin.log"; return 1; }
}
make_checker safety "" "-DSAFETY -DCOLLAPSE -DMEMLIM=6000" || exit 1
make_checker compact "" "-DSAFETY -DHC4 -DMEMLIM=14000" || exit 1

# explore NAME WANTED CHECKER OPTIONS SETTINGS...: WANTED is 0 (no error) or 1 (an error).
explore() {
    local name=$1 want=$2 checker=$3 options=$4 log=$1.log
    shift 4
    env "$@" "./$checker" -m1000000 $options > "$log" 2>&1
    [ -e group.pml.trail ] && mv group.pml.trail "$name.trail"
    local errors states
    errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' "$log")
    states=$(awk '/states, stored/ { print $1 }' "$log")
    if [ "${errors:-x}" = "$want" ] && ! grep -q 'max search depth too small\|out of memory\|Search not completed' <<< "$(grep -v '^Warning: Search not completed' "$log")" &&
        { [ "$want" = 1 ] || ! grep -q 'Search not completed' "$log"; }; then
        passed=$((passed + 1))
        printf 'model: %-28s %9s states, %s\n' "$name" "$states" "$([ "$want" = 0 ] && echo 'all of them, no error' || echo 'the planted error is found')"
    else
        failed=$((failed + 1))
        printf 'model: %-28s FAILED: %s errors wanted, %s found in %s states\n' "$name" "$want" "${errors:-?}" "${states:-?}"
        tail -n 5 "$log"
    fi
}

# The protocol, rule L and S, one fault at any moment; and without a fault from the scenes of group.pml on.
explore rule-l 0 safety "" FAULTS=1
explore rule-s 0 safety "" FAULTS=1 RULE_S=1
explore chosen-and-lost 0 safety "" FAULTS=0 SCENE=2
explore all-fenced 0 safety "" FAULTS=0 SCENE=3
explore two-proposals 0 safety "" FAULTS=0 SCENE=6 WITNESS=0
# Two faults of these kinds (the numbers of group.pml): offices, members, members and offices, suspicions that are wrong
# alone and with deaths of members. Connections that break, with anything, are too many.
if [ "$size" != small ]; then
    explore two-offices 0 compact "" FAULTS=2 KINDS=16
    explore two-offices-no-witness 0 compact "" FAULTS=2 KINDS=16 WITNESS=0
    explore two-members 0 compact "" FAULTS=2 KINDS=4
    explore two-suspicions 0 compact "" FAULTS=2 KINDS=8
    explore two-suspicions-rule-s 0 compact "" FAULTS=2 KINDS=8 RULE_S=1
    explore member-and-office 0 compact "" FAULTS=2 KINDS=20
    explore member-and-office-rule-s 0 compact "" FAULTS=2 KINDS=20 RULE_S=1
    explore member-and-suspicion 0 compact "" FAULTS=2 KINDS=12
fi
if [ "$size" = large ]; then
    explore no-witness 0 safety "" FAULTS=1 WITNESS=0
    explore no-witness-rule-s 0 safety "" FAULTS=1 WITNESS=0 RULE_S=1
    explore wants-end 0 safety "" FAULTS=1 WANTS_END=1
    explore partition 0 safety "" FAULTS=0 SCENE=4
    explore promised-and-lost 0 safety "" FAULTS=0 SCENE=5 JOINS=1
    explore join 0 compact "" FAULTS=1 JOINS=1
    explore rule-l-2-faults 0 compact "" FAULTS=2
    explore rule-s-2-faults 0 compact "" FAULTS=2 RULE_S=1
    # No cycle without a fault, either: every run after the faults ends, and where is checked above.
    make_checker cycles "" "-DNP -DNOREDUCE -DCOLLAPSE -DMEMLIM=6000" && explore cycles 0 cycles "-l" FAULTS=1
fi

# Planted errors: the number is that of group.pml.
plant() {
    local name=$1 number=$2
    shift 2
    explore "planted-$name" 1 safety "" PLANT="$number" "$@"
}
plant acts-on-install 1 FAULTS=1
plant no-proposal-again 2 FAULTS=0 SCENE=2
plant half-is-a-quorum 3 FAULTS=0 SCENE=4
plant witness-votes-for-all 4 FAULTS=1
plant no-fence 5 FAULTS=1
plant no-copy 6 FAULTS=1 RULE_S=1
plant no-barrier 7 FAULTS=1
plant passes-promised-boundary 8 FAULTS=1 JOINS=1
plant promise-is-forgotten 9 FAULTS=0 SCENE=5 JOINS=1
plant fenced-are-forgotten 10 FAULTS=0 SCENE=3
plant lowest-term-wins 11 FAULTS=0 SCENE=6 WITNESS=0

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
