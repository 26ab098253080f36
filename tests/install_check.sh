#!/bin/bash
# Installs into a folder of its own, builds a program against the installed library by pkg-config alone, shared and
# static, and removes everything again: nothing may be left. Usage: install_check.sh BUILD.
set -eu
build=$1
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
make=${MAKE:-make}
$make -s --no-print-directory install BUILD="$build" PREFIX="$stage/usr" > /dev/null
export PKG_CONFIG_PATH=$stage/usr/lib/pkgconfig
cat > "$stage/version.c" <<'C'
#include <regroup.h>
#include <stdio.h>
int main(void) {
    puts(rg_version());
    return 0;
}
C
want=$(pkg-config --modversion regroup)
${CC:-gcc} -o "$stage/shared" "$stage/version.c" $(pkg-config --cflags --libs regroup)
got=$(LD_LIBRARY_PATH=$stage/usr/lib "$stage/shared")
[ "$got" = "$want" ] || { echo "shared: the library says $got, pkg-config $want"; exit 1; }
${CC:-gcc} -o "$stage/static" "$stage/version.c" $(pkg-config --cflags regroup) "$stage/usr/lib/libregroup.a" \
    $(pkg-config --static --libs regroup | sed 's/-lregroup//')
got=$("$stage/static")
[ "$got" = "$want" ] || { echo "static: the library says $got, pkg-config $want"; exit 1; }
$make -s --no-print-directory uninstall BUILD="$build" PREFIX="$stage/usr" > /dev/null
left=$(find "$stage/usr" ! -type d)
[ -z "$left" ] || { echo "uninstall left: $left"; exit 1; }
# Folders with blanks in their names.
$make -s --no-print-directory install BUILD="$build" DESTDIR="$stage/a b" PREFIX="/in st" > /dev/null
[ -x "$stage/a b/in st/bin/regroup" ] && [ -f "$stage/a b/in st/lib/pkgconfig/regroup.pc" ] || { echo "blanks in PREFIX"; exit 1; }
$make -s --no-print-directory uninstall BUILD="$build" DESTDIR="$stage/a b" PREFIX="/in st" > /dev/null
left=$(find "$stage/a b" ! -type d)
[ -z "$left" ] || { echo "uninstall left: $left"; exit 1; }
echo "install: $want builds against shared and static by pkg-config, and is removed without a rest"
