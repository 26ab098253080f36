#!/bin/sh
# Says once per build folder which optional parts are built, and which are not and why.
# It decides nothing: what is printed here is information for the reader.
set -eu
mkdir -p "$1"
said="$1/optional"
[ -e "$said" ] && exit 0
pc=${PKG_CONFIG:-pkg-config}
if $pc --exists libibverbs librdmacm 2>/dev/null; then rdma="transports/rdma.c is built, on libibverbs and librdmacm (RDMA=0 leaves it out)."
else rdma="not built: libibverbs-dev or librdmacm-dev is not installed."; fi
if command -v nvcc >/dev/null 2>&1 || [ -d /usr/local/cuda ]; then cuda="a CUDA toolkit is here"
else cuda="no CUDA toolkit was found"; fi
{
    echo "RDMA: $rdma"
    echo "CUDA: not built: this version has no gpu/cuda.c ($cuda). Buffers are host memory."
} | tee "$said"
