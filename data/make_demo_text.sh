#!/bin/sh
# Writes the two texts of the demo, two domains that differ in everything but the alphabet:
#
#   DIR/kjv.txt        the King James Bible, a document a chapter, a line a verse (package bible-kjv)
#   DIR/fortunes.txt   sayings and jokes, a document each (packages fortunes, fortunes-min)
#
# Documents are separated by a line '%': train with --data 'text:DIR/kjv.txt?split=%'. Where a package is
# absent, other text of this machine takes its place, and the line printed says which. A file that is there is
# left alone.
#
# BIBLE and FORTUNES name the program and the directory where they are not in their usual places.
set -eu
LC_ALL=C
export LC_ALL

if [ $# -ne 1 ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
dir=$1
bible=${BIBLE:-bible}
fortunes=${FORTUNES:-/usr/share/games/fortunes}
enough=200000  # bytes: less is no text to train on
mkdir -p "$dir"
new=
trap 'rm -f "$new"' EXIT
trap 'exit 1' HUP INT TERM

size() { wc -c <"$1" | tr -d ' '; }

# One verse a line without its reference ("Ge1:1 In the beginning ..."), and a '%' after each chapter.
kjv() {
    "$bible" -f gen1:1-rev22:21 </dev/null 2>/dev/null | awk '
        /^[1-3]?[A-Za-z]+[0-9]+:[0-9]+ / {
            chapter = $1
            sub(/:.*/, "", chapter)
            if (last != "" && chapter != last) print "%"
            last = chapter
            sub(/^[^ ]+ +/, "")
            sub(/ +$/, "")
            print
        }
        END { if (last != "") print "%" }'
}

# The plain files among the indices (.dat) and links (.u8). What was overstruck for printers ("_\bword") is
# read once, and bells are left out.
sayings() {
    backspace=$(printf '\b')
    for file in "$fortunes"/*; do
        case $file in *.*) continue ;; esac
        [ -f "$file" ] && [ ! -h "$file" ] || continue
        sed -e ':again' -e "s/[^$backspace]$backspace//" -e 't again' "$file" | tr -d '\007'
        echo '%'
    done
}

# At most 4 MB of files, each a document. $1: a pattern of names, the rest: where to look.
files() {
    pattern=$1
    shift
    find "$@" -type f -name "$pattern" -size -400 2>/dev/null | sort | while IFS= read -r file; do
        cat "$file" && echo && echo '%' || break
    done | head -c 4000000
}

# $1: file, $2: what it is, then the command that writes it. Fails where that gives too little text.
make_text() {
    new=$dir/$1.new
    target=$dir/$1
    what=$2
    shift 2
    "$@" >"$new" 2>/dev/null || true
    [ "$(size "$new")" -ge "$enough" ] || return 1
    mv "$new" "$target"
    echo "$target: $what, $(grep -c '^%$' "$target") documents, $(($(size "$target") / 1000)) kB"
}

none() {
    echo "$0: found no text for $1; install the package $2" >&2
    exit 1
}

if [ ! -s "$dir/kjv.txt" ]; then
    make_text kjv.txt "the King James Bible" kjv ||
        make_text kjv.txt "licences of installed packages, as bible-kjv is not installed" \
            files '[A-Zc]*' /usr/share/common-licenses /usr/share/doc/*/copyright ||
        none "$dir/kjv.txt" bible-kjv
fi
if [ ! -s "$dir/fortunes.txt" ]; then
    make_text fortunes.txt "fortunes" sayings ||
        make_text fortunes.txt "Python and Perl sources, as fortunes is not installed" \
            files '*.p[ym]' /usr/lib/python3* /usr/share/perl /usr/share/perl5 /usr/lib/*/perl-base ||
        make_text fortunes.txt "C headers, as fortunes is not installed" files '*.h' /usr/include ||
        none "$dir/fortunes.txt" fortunes
fi
