#!/usr/bin/env bash
# headers_alone.sh INCLUDE-FOLDER C++-COMPILER C-COMPILER: each public header compiles by itself, twice included, as C++17 without a warning; those of the
# C interface as C11 too.
set -euo pipefail
failed=0
for header in "$1"/fovea/*.h; do
  name=fovea/$(basename "$header")
  printf '#include "%s"\n#include "%s"\n' "$name" "$name" |
    "$2" -std=c++17 -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Werror -I "$1" -x c++ - || { echo "not alone: $name"; failed=1; }
done
for name in fovea/c.h fovea/c_tbb.h; do
  printf '#include "%s"\n#include "%s"\n' "$name" "$name" |
    "$3" -std=c11 -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Werror -I "$1" -x c - || { echo "not C11: $name"; failed=1; }
done
exit $failed
