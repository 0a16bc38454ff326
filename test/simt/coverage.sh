#!/bin/sh
# Compares the CUDA kernels that a program holds with those that ran: coverage.sh PROGRAM LIST...
# A kernel is known by its parameters, without the number of rows that those by warps and by blocks have in different
# places: either is enough. Watched ones have a DeviceWatch. The optimizer of float64 is the CPU's alone, and what
# finishes a product of another type than its factors has only probes to serve.
set -e
program=$1
shift
held=$(mktemp)
ran=$(mktemp)
trap 'rm -f "$held" "$ran"' EXIT
known() { sed 's/^(long, /(/; s/, long)$/)/' | grep -v 'AtStep<double>\|PrepareUpdate<double>\|SquaredSum<double>, wobble::NoWatch\|Together<.*<double>\|ProductFinish<wobble::bf16, float>, wobble::NoWatch' | sort -u; }
nm -C --defined-only "$program" |
    sed -n 's/.* [tTwW] void wobble::\(warp_per_row\|block_per_row\|merge_warps\)<.*>\((.*)\)$/\2/p' | known > "$held"
sed -n 's/^void (\*)\((.*)\)$/\1/p' "$@" | known > "$ran"
missing=$(comm -23 "$held" "$ran")
count() { grep -c "$1" "$held" || true; }
echo "CUDA on the software machine: $(count 'NoWatch') kernels bare and $(count 'DeviceWatch<') watched, at moments and full; \
$(echo "$missing" | grep -c . || true) of them did not run"
[ -z "$missing" ] || { echo "$missing"; exit 1; }
