#!/usr/bin/env bash
# headers_alone.sh INCLUDE-FOLDER COMPILER [XSIMD-FOLDER]: each public header compiles by itself, twice included, as C++17 without a warning; the
# header-only edition with the headers of xsimd, and only if they are given.
set -euo pipefail
failed=0
headers=("$1"/fovea/*.h)
[[ -z ${3:-} ]] || headers+=("$1"/fovea/embedded/*.h)
for header in "${headers[@]}"; do
  name=${header#"$1"/}
  flags=()
  if [[ $name == fovea/embedded* ]]; then
    [[ -n ${3:-} ]] || continue
    flags=(-isystem "$3" -Wno-psabi)  # GCC's note about xsimd's pairs on AArch64
  fi
  printf '#include "%s"\n#include "%s"\n' "$name" "$name" |
    "$2" -std=c++17 -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Werror -I "$1" "${flags[@]}" -x c++ - || { echo "not alone: $name"; failed=1; }
done
exit $failed
