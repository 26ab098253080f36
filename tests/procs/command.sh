#!/bin/bash
# The `regroup` command as a user meets it: exit codes, help, faults that come and that do not come, the summary, the
# time limit, a coordinator and its status. Usage: command.sh BUILD. It waits for output, never for time alone.
set -u
build=${1:?usage: command.sh BUILD}
regroup=$build/regroup
tmp=$(mktemp -d)
passed=0 failed=0
pids=
trap '[ -n "$pids" ] && kill $pids 2> /dev/null; rm -rf "$tmp"' EXIT

ok() { # NAME CONDITION...
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); echo "ok     command__$name"
    else failed=$((failed + 1)); echo "FAILED command__$name"; sed 's/^/       /' "$tmp/out" "$tmp/err" | tail -n 12; fi
}
# exits CODE ARGUMENTS...: runs the command, keeps what it printed
exits() {
    local want=$1 rc
    shift
    timeout 60 "$regroup" "$@" > "$tmp/out" 2> "$tmp/err"
    rc=$?
    [ $rc -eq "$want" ] || { echo "exit $rc, expected $want" >> "$tmp/err"; return 1; }
}
says() { grep -q -- "$1" "$tmp/out" "$tmp/err"; }
both() { local want=$1 text=$2; shift 2; exits "$want" "$@" && says "$text"; }
seen() { # TEXT FILE: waits up to 20 s
    local n
    for n in $(seq 200); do grep -q -- "$1" "$2" 2> /dev/null && return 0; read -rt 0.1 <> <(:) || true; done
    return 1
}

ok no_command__usage exits 2
ok unknown_command__usage both 2 "no command" frobnicate
ok help__on_standard_output both 0 "usage: regroup" --help
for c in coordinator run bench explain tune stress status keygen doctor; do ok "help_of_${c}__has_examples" both 0 example $c --help; done
ok version__printed both 0 "regroup [0-9]" version
for c in coordinator run bench explain tune stress status keygen doctor; do ok "wrong_option_of_${c}__usage" both 2 "regroup $c: --frobnicate is no option" $c --frobnicate; done
# What cannot be written is not a success, and a closed stream's number is not taken for something else.
lost() { # STREAMS ARGUMENTS...: the result gets lost, and it says so
    local streams=$1 rc
    shift
    eval "timeout 60 \"\$regroup\" \"\$@\" $streams" > "$tmp/out" 2> "$tmp/err"
    rc=$?
    [ $rc -eq 1 ] && says "regroup $1: standard output cannot be written"
}
for c in version "help" "explain all_reduce 1M" "bench all_reduce -n 2 -b 1K -e 1K -i 2 --json" "run -n 1 -- echo lost" "doctor --json" "keygen --help"; do
    ok "full_disk__${c%% *}" lost '> /dev/full' $c
    ok "stdout_closed__${c%% *}" lost '>&-' $c
done
silent() { timeout 60 "$regroup" "$@" <&- >&- 2>&-; [ $? -eq 1 ]; }
for c in "bench all_reduce -n 2 -b 1K -e 1K -i 2" "run -n 2 -- echo lost"; do ok "all_streams_closed__${c%% *}__fails_in_order" silent $c; done
# Numbers that nobody means, everywhere where a number is taken; and what is there too often, or not at all.
for v in 0 -1 99999999999999999999 1e9 0x10 "" x; do
    for c in "run -n" "bench all_reduce -n" "explain all_reduce -n" "tune -n" "stress -n" \
        "bench all_reduce -b 1 -e" "bench all_reduce -f" "coordinator --max-members" "status 127.0.0.1:1 --timeout"; do
        ok "number_${v:-none}_of_${c// /_}__usage" both 2 "is not what --\|expected 0.001 to 3600 seconds" $c "$v"
    done
done
for c in coordinator bench explain tune stress status keygen doctor; do ok "${c}__too_many_words__usage" both 2 "regroup $c: " $c all_reduce 127.0.0.1:1 a b c; done
ok version__with_a_word_too_many__usage both 2 "regroup version: " version now
ok option__given_twice__the_last_one_counts both 0 "3 members" explain all_reduce 1M -n 2 -n 3
ok coordinator__listens_on_nothing__usage both 2 "is not what --listen takes" coordinator --listen ""
ok keygen__no_file both 2 "a file for the group key" keygen ""
ok keygen__no_folder both 2 "which folder" keygen --ca ""
ok command__of_no_letters__usage both 2 "no command" ""
ok run__without_a_program both 2 "no program" run -n 2
# What the library would refuse is refused as an option, with its limits.
for c in --heartbeat --takeover --max-members; do
    ok "coordinator__beyond_the_limits_of_${c}" both 2 "\"9\?[02-9]*\" is not what $c takes: a whole number from 10\? to" coordinator $c $([ $c = --max-members ] && echo 2000 || echo 9)
