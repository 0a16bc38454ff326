#!/bin/sh
# Compares the CUDA kernels that a program holds with those that ran: coverage.sh PROGRAM LIST...
# A kernel is known by its parameters, a DeviceWatch among those of watched ones.
set -e
program=$1
shift
held=$(mktemp)
ran=$(mktemp)
trap 'rm -f "$held" "$ran"' EXIT
nm -C --defined-only "$program" |
    sed -n 's/.* [tTwW] void wobble::\(warp_per_row\|block_per_row\|merge_warps\)<.*>\((.*)\)$/\2/p' | sort -u > "$held"
sed -n 's/^void (\*)\((.*)\)$/\1/p' "$@" | sort -u > "$ran"
missing=$(comm -23 "$held" "$ran")
count() { grep -c "$1" "$held" || true; }
watched=$(count 'DeviceWatch<')
echo "$(count 'NoWatch') CUDA kernels bare and $watched watched, at moments and full; $(echo "$missing" | grep -c . || true) did not run"
[ -z "$missing" ] || { echo "$missing"; exit 1; }
