# inside.sh: what the guests do. Sourced by the command of each guest (init); run.sh calls the scenario of its choice
# with the transport as first argument. NODE, NODES, IP, DEVICE, BUILD, SHARED and CTL come from init. What is written
# below $SHARED is seen by all guests and by the host, which judges it. It must not wait for anything without a limit.
export RG_COORDINATOR=10.78.0.1:7000 RG_INTERFACE=eth0 RG_JOIN_TIMEOUT_MS=60000 RG_LOG=${RG_LOG-warn}
heartbeat=${VM_HEARTBEAT:-5000}
vm=$BUILD/tests/vm
plant= # on one guest: value, input, guard, late, outcome; elsewhere: spare (nothing is done to anybody), delay, copy
case ${VM_PLANT:-} in value | input | guard | late | outcome) [ "$NODE" = 2 ] && plant="--plant $VM_PLANT" ;; esac
regroup=$BUILD/regroup

fail() { echo "WRONG: $*"; exit 1; }

until_true() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "waited in vain for: $*"; return 1; }
        busybox usleep 50000
    done
}
met() { [ "$(ls "$CTL" | grep -c "^met\.$1\.[0-9]$")" -ge "$NODES" ]; }
meet() { # NAME: all guests
    : > "$CTL/met.$1.$NODE"
    until_true 120 met "$1" || exit 1
}

coordinator() {
    if [ "$NODE" = 1 ]; then
        "$regroup" coordinator --listen 0.0.0.0:7000 --heartbeat "$heartbeat" > "$SHARED/coordinator" 2>&1 &
        until_true 30 test -s "$SHARED/coordinator" || exit 1
    fi
    meet coordinator
}
lines() { [ -e "$1" ] && [ "$(wc -l < "$1")" -ge "$2" ]; }
ask() { : > "$CTL/$1"; until_true 60 test -e "$CTL/did-$1"; } # the host: kill.N stop.N cont.N

scenario_conformance() {
    "$BUILD/tests/conformance" "$1" || return 1
    [ "$1" != rdma ] || "$BUILD/tests/conformance" rdma-regions
}

# Random collectives, every element checked, and the benchmark's own check over sizes.
scenario_collectives() {
    export RG_TRANSPORT=$1 RG_MIN_SIZE=$NODES
    coordinator
    "$vm" member "$SHARED/record.$NODE" $plant --rounds "$2" --bytes "$3" || exit 1
    [ "$DEVICE" = none ] || rdma statistic show > "$SHARED/device.$NODE"
    meet members
    for c in all_reduce all_to_all; do
        RG_GROUP=bench-$c "$regroup" bench $c -b 64 -e 1M -f 128 -w 1 -i 3 --check > "$SHARED/bench.$c.$NODE" || exit 1
    done
    cat "$SHARED"/bench.*."$NODE"
}

# What the processor moves of buffers that are registered; and that the options are obeyed, or refused with a reason.
scenario_copies() {
    export RG_TRANSPORT=$1 RG_MIN_SIZE=$NODES RG_RDMA_DEVICE=$DEVICE:1 RG_RDMA_TRAFFIC_CLASS=104
    [ "$VM_PLANT" = copy ] && export RG_RDMA_DIRECT=off
    if RG_RDMA_DEVICE=none0 RG_MIN_SIZE=1 timeout 60 "$regroup" bench barrier -n 1 > /tmp/out 2>&1; then fail "there is no none0"; fi
    grep -q "RG_RDMA_DEVICE is none0.*devices here: $DEVICE" /tmp/out || { cat /tmp/out; fail "the text does not say what there is"; }
    coordinator
    for c in all_gather broadcast all_reduce; do
        RG_GROUP=copies-$c "$regroup" bench $c --alloc -b 4M -e 4M -w 1 -i 3 --check > "$SHARED/copies.$c.$NODE" || exit 1
        cat "$SHARED/copies.$c.$NODE"
    done
}

