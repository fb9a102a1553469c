#!/usr/bin/env bash
# bare.sh NM SIZE MOST-BYTES OBJECT: the object needs nothing from outside but what any compiler may call on a bare target, defines no writable data, runs
# nothing before main, and its code is no larger than allowed.
set -euo pipefail
nm=$1 size=$2 most=$3 object=$4
needed=$("$nm" -u "$object" | awk '{print $NF}' | grep -vxE 'memcpy|memset|memmove|_GLOBAL_OFFSET_TABLE_' || true)
[[ -z $needed ]] || { echo "needs: $needed"; exit 1; }
read -r text data bss _ < <("$size" "$object" | tail -n 1)
echo "text $text, data $data, bss $bss"
((data == 0 && bss == 0)) || { echo "has writable data"; exit 1; }
((text > 1000 && text <= most)) || { echo "text is not at most $most"; exit 1; }
sections=$("$size" -A "$object")
! grep -qE '^\.(init_array|ctors|eh_frame)' <<<"$sections" || { echo "has constructors or unwind tables"; exit 1; }