done
ok run__beyond_the_limits_of__heartbeat both 2 "10 to 3600000" run -n 1 --heartbeat 9 -- true
long=$(printf 'x%.0s' $(seq 64))
for name in '' $'a\nb' $'a\e[31m' $'\xc2\x9b31m' $'\xff\xfe' $'\xe2\x80\xaeno' "$long"; do
    ok "run__group_that_is_no_name__$(printf %s "$name" | od -An -tx1 | tr -d ' \n' | cut -c 1-12)" both 2 "is not what --group takes" run -n 1 -g "$name" -- true
done
ok run__group_of_many_scripts both 0 "0 failed" run -n 1 -g 'Gruppe ü"\ 組' -- "$build/hello"
label() { local -x RG_LABEL=$1; both 1 "RG_LABEL has .* printable text" run -n 1 -- "$build/hello"; }
for name in $'\xc2\x9b31m' $'\xff' $'\e[2J'; do ok "label_that_moves_the_cursor__$(printf %s "$name" | od -An -tx1 | tr -d ' \n')" label "$name"; done
dry() { CHECK_ONLY=nothing make -n check BUILD="$tmp/dry" > "$tmp/out" 2> "$tmp/err" < /dev/null; [ ! -e "$tmp/dry" ] || [ ! -e "$tmp/dry/logs" ]; }
ok make_dry_run_of_check__runs_nothing dry
ok run__bad_fault both 2 "\"1\" is not what --kill takes" run -n 2 --kill 1 -- true
ok run__bad_number_of_a_short_option both 2 "\"none\" is not what --peers takes: N, peers to start, 1 to 256" run -n none -- true
ok run__option_without_its_value both 2 "regroup run: -n is no option, or lacks its value" run -n
from_environment() { local -x RG_RECONNECT_MS=soon; both 1 "RG_RECONNECT_MS is \"soon\"" run -n 1 -- true; }
ok run__environment__counts_for_the_coordinator from_environment
ok coordinator__bad_number both 2 "\"soon\" is not what --reconnect takes" coordinator --reconnect soon
standby() { local -x RG_STANDBY=127.0.0.1:1; both 0 " 0 failed\|errors: 0" "$@"; }
ok run__standby_in_the_environment__not_for_its_coordinator standby run -n 1 --timeout 20 -- "$build/hello"
ok bench__standby_in_the_environment__not_for_its_coordinator standby bench all_reduce -n 2 -b 1K -e 1K -i 2
hang_up() {
    "$regroup" run -n 1 -- sh -c 'trap "echo was asked; exit 0" TERM; echo ready; while :; do sleep 0.1; done' > "$tmp/hup" 2> "$tmp/err" &
    local pid=$!
    seen ready "$tmp/hup" && kill -HUP $pid
    wait $pid
    [ $? -eq 1 ] && says interrupted && grep -q "was asked" "$tmp/hup"
}
ok run__hang_up__peers_are_asked_to_end hang_up
ok run__fault_of_a_peer_that_is_none both 2 "there is no peer 9" run -n 2 --kill 9@1 -- true
ok run__fault_of_a_peer_that_joins__taken both 1 "did not take place" run -n 1 --join match=never --kill 1@match=never -- true
ok run__fault_of_a_peer_before_it_joins both 2 "peer 2 has not joined by 1.000 s" run -n 2 --kill 2@1 --join 3 -- true
ok run__fault_of_a_peer_that_is_dead both 2 "peer 1 has been killed by 7.000 s" run -n 2 --kill 1@5 --stop 1@7 -- true
ok run__fault_after_the_time_limit both 2 "a --join at 9.000 s never comes" run -n 2 --join 9 --timeout 5 -- true
ok run__stopped_and_never_continued both 2 "\"1@2+0\" is not what --stop takes" run -n 2 --stop 1@2+0 -- true
ok run__more_wanted_than_there_will_be both 2 "3 peers are all" run -n 2 --join 1 --min-size 4 -- true
ok run__time_in_another_base both 2 "\"1@0x10\" is not what --kill takes" run -n 2 --kill 1@0x10 -- true
ok run__bad_time both 2 "\"soon\" is not what --join takes" run -n 2 --join soon -- true
ok bench__unknown_collective both 2 "no collective" bench all_scatter
ok bench__sizes_the_wrong_way_round both 2 "larger" bench all_reduce -b 2M -e 1M
ok status__nobody_there both 1 "127.0.0.1:1" status 127.0.0.1:1 --timeout 2
# What is wrong, and what to do about it; warnings count only when asked.
doctor() { # VARIABLE=VALUE CODE TEXT ARGUMENTS...
    local -x "$1"
    shift
    both "$@"
}
ok doctor__this_host both 0 " ok, .* 0 bad" doctor
ok doctor__says_what_members_are_told says '^[a-z]* *address '
ok doctor__nobody_there both 1 "BAD *coordinator .*127.0.0.1:1" doctor 127.0.0.1:1 --timeout 2
ok doctor__misspelt_variable doctor RG_SUCESSION=on 0 "did you mean RG_SUCCESSION" doctor
ok doctor__misspelt_variable__strict doctor RG_SUCESSION=on 1 "RG_SUCESSION is none" doctor --strict
ok doctor__bad_value doctor RG_RAILS=99 1 "BAD *variables *RG_RAILS is 99" doctor
ok doctor__no_such_interface doctor RG_INTERFACE=nonesuch 1 "BAD *address .*nonesuch" doctor
ok doctor__no_key_in_the_file doctor RG_TLS_PSK_FILE=/dev/null 1 "BAD *tls .*/dev/null" doctor
ok doctor__json both 1 '"what":"coordinator","state":"BAD"' doctor 127.0.0.1:1 --json
ok coordinator__address_that_is_none exits 1 coordinator --listen nonsense

