#!/bin/sh
# Proves by symbol names that the pure parts cannot reach the world: usage pure.sh BUILD.
# src/core may call rg_* and mem{cpy,move,set,cmp}; algorithms/ the same; src/sched also needs memory and formats text.
# Before it looks at anything it plants an object that calls time() and must find it: a checker that cannot fire is no
# checker.
set -eu
build=$1
cc=${CC:-gcc}
core='rg_[a-z0-9_]*|mem(cpy|move|set|cmp)|_GLOBAL_OFFSET_TABLE_'
sched="$core|malloc|calloc|realloc|free|v?snprintf|str(len|cmp|ncmp|chr|cspn|spn)|memchr"

# allowed PATTERN FILE...: prints every undefined name that the pattern does not cover, with its file
foreign() {
    pattern=$1; shift
    for o in "$@"; do
        [ -e "$o" ] || continue
        nm -u "$o" | awk -v o="$o" -v p="^($pattern)\$" '$1 == "U" && $2 !~ p { print o ": calls " $2 }'
    done
}

planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
printf '#include <time.h>\nlong rg_planted(void);\nlong rg_planted(void) { return (long)time(0); }\n' > "$planted/p.c"
$cc -std=c11 -fPIC -O2 -c -o "$planted/p.o" "$planted/p.c"
for pattern in "$core" "$sched"; do
    if [ -z "$(foreign "$pattern" "$planted/p.o")" ]; then
        echo "pure: the planted call of time() was not found: this check is broken"; exit 1
    fi
done

bad=$(foreign "$core" "$build"/obj/src/core/*.o "$build"/obj/algorithms/*.o
      foreign "$sched" "$build"/obj/src/sched/*.o)
if [ -n "$bad" ]; then
    echo "$bad"
    echo "pure: the core, the algorithms and the schedules must not reach the system: pass the value in as an event or argument"
    exit 1
fi
echo "pure: core, algorithms and schedules call nothing outside (a planted call of time() is found)"
