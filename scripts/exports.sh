#!/bin/sh
# Three lists must be one: what the public headers declare, what regroup.map names, what the library shows. Usage:
# exports.sh LIBRARY, from the root of the repository.
set -eu
lib=$1
public="include/regroup.h include/regroup_quant.h include/regroup_sparse.h include/regroup_quorum.h include/regroup_diloco.h include/regroup_window.h"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
sed -n '/^global:/,/^local:/p' regroup.map | grep -oE 'rg_[a-z0-9_]+' | sort > "$tmp/map"
# A declaration starts in the first column and has the name before its first parenthesis.
grep -ohE '^[a-z][a-z0-9_ ]*[ *]rg_[a-z0-9_]+\(' $public | grep -oE 'rg_[a-z0-9_]+\($' | tr -d '(' | sort > "$tmp/header"
nm -D --defined-only "$lib" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort > "$tmp/library"
differ() {
    if ! diff "$1" "$2" > "$tmp/diff"; then
        echo "exports: $3 (<) and $4 (>) differ:"; grep '^[<>]' "$tmp/diff"; return 1
    fi
}
sed 1d "$tmp/map" > "$tmp/planted"
if differ "$tmp/map" "$tmp/planted" x y > /dev/null; then
    echo "exports: a planted missing name was not found: this check is broken"; exit 1
fi
differ "$tmp/header" "$tmp/map" "$public" regroup.map
differ "$tmp/map" "$tmp/library" regroup.map "$lib"
echo "exports: $(wc -l < "$tmp/map") names in header, map and library alike"
