# What ptxas says of each kernel (-v), as a table: registers, bytes of shared memory, stack and spills. Fails
# where a kernel spills registers or uses local memory. Its input has been through c++filt.

/Compiling entry function/ {
    split($0, quoted, "'")
    name = readable(quoted[2]); arch = quoted[4]
}
/bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
/Used [0-9]+ registers/ {
    registers = $5; shared = dynamic
    if (match($0, /[0-9]+ bytes smem/)) shared += substr($0, RSTART, RLENGTH) + 0
    line = sprintf("%-7s %4d %7d %6d %6d  %s", arch, registers, shared, stack, stores + loads, name)
    bad = stack + stores + loads > 0
    lines[++count] = line; wrong[count] = bad; failures += bad; seen[arch]++
}
END {
    print "arch    regs  shared  stack  spill  kernel"
    for (i = 1; i <= count; ++i) print lines[i] | "sort -k6 -k1,1"
    close("sort -k6 -k1,1")
    if (count == 0) { print "no kernel was found"; exit 1 }
    for (a in seen) archs = archs sprintf(" %s: %d", a, seen[a])
    printf "%d kernels (%s )\n", count, archs
    if (failures > 0) {
        printf "%d of them spill registers or use local memory:\n", failures
        for (i = 1; i <= count; ++i) if (wrong[i]) print lines[i]
        exit 1
    }
    print "none spills a register or uses local memory"
}

# LayerNormForward<bf16> by warps, watched
function readable(text,    team, watched, parts) {
    dynamic = 0
    if (match(text, /, [0-9]+>\(/)) dynamic = substr(text, RSTART + 2) + 0
    team = text ~ /warp_per_row</ ? "by warps" : text ~ /block_per_row</ ? "by blocks" : ""
    watched = text ~ /NoWatch/ ? "bare" : "watched"
    gsub(/wobble::/, "", text); gsub(/\(anonymous namespace\)::/, "", text)
    sub(/^void /, "", text)
    sub(/\(.*$/, "", text)
    if (team == "") return text
    sub(/^(warp|block)_per_row</, "", text)
    sub(/, (NoWatch|DeviceWatch<.*).*$/, "", text)
    return text " " team ", " watched
}
