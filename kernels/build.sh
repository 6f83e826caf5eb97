#!/bin/bash
# Compiles the kernels into one fat binary.
#
#   kernels/build.sh OUT NVCC [-gencode=arch=compute_90,code=sm_90 ...]
#
# The one place where the compiler's options are named: the Rust build and the Nix build both call it. Prints what each
# kernel takes of registers and memory; a kernel that spills registers is an error. nvcc needs a host gcc (or clang).
set -euo pipefail
[ $# -ge 3 ] || { echo "usage: $0 OUT NVCC -gencode=..." >&2; exit 2; }
out=$1 nvcc=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
report=$(mktemp)
trap 'rm -f "$report"' EXIT

# No fused multiply-add and no flushing of subnormals: the sums are defined bit by bit.
if ! "$nvcc" -fatbin -std=c++17 -O3 --compress-mode=size --fmad=false --ftz=false \
    -Werror all-warnings -t0 -Xptxas -v -I"$here" "$@" -o "$out" "$here/image.cu" > "$report" 2>&1; then
    cat "$report" >&2
    echo "kernels: $nvcc failed" >&2
    exit 1
fi
# ptxas says three lines for each kernel and GPU; what matters of them goes on one.
awk '
    /Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; gpu = part[4] }
    /bytes stack frame/ { memory = $0; sub(/^ */, "", memory) }
    /Used [0-9]+ registers/ {
        used = $0; sub(/.*Used/, "used", used)
        printf "%s %s: %s; %s\n", gpu, kernel, used, memory
        if (memory !~ /(^|[^0-9])0 bytes spill stores, 0 bytes spill loads/) { spilled = spilled " " gpu ":" kernel }
    }
    END { if (spilled != "") { print "kernels: registers spill in" spilled > "/dev/stderr"; exit 1 } }
' "$report"
