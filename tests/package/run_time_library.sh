#!/usr/bin/env bash
# run_time_library.sh OBJDUMP LIBRARY: of the compiler's run-time library (libgcc_s) a shared library needs nothing younger than GCC 8 has, which is that of
# manylinux_2_28. (Versions of the C and C++ libraries are those of the system that builds.)
set -euo pipefail
newest=GCC_7.0.0
symbols=$("$1" -T "$2" | grep -oE '\(GCC_[0-9.]+\) +[^ ]+' || true)
younger=$(while read -r version name; do
  version=${version//[()]/}
  [[ -z $version || $(printf '%s\n%s\n' "$version" "$newest" | sort -V | tail -n 1) == "$newest" ]] || echo "$name of $version"
done <<<"$symbols")
if [[ -n $younger ]]; then
  printf 'younger than %s:\n%s\n' "$newest" "$younger"
  exit 1
fi
