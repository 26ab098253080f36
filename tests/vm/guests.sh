# guests.sh: virtual machines that run this host's own programs on a kernel with soft-RoCE, joined by a cable. Sourced by
# run.sh and given $build. `guests_prepare` gets what is needed, once; `guests_boot` starts machines, which the test asks
# to be killed, stopped or continued by files in $run/ctl; `guests_wait` serves that, and waits. It must write nowhere
# but below $build/vm (and to the package database of the host, where it may install what is missing).
guests_packages="qemu-system-x86 busybox-static kmod xz-utils iproute2 rdma-core ibverbs-providers"
vm=$build/vm
declare -A guest_pid guest_asked
cable_pid=

# Says in one line why there can be no guests, or gets what they need.
guests_prepare() {
    local missing= p line as=
    [ "$(uname -m)" = x86_64 ] || { echo "guests are made for x86-64 hosts only"; return 77; }
    command -v dpkg-query > /dev/null || { echo "guests use Debian's packages: there is no dpkg on this host"; return 77; }
    for p in $guests_packages; do
        dpkg-query -W -f='${Status}' "$p" 2> /dev/null | grep -q 'ok installed' || missing="$missing $p"
    done
    if [ -n "$missing" ]; then
        line="apt-get update && apt-get install -y --no-install-recommends$missing"
        if [ "$(id -u)" != 0 ]; then
            sudo -n true 2> /dev/null || { echo "run this first: sudo sh -c '$line'"; return 77; }
            as="sudo -n"
        fi
        echo "installing$missing"
        timeout 240 $as env DEBIAN_FRONTEND=noninteractive sh -c "$line" > "$vm/install.log" 2>&1 ||
            { echo "cannot be installed:$missing ($(tail -n 1 "$vm/install.log")); the line was: $line"; return 77; }
    fi
    [ "$(id -u)" = 0 ] || { echo "needs root, for guests that see the files of this host"; return 77; }
    guests_kernel && guests_ramdisk && guests_accelerator
}

# Debian's kernel: the package is fetched and unpacked, not installed. The image is kept uncompressed, so that the
# emulated processor need not unpack it at each start.
guests_kernel() {
    local package version at
    if [ ! -s "$vm/version" ]; then
        package=$(apt-cache depends linux-image-amd64 2> /dev/null | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
        [ -n "$package" ] || { echo "no kernel package is known to apt-get: run apt-get update"; return 77; }
        version=${package#linux-image-}
        rm -rf "$vm/package" "$vm/kernel"
        mkdir -p "$vm/package" "$vm/kernel"
        if ! ls "${VM_PACKAGES:-$vm/package}/${package}"_*.deb > /dev/null 2>&1; then
            (cd "$vm/package" && timeout 120 apt-get download -q "$package" > fetch.log 2>&1) ||
                { echo "the kernel package $package cannot be fetched: $(tail -n 1 "$vm/package/fetch.log")"; return 77; }
            dpkg -x "$vm/package/$package"_*.deb "$vm/kernel" || return 1
        else
            dpkg -x "$VM_PACKAGES/$package"_*.deb "$vm/kernel" || return 1
        fi
        rm -rf "$vm/package"
        at=$(LC_ALL=C grep -abom1 $'\xfd7zXZ' "$vm/kernel/boot/vmlinuz-$version" | head -n 1 | cut -d: -f1)
        tail -c +$((at + 1)) "$vm/kernel/boot/vmlinuz-$version" | xz -dc --single-stream > "$vm/vmlinux" 2> /dev/null
        [ "$(head -c 4 "$vm/vmlinux" | tail -c 3)" = ELF ] || { echo "no kernel image was found in $package"; return 1; }
        depmod -b "$vm/kernel" "$version"
        echo "$version" > "$vm/version"
    fi
}

guests_ramdisk() {
    local root=$vm/ramdisk version m path name
    [ "$vm/ramdisk.gz" -nt tests/vm/init ] && [ "$vm/ramdisk.gz" -nt "$vm/version" ] && return 0
    version=$(cat "$vm/version")
    rm -rf "$root"
    mkdir -p "$root"/{bin,modules,proc,dev,lower,upper,root}
    cp "$(command -v busybox)" "$root/bin/busybox"
    ln -s busybox "$root/bin/sh"
    for m in virtio_pci virtio_console 9pnet_virtio 9p overlay; do
        modprobe -d "$vm/kernel" -S "$version" --show-depends "$m" | while read -r _ path _; do
            name=${path##*/}
            [ -e "$root/modules/$name" ] && continue
            cp "$path" "$root/modules/" && echo "$name" >> "$root/modules/order"
        done
    done
    install -m 755 tests/vm/init "$root/init"
    (cd "$root" && find . | busybox cpio -o -H newc 2> /dev/null | gzip -1) > "$vm/ramdisk.gz"
    rm -rf "$root"
}

qemu_common=(-nodefaults -no-user-config -display none -no-reboot -monitor none)
kernel_args="console=ttyS0 quiet panic=-1 oops=panic mitigations=off no_timer_check random.trust_cpu=1"

# The processor's own virtualisation if this kernel boots with it, else software. A /dev/kvm that opens may still hang.
guests_accelerator() {
    local kind=${VM_ACCEL:-}
    [ -n "$kind" ] || read -r kind 2> /dev/null < "$vm/accelerator" || kind=
    if [ -z "$kind" ]; then
        kind=tcg
        if [ -w /dev/kvm ] && grep -qE '\b(vmx|svm)\b' /proc/cpuinfo &&
            timeout -k 1 15 qemu-system-x86_64 "${qemu_common[@]}" -accel kvm -cpu host -m 256 -kernel "$vm/vmlinux" \
                -initrd "$vm/ramdisk.gz" -serial stdio -append "$kernel_args vm.probe=1" < /dev/null 2> /dev/null |
            grep -q regroup-guest-boots; then kind=kvm; fi
        echo "$kind" > "$vm/accelerator"
    fi
    case $kind in
        kvm) accelerator=(-accel kvm -cpu host) ;;
        *) accelerator=(-accel tcg,thread=multi -cpu max) ;;
    esac
    guests_kind=$kind
}

# guests_boot NAME "DEVICE DEVICE ..." COMMAND: one guest for each device, rxe or none.
guests_boot() {
    local name=$1 devices=($2) command=$3 i n
    n=${#devices[@]}
    run=$vm/run/$name
    rm -rf "$run"
    mkdir -p "$run/ctl"
    sockets=$(mktemp -d /tmp/regroup-vm.XXXXXX) # the paths of sockets must be short
    guest_pid=() guest_asked=()
    printf 'export NODES=%q VM_HEARTBEAT=%q VM_PLANT=%q\n%s\n' "$n" "${VM_HEARTBEAT:-}" "${VM_PLANT:-}" "$command" \
        > "$run/command"
    # The program runs from a copy: a build that goes on meanwhile must not end it.
    cp "$build/tests/vm" "$sockets/vm"
    "$sockets/vm" cable "$sockets" "$n" < /dev/null > "$run/cable.log" 2>&1 &
    cable_pid=$!
    for ((i = 0; i < 200; i++)); do
        [ -S "$sockets/switch$n" ] && break
        sleep 0.05
    done
    for ((i = 1; i <= n; i++)); do
        qemu-system-x86_64 "${qemu_common[@]}" "${accelerator[@]}" -m "${VM_MEMORY:-768}" -smp 1 \
            -kernel "$vm/vmlinux" -initrd "$vm/ramdisk.gz" -serial "file:$run/console.$i" \
            -append "$kernel_args vm.node=$i vm.nodes=$n vm.build=$build vm.device=${devices[i - 1]}" \
            -virtfs local,path=/,security_model=none,readonly=on,mount_tag=host,multidevs=remap \
            -virtfs "local,path=$run,security_model=none,mount_tag=shared" \
            -netdev "dgram,id=n,local.type=unix,local.path=$sockets/guest$i,remote.type=unix,remote.path=$sockets/switch$i" \
            -device "virtio-net-pci,netdev=n,romfile=,mac=52:54:00:78:00:0$i" -device virtio-rng-pci \
            < /dev/null > "$run/qemu.$i" 2>&1 &
        guest_pid[$i]=$!
    done
}

guests_serve() {
    local f asked what i
    for f in "$run"/ctl/{kill,stop,cont}.[0-9]; do
        [ -e "$f" ] || continue
        asked=${f##*/} i=${f##*.} what=${f##*/} what=${what%.*}
        rm -f "$f"
        [ -n "${guest_pid[$i]:-}" ] || continue
        [ "${VM_PLANT:-}" = spare ] && what=spare
        case $what in
            kill) guest_asked[$i]=1; kill -KILL "${guest_pid[$i]}" ;;
            stop) kill -STOP "${guest_pid[$i]}" ;;
            cont) kill -CONT "${guest_pid[$i]}" ;;
        esac
        : > "$run/ctl/did-$asked"
    done
}

