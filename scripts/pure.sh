#!/bin/sh
# Proves by symbol names that the pure parts cannot reach the world: usage pure.sh BUILD.
# src/core may call mem{cpy,move,set,cmp} and what src/core and src/status.c define; algorithms/ and src/sched one another
# and arithmetic; src/sched also needs memory, and formats text. The arithmetic of src/diloco may call sqrt
# and qsort. Helpers that the compiler calls by itself are no calls.
# Before it looks at anything it plants objects that call time() and rg_os_now_ns() and must find both: a checker that
# cannot fire is no checker.
set -eu
build=$1
cc=${CC:-gcc}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

core='mem(cpy|move|set|cmp)|_GLOBAL_OFFSET_TABLE_|__(popcount|clz|ctz|udiv|umod|div|mod|mul)[a-z0-9]*'
algorithms="$core|log|log2|ceil|floor|sqrt|fmin|fmax"
sched="$algorithms|malloc|calloc|realloc|free|qsort|v?snprintf|str(len|cmp|ncmp|chr|cspn|spn)|memchr"

# names LIST OBJECT...: writes what these objects define
names() {
    list=$1; shift
    : > "$list"
    for o in "$@"; do [ ! -e "$o" ] || nm --defined-only "$o" | awk 'NF == 3 { print $3 }' >> "$list"; done
}
names "$tmp/core" "$build"/obj/src/core/*.o "$build"/obj/src/status.o
names "$tmp/sched" "$build"/obj/src/sched/*.o "$build"/obj/algorithms/*.o "$build"/obj/gen/algorithms.o "$build"/obj/src/status.o

# foreign PATTERN LIST OBJECT...: prints every undefined name that neither the pattern nor the list covers
foreign() {
    pattern=$1 list=$2; shift 2
    for o in "$@"; do
        [ -e "$o" ] || continue
        nm -u "$o" | awk -v o="$o" -v p="^($pattern)\$" -v list="$list" '
            BEGIN { while ((getline line < list) > 0) known[line] = 1 }
            $1 == "U" && $2 !~ p && !($2 in known) { print o ": calls " $2 }'
    done
}

printf '#include <time.h>\nlong rg_planted(void);\nlong rg_planted(void) { return (long)time(0); }\n' > "$tmp/time.c"
printf 'long rg_os_now_ns(void);\nlong rg_planted(void);\nlong rg_planted(void) { return rg_os_now_ns(); }\n' > "$tmp/os.c"
for planted in time os; do
    $cc -std=c11 -fPIC -O2 -c -o "$tmp/$planted.o" "$tmp/$planted.c"
    if [ -z "$(foreign "$core" "$tmp/core" "$tmp/$planted.o")" ] || [ -z "$(foreign "$sched" "$tmp/sched" "$tmp/$planted.o")" ]; then
        echo "pure: the planted call in $planted.c was not found: this check is broken"; exit 1
    fi
done

bad=$(foreign "$core" "$tmp/core" "$build"/obj/src/core/*.o
      foreign "$algorithms" "$tmp/sched" "$build"/obj/algorithms/*.o
      foreign "$sched" "$tmp/sched" "$build"/obj/src/sched/*.o
      foreign "$core|sqrt|qsort" /dev/null "$build"/obj/src/diloco/outer.o "$build"/obj/src/diloco/pack.o)
if [ -n "$bad" ]; then
    echo "$bad"
    echo "pure: the core, the algorithms and the schedules must not reach the system: pass the value in as an event or argument"
    exit 1
fi
echo "pure: core, algorithms and schedules call nothing outside (planted calls of time() and rg_os_now_ns() are found)"