ok run__all_well both 0 "3 peers, 0 killed, 0 failed" run -n 3 -- sh -c 'echo hello $RG_ORDER of $RG_MIN_SIZE'
ok run__prefix says '^\[2\] hello 2 of 3$'
ok run__no_prefix both 0 '^hello 0' run -n 1 --no-prefix -- sh -c 'echo hello $RG_ORDER'
ok run__one_fails both 1 "1 failed" run -n 2 -- sh -c '[ $RG_ORDER = 0 ]'
ok run__no_such_program both 1 "cannot start" run -n 1 -- /nonexistent/program
ok run__kill__not_held_against_it both 0 "1 killed, 0 failed" run -n 2 --kill 1@100ms -- sh -c '[ $RG_ORDER = 0 ] || exec sleep 60'
ok run__kill_by_text both 0 "1 killed, 0 failed" run -n 2 --kill 0@match=ready -- sh -c 'echo ready; [ $RG_ORDER = 1 ] || exec sleep 60'
ok run__fault_that_never_came both 1 "did not take place" run -n 1 --kill 0@match=never -- true
ok run__join both 0 "3 peers" run -n 2 --join match=hello -- sh -c 'echo hello; sleep 0.2'
ok run__stop_and_continue both 0 "SIGCONT" run -n 1 --stop 0@match=ready+200ms -- sh -c 'echo ready; sleep 0.5'
ok run__stopped_for_good__killed_at_the_end both 0 "1 killed" run -n 2 --stop 1@match=ready -- sh -c 'echo ready; sleep 0.5'
ok run__time_limit both 1 "time limit" run -n 1 --timeout 300ms -- sleep 60

