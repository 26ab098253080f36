#!/bin/bash
# Our all-reduce beside Gloo, Open MPI and MPICH over TCP on this host, run alternately in several rounds, as shipped
# and once more in a network namespace whose TCP congestion control is reno. Usage: bench/peers.sh BUILD_DIR.
# Environment: PEERS_ROUNDS (3) PEERS_RANKS ("2 4") PEERS_SIZES (4096,...,134217728) PEERS_IN_PLACE ("1 0": in place, then not) PEERS_BUDGET
# (0.4, seconds of timed calls per size) PEERS_SETTINGS ("shipped reno") PEERS_LIBRARIES.
# Prints a table and writes BUILD_DIR/bench-peers.json. A library that is not installed, or a setting that this user may
# not make, is left out and said so: nothing is measured differently for lack of it. It changes nothing on the host
# beyond that namespace, which it removes.
set -u
build=${1:?usage: bench/peers.sh BUILD_DIR}
here=$(cd "$(dirname "$0")" && pwd)/peers
root=$(cd "$here/../.." && pwd)
out=$build/peers
rounds=${PEERS_ROUNDS:-3} ranks=${PEERS_RANKS:-2 4} settings=${PEERS_SETTINGS:-shipped reno}
export PEERS_SIZES=${PEERS_SIZES:-4096,65536,1048576,16777216,134217728}
places=${PEERS_IN_PLACE:-1 0}
export PEERS_BUDGET=${PEERS_BUDGET:-0.4}
export PEERS_SHM=/dev/shm/peers.$$
mkdir -p "$out"
out=$(cd "$out" && pwd)
lines=$out/lines log=$out/log
: > "$lines"
: > "$log"
namespace=

cleanup() {
    rm -f "$PEERS_SHM"
    [ -n "$namespace" ] && ip netns del "$namespace" 2> /dev/null
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# ---- Build -----------------------------------------------------------------------------------------------------------
flags="-O3 -march=native -Wall -Wextra"
libraries=
add() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >> "$log" 2>&1; then libraries="$libraries $name"; else echo "bench-peers: $name is left out: it does not build here (see $log)"; fi
}
have() { command -v "$1" > /dev/null 2>&1; }
add regroup ${CC:-gcc} -std=gnu11 $flags -I"$root/include" -o "$out/regroup" "$here/regroup.c" "$build/libregroup.a" \
    $(pkg-config --libs libuv jansson 2> /dev/null || echo -luv -ljansson) -lm -pthread
add gloo ${CXX:-g++} -std=c++17 $flags -o "$out/gloo" "$here/gloo.cc" -lgloo -pthread
if have mpicc.openmpi && have mpirun.openmpi; then add openmpi mpicc.openmpi -std=gnu11 $flags -o "$out/openmpi" "$here/mpi.c"
else echo "bench-peers: openmpi is left out: mpicc.openmpi or mpirun.openmpi is missing"; fi
if have mpicc.mpich && have mpirun.mpich; then
    add mpich mpicc.mpich -std=gnu11 $flags -o "$out/mpich" "$here/mpi.c"
    ${CC:-gcc} -O2 -shared -fPIC -o "$out/yield.so" "$here/yield.c" -ldl >> "$log" 2>&1
else echo "bench-peers: mpich is left out: mpicc.mpich or mpirun.mpich is missing"; fi
case " $libraries " in *" regroup "*) ;; *) echo "bench-peers: our own program does not build: see $log" >&2; exit 1 ;; esac
libraries=${PEERS_LIBRARIES:-$libraries}

# ---- One run ---------------------------------------------------------------------------------------------------------
# start LIBRARY RANKS PREFIX...: its lines on standard output
start() {
    local library=$1 n=$2
    shift 2
    rm -f "$PEERS_SHM"
    export PEERS_LIBRARY=$library
    case $library in
    regroup | gloo) "$@" "$out/$library" "$n" ;;
    openmpi)
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_tmpdir_base=/dev/shm \
            "$@" mpirun.openmpi --oversubscribe -n "$n" --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo \
            --mca oob_tcp_if_include lo "$out/openmpi" ;;
    mpich)
        local preload=
        [ "$n" -gt "$(nproc)" ] && [ -e "$out/yield.so" ] && preload="-genv LD_PRELOAD $out/yield.so"
        PEERS_NO_FINALIZE=1 MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self UCX_NET_DEVICES=lo FI_PROVIDER=tcp \
            "$@" mpirun.mpich -iface lo -n "$n" $preload "$out/mpich" ;;
    esac
}

# measure SETTING RANKS ROUND LIBRARY PREFIX...
measure() {
    local setting=$1 n=$2 round=$3 library=$4 limit=${PEERS_LIMIT:-300}
    shift 4
    [ -t 2 ] && printf '\r%-60s' "$setting, $n ranks, round $round of $rounds: $library" >&2
    if ! start "$library" "$n" "$@" timeout -k 5 "$limit" > "$out/run" 2>> "$log"; then
        echo "bench-peers: $library, $n ranks, $setting: failed or ran past $limit s (see $log)" >&2
    fi
    awk -v p="$setting $n $PEERS_IN_PLACE $round" 'NF == 8 { print p, $0 }' "$out/run" >> "$lines"
}

# ---- The reno setting ------------------------------------------------------------------------------------------------
why=
make_namespace() {
    local name=rgpeers$$ told
    have ip || { why="the ip command is missing (package iproute2)"; return 1; }
    if ! told=$(ip netns add $name 2>&1); then why="no network namespace can be made (needs root)"; echo "$told" >> "$log"; return 1; fi
    namespace=$name
    ip -n $name link set lo up
    if ! ip netns exec $name sysctl -qw net.ipv4.tcp_congestion_control=reno 2>> "$log"; then
        why="reno cannot be set in a namespace"
        return 1
    fi
}

for setting in $settings; do
    prefix=()
    if [ "$setting" = reno ]; then
        make_namespace || continue
        prefix=(ip netns exec "$namespace")
    fi
    for n in $ranks; do
        for round in $(seq "$rounds"); do
            for place in $places; do
                export PEERS_IN_PLACE=$place
                for library in $libraries; do measure "$setting" "$n" "$round" "$library" "${prefix[@]}"; done
            done
        done
    done
done
[ -t 2 ] && printf '\r%-60s\r' '' >&2
echo "all-reduce, f32 sum, over TCP on this host ($(nproc) cores, $(sysctl -n net.ipv4.tcp_congestion_control 2> /dev/null) by default);"
echo "median microseconds of $rounds rounds; ratio = best peer / ours"
awk -v json="$build/bench-peers.json" -v libraries="$libraries" -v rounds="$rounds" -v why="$why" -v ranks="$ranks" \
    -v sizes="$PEERS_SIZES" -f "$here/table.awk" "$lines"
rc=$?
echo "written: $build/bench-peers.json"
exit $rc
