#!/bin/bash
# Our collectives beside those of Gloo, Open MPI and MPICH on this host: over shared memory, over TCP as shipped, and
# over TCP in a network namespace whose congestion control is reno. All libraries take turns in one run, in several
# rounds. Usage: bench/peers.sh BUILD_DIR. In the environment:
#   PEERS_QUICK=1        a few minutes instead of half an hour: fewer sizes, processes and rounds
#   PEERS_COLLECTIVES    "all_reduce all_gather reduce_scatter broadcast all_to_all"
#   PEERS_SETTINGS       "shm shipped reno"
#   PEERS_RANKS          "2 4 8"
#   PEERS_SIZES          8,4096,65536,1048576,16777216,268435456, counted as nccl-tests does: the whole vector
#   PEERS_IN_PLACE       "0"; "1" in place; "0 1" both
#   PEERS_ROUNDS         3; sizes of 64 MiB and more are in the first alone
#   PEERS_BUDGET         0.06: seconds of timed calls for one point of one library, at least 3 calls
#   PEERS_LIMIT          seconds that one library has for one collective: 30, with sizes of 64 MiB and more 120
#   PEERS_LIBRARIES      "regroup regroup-alloc gloo openmpi mpich" (regroup-alloc: buffers from rg_alloc(), shm only)
# Prints tables and writes BUILD_DIR/bench-peers.json. A library that is not installed, or a setting that this user may
# not make, is left out and said so: nothing is measured differently for lack of it. It changes nothing on the host
# beyond that namespace, which it removes.
set -u
build=${1:?usage: bench/peers.sh BUILD_DIR}
here=$(cd "$(dirname "$0")" && pwd)/peers
out=$build/peers
collectives=${PEERS_COLLECTIVES:-all_reduce all_gather reduce_scatter broadcast all_to_all}
places=${PEERS_IN_PLACE:-0}
large=$((64 << 20))
if [ "${PEERS_QUICK:-0}" != 0 ]; then
    rounds=${PEERS_ROUNDS:-1} ranks=${PEERS_RANKS:-2 4} settings=${PEERS_SETTINGS:-shm shipped}
    sizes=${PEERS_SIZES:-8,4096,65536,1048576,16777216}
    export PEERS_BUDGET=${PEERS_BUDGET:-0.05}
else
    rounds=${PEERS_ROUNDS:-3} ranks=${PEERS_RANKS:-2 4 8} settings=${PEERS_SETTINGS:-shm shipped reno}
    sizes=${PEERS_SIZES:-8,4096,65536,1048576,16777216,268435456}
    export PEERS_BUDGET=${PEERS_BUDGET:-0.06}
fi
export PEERS_SHM=/dev/shm/peers.$$
mkdir -p "$out"
out=$(cd "$out" && pwd)
ours=$(cd "$build" && pwd)/bench/peers/regroup
lines=$out/lines log=$out/log bare=$out/bare
: > "$lines"
: > "$log"
: > "$bare"
namespace=
has_large= limit_wanted=${PEERS_LIMIT:-}
for size in ${sizes//,/ }; do [ "$size" -ge $large ] && has_large=1; done
began=$SECONDS

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
if [ ! -x "$ours" ]; then
    echo "bench-peers: there is no $ours; make bench-peers builds it" >&2
    exit 1
fi
libraries="regroup regroup-alloc"
add gloo ${CXX:-g++} -std=c++17 $flags -o "$out/gloo" "$here/gloo.cc" -lgloo -pthread
if have mpicc.openmpi && have mpirun.openmpi; then add openmpi mpicc.openmpi -std=gnu11 $flags -o "$out/openmpi" "$here/mpi.c"
else echo "bench-peers: openmpi is left out: mpicc.openmpi or mpirun.openmpi is missing"; fi
if have mpicc.mpich && have mpirun.mpich; then
    add mpich mpicc.mpich -std=gnu11 $flags -o "$out/mpich" "$here/mpi.c"
    ${CC:-gcc} -O2 -shared -fPIC -o "$out/yield.so" "$here/yield.c" -ldl >> "$log" 2>&1
else echo "bench-peers: mpich is left out: mpicc.mpich or mpirun.mpich is missing"; fi
libraries=${PEERS_LIBRARIES:-$libraries}

# ---- One run ---------------------------------------------------------------------------------------------------------
# ours TRANSPORT ALLOC RANKS PREFIX...
ours() {
    local transport=$1 alloc=$2 n=$3
    shift 3
    [ "$transport" = shm ] && transport=auto # what a user has who says nothing
    RG_TRANSPORT=$transport PEERS_ALLOC=$alloc "$@" "$ours" "$n"
}

open_mpi() { # RANKS OPTIONS... -- PREFIX...
    local n=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_tmpdir_base=/dev/shm \
        "$@" mpirun.openmpi --oversubscribe -n "$n" --mca oob_tcp_if_include lo "${options[@]}" "$out/openmpi"
}

# Debian's MPICH never gives the processor away: with more ranks than cores it is helped.
mpich() { # RANKS PREFIX...
    local n=$1 preload=
    shift
    [ "$n" -gt "$(nproc)" ] && [ -e "$out/yield.so" ] && preload="-genv LD_PRELOAD $out/yield.so"
    PEERS_NO_FINALIZE=1 "$@" mpirun.mpich -iface lo -n "$n" $preload "$out/mpich"
}

# start LIBRARY TRANSPORT RANKS PREFIX...: its lines on standard output. Over shared memory Open MPI has two ways, and
# neither is the better one everywhere: both are measured. Gloo has none.
start() {
    local library=$1 transport=$2 n=$3 rc
    shift 3
    export PEERS_LIBRARY=$library
    rm -f "$PEERS_SHM"
    case $library-$transport in
    regroup-*) if [ $library = regroup-alloc ]; then ours "$transport" 1 "$n" "$@"; else ours "$transport" 0 "$n" "$@"; fi ;;
    gloo-*) "$@" "$out/gloo" "$n" ;;
    openmpi-shm)
        PEERS_ALGORITHM=vader open_mpi "$n" --mca pml ob1 --mca btl vader,self --mca btl_vader_single_copy_mechanism cma -- "$@"
        rc=$?
        rm -f "$PEERS_SHM"
        PEERS_ALGORITHM=ucx UCX_TLS=self,sm open_mpi "$n" --mca pml ucx --mca opal_common_ucx_tls any \
            --mca opal_common_ucx_devices any -x UCX_TLS -- "$@" && [ $rc -eq 0 ] ;;
    openmpi-tcp) open_mpi "$n" --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo -- "$@" ;;
    mpich-shm) mpich "$n" "$@" ;;
    mpich-tcp) MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self UCX_NET_DEVICES=lo FI_PROVIDER=tcp mpich "$n" "$@" ;;
    esac
}