"$regroup" coordinator --listen 127.0.0.1:0 > "$tmp/co" 2> "$tmp/co.err" &
pids=$!
ok coordinator__prints_its_address seen '^127.0.0.1:[0-9]' "$tmp/co"
address=$(head -n 1 "$tmp/co")
ok coordinator__address_in_use both 1 "$address" coordinator --listen "$address"
RG_STANDBY=$address "$regroup" coordinator > "$tmp/by" 2> "$tmp/by.err" &
by=$!
pids="$pids $by"
ok coordinator__standby_by_variable__implies_succession seen '^127.0.0.1:[0-9]' "$tmp/by"
kill $by && wait $by
pids=${pids% *}
ok status__no_groups both 0 "no groups" status "$address"
pair() { RG_COORDINATOR=$address RG_GROUP=pair RG_MIN_SIZE=2 "$regroup" bench all_reduce -b 64K -e 64K -i 3000 > "$1" 2>&1; }
# The first member waits for the second, so the group stays while it is looked at.
known() {
    local until=$((SECONDS + 20))
    until "$regroup" status "$address" | grep -q 'group pair'; do [ $SECONDS -lt $until ] || return 1; done
}
pair "$tmp/b0" &
one=$!
ok status__a_member_that_waits known
ok status__shows_the_group both 0 "group pair" status "$address"
ok status__shows_hosts_and_links says 'host .*site .*links'
ok doctor__coordinator_that_answers both 0 "ok *coordinator .* 1 group$" doctor "$address"
ok status__json both 0 '"name":"pair"' status "$address" --json
pair "$tmp/b1" &
two=$!
ok coordinator__logs_the_change seen 'pair' "$tmp/co"
wait $one; rc1=$?
wait $two; rc2=$?
cat "$tmp/b0" "$tmp/b1" > "$tmp/out"
ok bench__members_of_a_real_coordinator [ "$rc1$rc2" = 00 ]
ok bench__prints_its_row says '65536'
kill -TERM $pids
wait $pids; rc=$?
pids=
ok coordinator__ends_on_sigterm [ $rc -eq 0 ]
ok bench__spawned_and_checked both 0 '"errors": 0' bench all_reduce -n 3 -b 4K -e 1M -f 16 -i 5 --check --json
ok bench__types_and_operators both 0 "errors: 0" bench all_reduce -n 2 -b 1000 -e 1000 -t bf16 -o avg -i 3 --check
ok bench__broadcast both 0 "errors: 0" bench broadcast -n 3 -b 64K -e 64K -r 2 -i 3 --check --in-place
ok bench__barrier both 0 "errors: 0" bench barrier -n 2 -i 10
ok bench__root_that_is_none exits 2 bench broadcast -n 2 -b 4K -e 4K -r 9
for c in all_gather reduce_scatter reduce gather scatter all_to_all; do
    ok "bench__${c}" both 0 "errors: 0" bench $c -n 3 -b 1000 -e 64K -f 64 -i 3 --check
    ok "bench__${c}__in_place_with_own_memory" both 0 "errors: 0" bench $c -n 2 -b 64K -e 64K -i 3 --check --in-place --alloc -t f8e4m3
done
ok bench__send_recv both 0 "errors: 0" bench send_recv -n 3 -b 8 -e 64K -f 8192 -i 3 --check
ok bench__named_algorithm both 0 "all_reduce=ring" bench all_reduce -n 2 -b 4K -e 4K -i 3 --algorithm ring
ok bench__algorithm_that_is_none both 1 "no 'squid'" bench all_reduce -n 2 -b 4K -e 4K -i 3 --algorithm squid
ok bench__average_of_integers both 2 "average of integers" bench all_reduce -n 2 -t i32 -o avg
ok explain__choice_and_steps both 0 'is the choice of the cost model' explain all_reduce 1M -n 4
ok explain__prints_a_schedule says 'recv_reduce'
ok explain__forced both 0 'ring is the choice of the caller' explain all_reduce 1M -n 4 --algorithm ring
ok explain__hosts both 0 'between hosts' explain all_gather 64K -n 8 --hosts 2
ok explain__json both 0 '"predicted_us"' explain reduce_scatter 64K -n 5 --json
ok explain__more_hosts_than_members exits 2 explain all_reduce 1M -n 2 --hosts 3
ok explain__no_such_group both 1 "127.0.0.1:1" explain all_reduce 1M -c 127.0.0.1:1
ok tune__writes_a_file both 0 "written: $tmp/tuning" tune -n 2 -k all_reduce,broadcast -b 4K -e 64K -f 16 --rounds 1 --budget 0.002 --chunks - -o "$tmp/tuning"
ok tune__form_of_the_file grep -q '^all_reduce size=2 hosts=1 .*algorithm=' "$tmp/tuning"
tuned() { RG_TUNING_FILE=$tmp/tuning both 0 "errors: 0" bench all_reduce -n 2 -b 4K -e 4K -i 3; }
ok tune__the_file_is_used tuned
ok explain__tuning_file both 0 'is the choice of the tuning file' explain all_reduce 4K -n 2 --tuning-file "$tmp/tuning"
echo "all_reduce algorithm=squid" > "$tmp/tuning"
ok explain__wrong_tuning_file both 1 "line 1" explain all_reduce 4K -n 2 --tuning-file "$tmp/tuning"
mkfifo "$tmp/pipe"
ok tune__in_the_place_of_a_pipe__refused both 1 "a pipe or a socket" tune -n 1 -k all_reduce -b 4K -e 4K --rounds 1 --budget 0.002 --chunks - -o "$tmp/pipe"
ok tune__in_the_place_of_a_pipe__still_there test -p "$tmp/pipe"
ok tune__collective_that_is_none exits 2 tune -n 2 -k all_scatter
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
