#!/bin/sh
# Compiles every installed and internal-facing header of include/ alone, as pedantic C99 and as C++11, with every
# warning an error. Also asserts that a planted C11 construct would be refused.
set -eu
cc=${CC:-gcc}
cxx=${CXX:-g++}
strict="-Wall -Wextra -Wshadow -Werror -pedantic-errors -Iinclude -fsyntax-only"
n=0
if printf '#include "regroup.h"\nstruct s { union { int a; int b; }; };\n' | $cc -std=c99 $strict -x c - 2> /dev/null; then
    echo "header: a planted anonymous union passed as C99: this check is broken"; exit 1
fi
have_cxx=0
command -v "$cxx" > /dev/null 2>&1 && have_cxx=1
for h in include/*.h; do
    name=$(basename "$h")
    $cc -std=c99 $strict "-DRG_HEADER=\"$name\"" tests/header/use_c99.c
    if [ $have_cxx = 1 ]; then $cxx -std=c++11 $strict "-DRG_HEADER=\"$name\"" tests/header/use_cxx.cpp; fi
    n=$((n + 1))
done
if [ $have_cxx = 1 ]; then echo "header: $n headers compile alone as pedantic C99 and as C++11"
else echo "header: $n headers compile alone as pedantic C99; C++ was not tried: no $cxx on this machine"; fi