# Sizes of this round that fit into memory: two buffers for each rank, and room for what a library needs itself.
sizes_of() { # RANKS ROUND
    local n=$1 round=$2 room size list=
    room=$(awk '/MemAvailable/ { printf "%.0f", $2 * 256 }' /proc/meminfo)
    for size in ${sizes//,/ }; do
        if [ "$round" -gt 1 ] && [ "$size" -ge $large ]; then continue; fi
        if [ $((size * n)) -gt "$room" ]; then echo "bench-peers: $size bytes and $n ranks: too little memory" >&2; continue; fi
        list=$list${list:+,}$size
    done
    echo "$list"
}

# measure SETTING RANKS COLLECTIVE ROUND LIBRARY PREFIX...
measure() {
    local setting=$1 n=$2 collective=$3 round=$4 library=$5 transport=tcp limit=30
    shift 5
    [ "$round" = 1 ] && [ -n "$has_large" ] && limit=120
    export PEERS_LIMIT=${limit_wanted:-$limit}
    [ "$setting" = shm ] && transport=shm
    case $library-$transport in regroup-alloc-tcp | gloo-shm) return ;; esac
    [ -t 2 ] && printf '\r%-78s' "$((SECONDS - began)) s: $setting, $n ranks, round $round of $rounds: $collective, $library" >&2
    export PEERS_COLLECTIVE=$collective
    if ! start "$library" "$transport" "$n" "$@" timeout -k 5 "$PEERS_LIMIT" > "$out/run" 2>> "$log" < /dev/null; then
        echo "bench-peers: $library, $collective, $n ranks, $setting: failed or ran past $PEERS_LIMIT s (see $log)" >&2
    fi
    awk -v p="$transport $setting $collective $n $PEERS_IN_PLACE $round" 'NF == 8 { print p, $0 }' "$out/run" >> "$lines"
}

# What loops without a library take for the same, in the same minutes: lines "collective ranks bytes buffers us".
bare_loops() { # RANKS COLLECTIVE
    local n=$1 collective=$2 size bytes kind us
    [ -x "$build/bench/bench_shm" ] || return 0
    for size in ${PEERS_SIZES//,/ }; do
        bytes=$((size / (4 * n) * 4 * n))
        [ $bytes -gt 0 ] || bytes=$((4 * n))
        case $collective in all_reduce | broadcast) ;; *) size=$bytes ;; esac
        for kind in ordinary alloc; do
            us=$(timeout -k 1 20 "$build/bench/bench_shm" --bare "$collective" $bytes "$n" $kind 2>> "$log" < /dev/null) &&
                echo "$collective $n $size $kind $us" >> "$bare"
        done
    done
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
            PEERS_SIZES=$(sizes_of "$n" "$round")
            [ -n "$PEERS_SIZES" ] || continue
            export PEERS_SIZES
            for collective in $collectives; do
                for place in $places; do
                    export PEERS_IN_PLACE=$place
                    [ "$setting" = shm ] && [ "$place" = "${places%% *}" ] && bare_loops "$n" "$collective"
                    for library in $libraries; do measure "$setting" "$n" "$collective" "$round" "$library" "${prefix[@]}"; done
                done
            done
        done
    done
done
[ -t 2 ] && printf '\r%-78s\r' '' >&2
echo "f32, sums where there is something to reduce; $(nproc) cores; TCP congestion control $(sysctl -n net.ipv4.tcp_congestion_control 2> /dev/null) by default."
echo "Median microseconds of $rounds rounds; bytes: the whole vector, as nccl-tests counts; ratio = best peer / ours; $((SECONDS - began)) s in all."
sort -s -k1,1 -k2,2r -k3,3 -k4,4n -k5,5n -k9,9n "$lines" | \
    awk -v json="$build/bench-peers.json" -v libraries="$libraries" -v why="$why" -v bare="$bare" -f "$here/table.awk"
rc=$?
echo "written: $build/bench-peers.json"
exit $rc
