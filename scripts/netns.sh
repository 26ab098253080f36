# netns.sh: emulated networks between network namespaces, for the scripts that measure or show something over them; to be
# sourced by bash. A node is a namespace with a name; build/tests/wan carries the packets between the nodes it is told of,
# the first of which has 10.79.0.1. It needs root, ip and /dev/net/tun, and says so where they are missing. Whoever sources
# it need not clean up: what net_begin prepares leaves no namespace, no process and no file behind, however the script ends.
#   net_begin WHO BUILD [COMMAND...]  checks (77 where something is missing, COMMANDs among it); $tmp, $build
#   net_add NODE...                   nodes
#   net_wan LINE... -- NODE[:UP:DOWN]...   nodes whose links are what the lines say (docs/wan.md)
#   net_in NODE COMMAND...            runs it there
#   net_coordinator NODE ADDRESS      a coordinator there, which answers when this returns
#   net_members NODE...               ends with 1, and prints what $tmp/err.* hold, unless all background jobs in
#                                     net_pids end well
#   net_kill NODE                     every process of a node, at once
#   net_down                          all of it away, for the next network

net_skip() { echo "$net_who: skipped: $1"; exit 77; }

net_begin() {
    net_who=$1 build=$2 net_tag=rg$$ net_nodes=() net_wan= net_pids=()
    case $build in /*) ;; *) build=$PWD/$build ;; esac
    shift 2
    [ "$(id -u)" = 0 ] || net_skip "needs root to make network namespaces"
    for net_c in ip "$@"; do
        command -v "$net_c" > /dev/null || net_skip "needs the $net_c command (apt-get install iproute2)"
    done
    [ -w /dev/net/tun ] || net_skip "needs /dev/net/tun"
    tmp=$(mktemp -d)
    trap 'net_down; rm -rf "$tmp"' EXIT
    trap 'exit 1' INT TERM
}

net_kill() {
    local p
    for p in $(ip netns pids "$net_tag-$1" 2> /dev/null); do kill -9 "$p" 2> /dev/null; done
}

# The program that carries packets ends when its standard input, which descriptor 9 holds open, does.
net_down() {
    local n
    exec 9>&-
    for n in "${net_nodes[@]}"; do
        net_kill "$n"
        ip netns del "$net_tag-$n" 2> /dev/null
    done
    [ -z "$net_wan" ] || wait "$net_wan" 2> /dev/null
    net_nodes=() net_wan=
}

net_add() {
    local n
    for n in "$@"; do
        ip netns add "$net_tag-$n" 2> /dev/null || net_skip "the kernel gives no network namespaces"
        net_nodes+=("$n")
    done
}

net_wan() {
    local lines=() n
    for (( ; $# > 0; )); do
        [ "$1" != -- ] || break
        lines+=(--set "$1")
        shift
    done
    shift
    for n in "$@"; do net_add "${n%%:*}"; done
    rm -f "$tmp/wan.in"
    mkfifo "$tmp/wan.in"
    : > "$tmp/wan.out"
    "$build/tests/wan" "${lines[@]}" "${@/#/$net_tag-}" < "$tmp/wan.in" > "$tmp/wan.out" 2>&1 9>&- &
    net_wan=$!
    exec 9> "$tmp/wan.in"
    until grep -q ready "$tmp/wan.out"; do kill -0 "$net_wan" 2> /dev/null || { cat "$tmp/wan.out"; exit 1; }; done
}

net_in() { local n=$1; shift; ip netns exec "$net_tag-$n" "$@" 9>&-; }

net_coordinator() {
    local co
    net_in "$1" timeout -k 1 1800 "$build/regroup" coordinator -l "$2" > "$tmp/coordinator" 2>&1 < /dev/null &
    co=$!
    disown $co # its end is none of the shell's business
    until net_in "$1" "$build/regroup" status "$2" > /dev/null 2>&1; do
        kill -0 $co 2> /dev/null || { cat "$tmp/coordinator"; exit 1; }
    done
}

net_members() {
    local p bad=0
    for p in "${net_pids[@]}"; do wait "$p" || bad=1; done
    net_pids=()
    [ $bad = 0 ] || { cat "$tmp"/err.*; exit 1; }
}