# $2 members on each guest, all in one group, each with a queue pair to every one of the other guests (rdma: of its own,
# too): a call comes right, and what all this takes of the device and of memory is shown. $3: milliseconds that it may
# take to come together.
available() { sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo; }
scenario_many() {
    export RG_TRANSPORT=$1 RG_MIN_SIZE=$(($2 * NODES)) RG_GROUP=many RG_JOIN_TIMEOUT_MS=$3 RG_OP_TIMEOUT_MS=$3
    local members=() i before now least most_pairs=0 regions=0 bad=0 pairs=$(($2 * $2 * (NODES - 1)))
    [ "$1" = rdma ] && pairs=$(($2 * ($2 * NODES - 1)))
    heartbeat=60000 # so many processes have one emulated processor
    ulimit -n 65536
    coordinator
    before=$(available) least=$before
    for i in $(seq "$2"); do
        "$regroup" bench all_reduce -b 64K -e 64K -w 1 -i 2 --check > "/tmp/many.$i" 2>&1 &
        members+=($!)
    done
    while kill -0 "${members[@]}" 2> /dev/null; do # as long as one is there
        read -r now i < <(rdma resource show | sed -n 's/.* qp \([0-9]*\) .* mr \([0-9]*\).*/\1 \2/p')
        [ "${now:-0}" -gt $most_pairs ] && most_pairs=$now regions=$i
        now=$(available)
        [ "$now" -lt "$least" ] && least=$now
        busybox usleep 500000
    done
    for i in "${!members[@]}"; do wait "${members[i]}" || { bad=1; tail -n 2 "/tmp/many.$((i + 1))"; }; done
    rdma resource show
    cat /tmp/many.* | grep '^ *[0-9]'
    [ $bad = 0 ] || fail "not all members came to their end"
    [ $most_pairs -ge $pairs ] || fail "at most $most_pairs queue pairs were seen of $pairs"
    echo "$2: works, of $RG_MIN_SIZE members; $most_pairs queue pairs, $regions regions, $(((before - least) / $2)) KiB of memory for each member"
}

# Two members in this guest over two devices, each of which carries its half.
scenario_two_devices() {
    modprobe dummy
    ip link add dummy0 type dummy && ip link set dummy0 mtu 9000 up && ip addr add 10.79.0.1/24 dev dummy0 || exit 1
    rdma link add rxe1 type rxe netdev dummy0 || fail "no second device"
    export RG_TRANSPORT=rdma RG_INTERFACE=eth0,dummy0 RG_RDMA_DEVICE=rxe0,rxe1
    unset RG_COORDINATOR
    for alloc in "" --alloc; do
        "$regroup" bench all_reduce -n 2 $alloc -b 4M -e 4M -w 1 -i 3 --check || exit 1
    done
    rdma statistic show > /tmp/devices
    cat /tmp/devices
    for d in rxe0 rxe1; do
        packets=$(sed -n "s,.*link $d/.*sent_pkts \([0-9]*\).*,\1,p" /tmp/devices)
        [ "${packets:-0}" -ge 1000 ] || fail "$d sent ${packets:-no} packets"
        echo "$d: works, $packets packets"
    done
}

# Windows whose memory is registered: what others read, they read without the process that it belongs to.
scenario_windows() {
    export RG_TRANSPORT=$1 RG_MIN_SIZE=$NODES
    export RG_ORDER=$NODE
    [ "$VM_PLANT" = copy ] && export RG_RDMA_DIRECT=off
    coordinator
    if [ "$NODE" != 1 ]; then
        "$vm" window "$SHARED" "$2"
        return
    fi
    "$vm" window "$SHARED" "$2" &
    member=$!
    until_true 120 test -e "$SHARED/still" || exit 1
    kill -STOP $member
    : > "$SHARED/stopped"
    until_true $((heartbeat * 7 / 10000)) test -e "$SHARED/read"
    read=$?
    : > "$SHARED/read" # nobody waits for it in vain
    kill -CONT $member
    wait $member && [ $read = 0 ]
}

# $2 kills of members on the first guest.
scenario_kills() {
    export RG_TRANSPORT=$1 RG_MIN_SIZE=4
    coordinator
    if [ "$NODE" = 1 ]; then
        "$vm" supervise "$SHARED/record.$NODE" --members 2 --kills "$2" --gap 1500 --bytes 300000 --stop "$SHARED/stop"
    else
        "$vm" supervise "$SHARED/record.$NODE" --members 2 --bytes 300000 --stop "$SHARED/stop"
    fi
}

