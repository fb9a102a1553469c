#!/usr/bin/env bash
# exported_symbols.sh NM LIBRARY: a shared library exports names of fovea:: and fovea_ alone, and some of them.
set -euo pipefail
symbols=$("$1" -D --defined-only -C "$2" | sed -E 's/^[0-9a-f]* +[A-Za-z] +//; s/@@.*$//; s/^(vtable|typeinfo|typeinfo name) for //')
foreign=$(grep -vE '^fovea(::|_[a-z])' <<<"$symbols" || true)
if [[ -n $foreign ]]; then
  printf 'foreign symbols:\n%s\n' "$foreign"
  exit 1
fi
# The kernels and the plan internals are nobody's business either.
internal=$(grep -E '^(fovea_hwy|fovea::(N_[A-Z0-9_]+|internal)::)|\(anonymous namespace\)' <<<"$symbols" || true)
if [[ -n $internal ]]; then
  printf 'internal symbols:\n%s\n' "$internal"
  exit 1
fi
[[ -n $symbols ]] || { echo "no symbols at all"; exit 1; }
wc -l <<<"$symbols"