guests_end() {
    local i
    for i in "${!guest_pid[@]}"; do kill -KILL "${guest_pid[$i]}" 2> /dev/null; done
    [ -n "$cable_pid" ] && kill -KILL "$cable_pid" 2> /dev/null
    wait 2> /dev/null
    guest_pid=() cable_pid=
    rm -rf "${sockets:-/tmp/regroup-vm.none}"
}

# guests_wait SECONDS: until the command has ended in all guests; 0 when it did well in all that were not killed.
guests_wait() {
    local end=$((SECONDS + $1)) i code=0 waiting
    while :; do
        guests_serve
        waiting=0
        for i in "${!guest_pid[@]}"; do
            [ -e "$run/ctl/code.$i" ] && continue
            if kill -0 "${guest_pid[$i]}" 2> /dev/null; then waiting=1
            elif [ -z "${guest_asked[$i]:-}" ] && [ ! -e "$run/ctl/dead.$i" ]; then
                : > "$run/ctl/dead.$i"
                echo "guest $i died: $(tail -n 3 "$run/console.$i" "$run/qemu.$i" 2> /dev/null | tr '\n' ' ')"
                code=125
            fi
        done
        [ $waiting = 1 ] || break
        # One that failed will not do what the others wait for.
        if [ $end -gt $((SECONDS + 20)) ] && cat "$run"/ctl/code.[0-9] 2> /dev/null | grep -qv '^0$'; then
            end=$((SECONDS + 20))
        fi
        if [ $SECONDS -ge $end ]; then
            echo "not done after $1 s"
            code=124
            break
        fi
        sleep 0.05
    done
    for i in "${!guest_pid[@]}"; do
        [ -n "${guest_asked[$i]:-}" ] && continue
        if [ -e "$run/ctl/code.$i" ] && [ "$(cat "$run/ctl/code.$i")" != 0 ]; then
            echo "guest $i: exit code $(cat "$run/ctl/code.$i")"
            [ $code = 0 ] && code=$(cat "$run/ctl/code.$i")
        fi
    done
    : > "$run/ctl/off"
    guests_end
    return $code
}