# The last guest loses its power while all work, after $2 calls.
scenario_guest_killed() {
    export RG_TRANSPORT=$1 RG_MIN_SIZE=$NODES
    coordinator
    "$vm" member "$SHARED/record.$NODE" $plant --bytes 300000 --stop "$SHARED/stop" &
    member=$!
    if [ "$NODE" = 1 ]; then
        until_true 120 lines "$SHARED/record.1" "$2" || exit 1
        ask "kill.$NODES" || exit 1
        count=$(wc -l < "$SHARED/record.1")
        until_true 120 lines "$SHARED/record.1" $((count + 40)) || exit 1
        : > "$SHARED/stop"
    fi
    wait $member
}

# The last guest is frozen for longer than the heartbeat: the others go on, and it is told so when it is back.
scenario_frozen() {
    export RG_TRANSPORT=$1 RG_MIN_SIZE=$NODES
    coordinator
    "$vm" member "$SHARED/record.$NODE" $plant --bytes 300000 --stop "$SHARED/stop" &
    member=$!
    if [ "$NODE" = 1 ]; then
        until_true 120 lines "$SHARED/record.1" 60 || exit 1
        ask "stop.$NODES" || exit 1
        count=$(wc -l < "$SHARED/record.1")
        until_true 120 lines "$SHARED/record.1" $((count + 40)) || exit 1
        ask "cont.$NODES" || exit 1
        until_true 60 grep -q ^end "$SHARED/record.$NODES" || exit 1
        : > "$SHARED/stop"
    fi
    wait $member
    code=$?
    [ "$NODE" = "$NODES" ] || return $code
    [ $code = 3 ] || fail "the frozen member was not told that it was expelled (exit code $code)"
}

# The last guest's port goes down: for a fifth of the heartbeat, which all survive; then for longer. It is told that it was
# expelled or, if it calls before that is known, that it cannot reach anybody.
scenario_port() {
    export RG_TRANSPORT=$1 RG_MIN_SIZE=$NODES
    coordinator
    "$vm" member "$SHARED/record.$NODE" $plant --bytes 300000 --stop "$SHARED/stop" &
    member=$!
    if [ "$NODE" = "$NODES" ]; then
        until_true 120 lines "$SHARED/record.$NODE" 60 || exit 1
        [ "$VM_PLANT" = spare ] || ip link set eth0 down
        busybox usleep $((heartbeat * 200))
        ip link set eth0 up
        count=$(wc -l < "$SHARED/record.$NODE")
        if ! until_true 60 lines "$SHARED/record.$NODE" $((count + 40)); then
            echo "did not heal"
            : > "$SHARED/no-heal"
        fi
        [ "$VM_PLANT" = spare ] || ip link set eth0 down
        sleep $((heartbeat / 1000 + 3))
        ip link set eth0 up
        : > "$SHARED/was-down"
        [ "$VM_PLANT" = spare ] && : > "$SHARED/stop"
        wait $member
        code=$?
        [ $code = 3 ] || [ $code = 4 ] || fail "the member that was cut off was told neither that (exit code $code)"
        return 0
    fi
    if [ "$NODE" = 1 ]; then
        until_true 180 test -e "$SHARED/was-down" || exit 1
        count=$(wc -l < "$SHARED/record.1")
        until_true 120 lines "$SHARED/record.1" $((count + 40)) || exit 1
        until_true 60 grep -q ^end "$SHARED/record.$NODES" || exit 1
        : > "$SHARED/stop"
    fi
    wait $member
}

# A user without the right to lock memory: auto must work, and $1, if given, or say what is missing.
scenario_memlock() {
    "$regroup" doctor
    for transport in auto ${1:-}; do
        if setpriv --reuid 65534 --regid 65534 --clear-groups bash -c "ulimit -l 64; timeout 60 $regroup bench all_reduce \
            -n 2 -b 4K -e 4M -f 32 -w 1 -i 2 --check --transport $transport" > /tmp/out 2>&1; then echo "$transport: works"
        else
            cat /tmp/out
            [ "$transport" = auto ] && fail "auto does not fall back"
            grep -qiE 'memlock|ulimit|locked memory' /tmp/out || fail "$transport: the text does not name the limit"
            echo "$transport: refused, and says why"
        fi
    done
}

# $2: delay and loss of each guest's port. The same collectives must come out.
scenario_netem() {
    export RG_TRANSPORT=$1 RG_MIN_SIZE=$NODES
    tc qdisc add dev eth0 root netem $2 limit 20000 || exit 1
    coordinator
    "$vm" member "$SHARED/record.$NODE" $plant --rounds "$3" --bytes 200000 || exit 1
    meet done
    tc -s qdisc show dev eth0
}

