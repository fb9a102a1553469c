#!/usr/bin/env bash
# exported_symbols.sh NM LIBRARY LIST [--update]: a shared library exports what LIST names, demangled, and nothing else: nothing of the standard library's,
# of Highway's, oneTBB's, or of the kernels and plans. --update writes LIST.
set -euo pipefail
# Run-time type information of the one class that is derived from outside comes and goes with the compiler.
symbols=$("$1" -D --defined-only -C "$2" | sed -E 's/^[0-9a-f]* +[A-Za-z] +//; s/@@.*$//; s/\[abi:cxx11\]//' |
  grep -vE '^(vtable|typeinfo|typeinfo name) for fovea::Executor$' | LC_ALL=C sort -u)
if [[ ${4:-} == --update ]]; then
  printf '%s\n' "$symbols" >"$3"
fi
if grep -vE '^fovea(::|_[a-z])' "$3" || grep -E '^fovea_hwy|^fovea::(N_[A-Z0-9_]+|internal|Plan::State)::' "$3"; then
  echo "the list itself has what nobody may export"
  exit 1
fi
if ! diff "$3" - <<<"$symbols"; then
  echo "exports differ from $(basename "$3") (< listed, > exported); if that is meant: $0 $1 $2 $3 --update"
  exit 1
fi
wc -l <"$3"
