#!/bin/bash
# The demonstration, and its judge: four peers train, one is killed by SIGKILL in mid step, a new one joins. Usage:
# demo.sh BUILD. The output is shown as it comes; afterwards it is read again, and the demo fails unless the loss fell,
# one member died, one joined, and all ended with equal parameters.
set -u
build=$1
log=$build/demo.log
steps=${STEPS:-300} kill_at=${KILL_AT:-80} join_at=${JOIN_AT:-160}
echo "demo: 4 peers, SIGKILL to peer 2 after step $kill_at, a newcomer after step $join_at, $steps steps"
begin=$SECONDS
timeout -k 5 110 "$build/regroup" run -n 4 --kill "2@match=step=$kill_at " --join "match=step=$join_at " -- \
    "$build/train_bytes" --steps "$steps" --batch 256 --hidden 256 . 2>&1 | tee "$log"
rc=${PIPESTATUS[0]}

bad=0
verdict() {
    if [ "$1" = 1 ]; then echo "  yes  $2"; else echo "  NO   $2"; bad=1; fi
}
# Mean loss of the first and of the last twenty steps that rank 0 printed.
read -r first last < <(grep -o 'step=[0-9]* loss=[0-9.]*' "$log" | sed 's/.*loss=//' | awk '
    { v[NR] = $1 } END { n = NR < 20 ? NR : 20; for (i = 1; i <= n; i++) { a += v[i]; b += v[NR - n + i] }
    if (n) printf "%.3f %.3f\n", a / n, b / n; else print "0 0" }')
lost=$(grep -o 'change: step=[0-9]* lost=[0-9]*' "$log" | sed 's/.*lost=//' | awk '{ s += $1 } END { print s + 0 }')
joined=$(grep -o 'change: .*joined=[0-9]*' "$log" | sed 's/.*joined=//' | awk '{ s += $1 } END { print s + 0 }')
equal=$(grep -c 'hashes equal' "$log")
echo
echo "demo: after $((SECONDS - begin)) s:"
verdict "$([ "$rc" = 0 ] && echo 1)" "the run ended well (exit code $rc)"
verdict "$(awk -v a="$first" -v b="$last" 'BEGIN { print (b > 0 && b < 0.9 * a) ? 1 : 0 }')" "the loss fell: $first to $last"
verdict "$([ "$lost" = 1 ] && echo 1)" "one member died: $lost"
verdict "$([ "$joined" = 1 ] && echo 1)" "one member joined: $joined"
verdict "$([ "$equal" = 1 ] && echo 1)" "$(grep -o 'hashes equal.*' "$log" || echo 'hashes equal')"
echo "demo: what each membership change stalled:"
grep -o 'stall: .*' "$log" | sed 's/^stall: /  /'
exit $bad