# ---- The emulator of distant networks beside the kernel's own: the same rate, delay and loss between two namespaces.
transfer() { # FROM-NAMESPACE TO-NAMESPACE ADDRESS BYTES: milliseconds until the other end has all
    ip netns exec "$2" busybox nc -l -p 7777 <&8 > /tmp/arrived &
    local receiver=$! begin
    until_true 10 ip netns exec "$2" grep -q ":1E61 .* 0A " /proc/net/tcp /proc/net/tcp6 >&2 || return 1
    begin=$(date +%s%N)
    head -c "$4" /dev/zero | ip netns exec "$1" busybox nc "$3" 7777 > /dev/null &
    wait $receiver
    [ "$(stat -c %s /tmp/arrived)" = "$4" ] || { echo "transfer: lost bytes" >&2; return 1; }
    echo $((($(date +%s%N) - begin) / 1000000))
}
round_trip() { # NAMESPACE ADDRESS COUNT INTERVAL: "microseconds of the quickest, lost-percent"
    ip netns exec "$1" busybox ping -q -c "$3" -i "$4" -W 2 "$2" > /tmp/ping
    echo "$(sed -n 's|^round-trip.*= \([0-9.]*\)/.*|\1|p' /tmp/ping | awk '{ printf "%d", $1 * 1000 }')" \
        "$(sed -n 's/.* \([0-9]*\)% packet loss.*/\1/p' /tmp/ping)"
}
near() { # WHAT A B PERCENT
    local apart=$(awk -v a="$2" -v b="$3" 'BEGIN { m = (a + b) / 2; d = a > b ? a - b : b - a; printf "%d", m ? 100 * d / m : 100 }')
    echo "$1: kernel $2, emulator $3, $apart % apart (at most $4)"
    [ "$apart" -le "$4" ]
}
kernel_pair() { # RATE DELAY LOSS
    ip netns add k1
    ip netns add k2
    ip link add v1 netns k1 type veth peer name v2 netns k2
    for i in 1 2; do
        ip -n k$i addr add 10.80.0.$i/24 dev v$i
        # One packet at a time, as on the emulator's devices.
        ip -n k$i link set v$i mtu 1500 gso_max_segs 1 up
        ip netns exec k$i tc qdisc add dev v$i root netem rate "$1mbit" delay "$2ms" loss "$3%" limit 20000 || return 1
    done
}
emulator_pair() {
    modprobe tun
    ip netns add e1
    ip netns add e2
    mkfifo /tmp/settings
    "$BUILD/tests/wan" --set "all rate=$1 delay=$2 loss=$3 queue=30000" e1 e2 < /tmp/settings > /tmp/emulator &
    exec 9> /tmp/settings
    until_true 10 grep -q ready /tmp/emulator
}
scenario_wan() { # RATE DELAY LOSS BYTES WITHIN-PERCENT
    local k e kl el bad=0 shift=0 least_k=999999 least_e=999999
    [ "$VM_PLANT" = delay ] && shift=5
    mkfifo /tmp/open
    exec 8<> /tmp/open # an input that does not end: a receiver that has said all would be taken for one that leaves
    kernel_pair "$1" "$2" "$3" && emulator_pair "$1" $(($2 + shift)) "$3" || fail "no networks"
    read -r k kl < <(round_trip k1 10.80.0.2 "${6:-50}" 0.05)
    read -r e el < <(round_trip e1 10.79.0.2 "${6:-50}" 0.05)
    near "quickest round trip, us" "$k" "$e" "$5" || bad=1
    echo "lost pings, percent: kernel $kl, emulator $el"
    # The least of three in turns, as the quickest ping above: what else this machine does lengthens one and not the other.
    for _ in 1 2 3; do
        k=$(transfer k1 k2 10.80.0.2 "$4") && e=$(transfer e1 e2 10.79.0.2 "$4") || fail "a transfer did not end"
        least_k=$((k < least_k ? k : least_k)) least_e=$((e < least_e ? e : least_e))
    done
    # A processor in software takes a share of the time that is different in each.
    local within=$5
    grep -q kvm /sys/devices/system/clocksource/clocksource0/available_clocksource || within=$((2 * within))
    near "least of 3 transfers of $4 bytes, ms" "$least_k" "$least_e" "$within" || bad=1
    exec 9>&-
    return $bad
}
