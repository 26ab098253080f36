#!/bin/bash
# Runs each fuzz program for some seconds on its own corpus: fuzz.sh BUILD SECONDS. Ends with the count of programs that
# found nothing; an input that makes one fail is left in BUILD and named. FUZZ_ONLY="fuzz_core fuzz_wire" runs some only.
set -u
build=$1 seconds=$2 good=0 bad=0
for program in "$build"/fuzz/*; do
    [ -x "$program" ] || continue
    name=$(basename "$program")
    [ -z "${FUZZ_ONLY:-}" ] || [[ " $FUZZ_ONLY " == *" $name "* ]] || continue
    mkdir -p "$build/corpus/$name"
    seeds=tests/fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=
    echo "fuzz: $name for $seconds s"
    if "$program" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=0 -verbosity=1 \
        -artifact_prefix="$build/$name-" "$build/corpus/$name" $seeds > "$build/$name.log" 2>&1; then
        good=$((good + 1))
        grep -E '^Done ' "$build/$name.log"
    else
        bad=$((bad + 1))
        tail -n 40 "$build/$name.log"
        echo "fuzz: $name failed; the input is in $build/$name-*"
    fi
done
echo "$good passed, $bad failed, 0 skipped"
[ $bad -eq 0 ]
