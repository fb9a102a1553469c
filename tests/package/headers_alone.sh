#!/usr/bin/env bash
# headers_alone.sh INCLUDE-FOLDER C++-COMPILER C-COMPILER [XSIMD-FOLDER]: each public header compiles by itself, twice included, as C++17 without a warning; those
# of the C interface as C11 too, and the header-only edition with the headers of xsimd, and only if they are given.
set -euo pipefail
failed=0
headers=("$1"/fovea/*.h "$1"/fovea/detail/*.h)
[[ -z ${4:-} ]] || headers+=("$1"/fovea/embedded/*.h)
for header in "${headers[@]}"; do
  name=${header#"$1"/}
  # halves of a pair
  [[ $name == fovea/detail/macros_* || $name == fovea/embedded/begin.h || $name == fovea/embedded/end.h ]] && continue
  flags=()
  if [[ $name == fovea/embedded* ]]; then
    [[ -n ${4:-} ]] || continue
    flags=(-idirafter "$4" -Wno-psabi)  # it may be /usr/include; GCC's note about xsimd's pairs on AArch64
  fi
  printf '#include "%s"\n#include "%s"\n' "$name" "$name" |
    "$2" -std=c++17 -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Werror -I "$1" "${flags[@]}" -x c++ - || { echo "not alone: $name"; failed=1; }
done
for name in fovea/c.h fovea/c_types.h fovea/c_cache.h fovea/c_tbb.h fovea/c_gradient.h fovea/score_function.h; do
  printf '#include "%s"\n#include "%s"\n' "$name" "$name" |
    "$3" -std=c11 -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Werror -I "$1" -x c - || { echo "not C11: $name"; failed=1; }
done
exit $failed
