#!/bin/bash
# clang's static analyser over the library, the command, examples and benchmarks: analyze.sh CLANG [FILE...].
# First it must find a planted use of freed memory and a planted null dereference, or it is no check. Prints each finding
# and ends with "N passed, N failed, 0 skipped", by files; 1 if anything was found. It writes nothing.
set -u
clang=$1
shift
flags="-std=c11 -D_GNU_SOURCE -Iinclude -Isrc -I. -Itests $(pkg-config --cflags libuv jansson libxxhash criterion 2> /dev/null)"
look() { $clang --analyze --analyzer-output text -Xclang -analyzer-werror $flags "$1" -o /dev/null 2>&1; }
export clang flags
export -f look

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
printf '#include <stdlib.h>\nint f(void);\nint f(void) { int *p = malloc(4); if (!p) return 0; *p = 1; free(p); return *p; }\n' > "$tmp/freed.c"
printf 'int f(int *p);\nint f(int *p) { return p ? 0 : *p; }\n' > "$tmp/null.c"
for planted in freed null; do
    if look "$tmp/$planted.c" > /dev/null; then
        echo "analyze: the planted fault in $planted.c was not found: this check is broken"
        exit 1
    fi
done
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(ls src/*.c src/*/*.c transports/*.c algorithms/*.c gpu/none.c tools/*.c \
    examples/*.c bench/*.c 2> /dev/null | sort)
one() { look "$1" > "$2/$(echo "$1" | tr / _).log" || echo "$1" >> "$2/bad"; }
export -f one
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -I{} bash -c 'one {} '"$tmp"
bad=0
if [ -f "$tmp/bad" ]; then
    bad=$(wc -l < "$tmp/bad")
    for f in $(sort "$tmp/bad"); do grep -A 30 -E ': (error|warning):' "$tmp/$(echo "$f" | tr / _).log"; done
fi
echo "$((${#files[@]} - bad)) passed, $bad failed, 0 skipped"
[ "$bad" -eq 0 ]
