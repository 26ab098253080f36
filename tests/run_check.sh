#!/bin/bash
# Proves that tests/run counts what it must not miss: it is fed with programs that pass, fail, skip, crash, hang and
# contradict themselves, in a folder of their own. It must not look at the real tests.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/tests"
bad=0 good=0

# expect WANT SCRIPT: a test program with this text must make tests/run end with this line
expect() {
    printf '#!/bin/sh\n%s\n' "$2" > "$folder/tests/planted"
    chmod +x "$folder/tests/planted"
    local got
    got=$(BUILD=$folder SAN='' CHECK_ONLY=planted CHECK_LIMIT=1 bash tests/run | tail -n 1)
    if [ "$got" = "$1" ]; then good=$((good + 1)); else bad=$((bad + 1)); echo "for '$2': expected '$1', got '$got'"; fi
}
expect '1 passed, 0 failed, 0 skipped' 'exit 0'
expect '0 passed, 1 failed, 0 skipped' 'exit 1'
expect '0 passed, 0 failed, 1 skipped' 'exit 77'
expect '0 passed, 1 failed, 0 skipped' 'kill -SEGV $$'
expect '0 passed, 1 failed, 0 skipped' 'exec tail -f /dev/null'
expect '7 passed, 2 failed, 3 skipped' 'echo "7 passed, 2 failed, 3 skipped"; exit 1'
expect '7 passed, 1 failed, 0 skipped' 'echo "7 passed, 0 failed, 0 skipped"; exit 1'
expect '4 passed, 1 failed, 1 skipped' 'echo "[====] Synthesis: Tested: 6 | Passing: 4 | Failing: 1 | Crashing: 1"; exit 1'
# A report of a sanitizer that the exit code and the summary keep silent about.
said='echo "4 passed, 0 failed, 0 skipped"; echo'
expect '4 passed, 1 failed, 0 skipped' "$said '==7==ERROR: LeakSanitizer: detected memory leaks'"
expect '4 passed, 1 failed, 0 skipped' "$said '==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x1'"
expect '4 passed, 1 failed, 0 skipped' "$said 'WARNING: ThreadSanitizer: data race (pid=7)'"
expect '4 passed, 1 failed, 0 skipped' "$said 'src/a.c:1:2: runtime error: signed integer overflow'"
expect '4 passed, 0 failed, 0 skipped' "$said 'a test that names LeakSanitizer'"
# What failed is shown wherever in the log it stands.
printf '#!/bin/sh\necho why it failed\necho "FAIL a.b 0.1 s exit 1"\nseq 1000\nexit 1\n' > "$folder/tests/planted"
said=$(BUILD=$folder SAN='' CHECK_ONLY=planted bash tests/run)
case $said in
*"why it failed"*"FAIL a.b"*) good=$((good + 1)) ;;
*) bad=$((bad + 1)) && echo "a failure long before the log's end is not shown" ;;
esac
echo "$good passed, $bad failed, 0 skipped"
[ $bad -eq 0 ]
