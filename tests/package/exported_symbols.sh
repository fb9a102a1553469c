#!/usr/bin/env bash
# exported_symbols.sh NM LIBRARY LIST [--update]: a shared library exports what LIST names, demangled, and nothing else: nothing of the standard library's,
# of Highway's, oneTBB's, or of the kernels and plans. --update writes LIST.
set -euo pipefail
# "TYPE NAME" a line
all=$("$1" -D --defined-only -C "$2" | sed -E 's/^[0-9a-f]* +//; s/@@.*$//; s/\[abi:cxx11\]//')
# Inline members and type information of the public classes are weak; which of them there are is the optimiser's choice.
weak=$(sed -nE 's/^[WVu] (vtable for |typeinfo for |typeinfo name for )?//p' <<<"$all" | grep -vE '^fovea::(Executor|Plan|BoundCall|BoundAppend|GradientPlan|BoundGradients|Status)(::|$)' || true)
symbols=$(sed -nE 's/^[^WVu] //p' <<<"$all" | LC_ALL=C sort -u)
if [[ ${4:-} == --update ]]; then
  printf '%s\n' "$symbols" >"$3"
fi
if [[ -n $weak ]]; then
  printf 'weak symbols of others:\n%s\n' "$weak"
  exit 1
fi
if grep -vE '^fovea(::|_[a-z])' "$3" || grep -E '^fovea_hwy|^fovea::(N_[A-Z0-9_]+|internal|(Gradient)?Plan::State)::' "$3"; then
  echo "the list itself has what nobody may export"
  exit 1
fi
if ! diff "$3" - <<<"$symbols"; then
  echo "exports differ from $(basename "$3") (< listed, > exported); if that is meant: $0 $1 $2 $3 --update"
  exit 1
fi
wc -l <"$3"
