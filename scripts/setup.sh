#!/bin/sh
# Makes a fresh Debian machine able to build and check: installs the packages that are missing when root or sudo
# without a password allows, else prints the one line to run and fails. Quick and silent when nothing is missing.
# SETUP_PEERS=1 adds the libraries that `make bench-peers` measures against, SETUP_WAN=1 what
# `make demo-wan` needs. It never upgrades or removes anything.
# PCCL, beside which `make bench-wan` sets us where it is there, is no package of Debian's: see docs/wan.md.
set -eu
packages="pkg-config libuv1-dev libjansson-dev libxxhash-dev libssl-dev libcriterion-dev spin"
# AES-GCM for Intel's wide instructions; without it OpenSSL's is used.
[ "$(uname -m)" = x86_64 ] && packages="$packages libipsec-mb-dev"
# InfiniBand and RoCE; without them the library has no RDMA transport.
packages="$packages libibverbs-dev librdmacm-dev"
[ "${SETUP_WAN:-0}" = 1 ] && packages="$packages iproute2 gnuplot-nox"
[ "${SETUP_PEERS:-0}" = 1 ] && packages="$packages g++ libgloo-dev libopenmpi-dev openmpi-bin libmpich-dev mpich"

installed() { dpkg-query -W -f='${Status}\n' "$1" 2>/dev/null | grep -q 'ok installed'; }

if ! command -v dpkg-query > /dev/null 2>&1; then
    # Not Debian: the libraries may be there under other names, which is all that counts.
    if pkg-config --exists libuv jansson libxxhash openssl criterion 2> /dev/null; then exit 0; fi
    echo "setup: this machine has no dpkg; install libuv, jansson, xxhash, openssl (3 or later), criterion and pkg-config with their headers, then try again" >&2
    exit 1
fi
missing=
for p in $packages; do
    # pkgconf stands in for pkg-config.
    if [ "$p" = pkg-config ] && command -v pkg-config > /dev/null 2>&1; then continue; fi
    installed "$p" || missing="$missing $p"
done
cc=${CC:-gcc} # may have arguments, or be "ccache gcc"
command -v "${cc%% *}" > /dev/null 2>&1 || missing="$missing gcc libc6-dev"
[ -z "$missing" ] && exit 0

line="apt-get update && apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ]; then as=
elif command -v sudo > /dev/null 2>&1 && sudo -n true 2> /dev/null; then as="sudo -n"
else
    echo "setup: these packages are missing:$missing" >&2
    echo "setup: run this line, then try again:" >&2
    echo "    sudo sh -c '$line'" >&2
    exit 1
fi
echo "setup: installing$missing"
log=$(mktemp)
if ! { $as env DEBIAN_FRONTEND=noninteractive apt-get update &&
       $as env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } > "$log" 2>&1; then
    tail -20 "$log" >&2
    echo "setup: the installation failed; run this line by hand to see why:" >&2
    echo "    $line" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"
