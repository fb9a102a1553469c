#!/usr/bin/env bash
# headers_need_no_dependency.sh INCLUDE-FOLDER COMPILER: no public header reaches Highway, oneTBB or xsimd, however indirectly; the header-only
# edition is built on xsimd and is left out.
set -euo pipefail
failed=0
for header in "$1"/fovea/*.h "$1"/fovea/detail/*.h; do
  [[ $(basename "$header") == embedded.h ]] && continue
  # A header that is not installed here stops the compiler, so what is spelled in the file counts as well as what it reaches.
  if grep -nE '^ *# *include *[<"](hwy|tbb|oneapi|xsimd)/' "$header" ||
    "$2" -std=c++17 -E -I "$1" -x c++ "$header" | grep -E '^# [0-9]+ ".*/(hwy|tbb|oneapi|xsimd)/'; then
    echo "has a dependency: $header"
    failed=1
  fi
done
exit $failed
