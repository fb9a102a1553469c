#!/usr/bin/env bash
# headers_alone.sh INCLUDE-FOLDER COMPILER: each public header compiles by itself, twice included, as C++17 without a warning.
set -euo pipefail
failed=0
for header in "$1"/fovea/*.h; do
  name=fovea/$(basename "$header")
  printf '#include "%s"\n#include "%s"\n' "$name" "$name" |
    "$2" -std=c++17 -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Werror -I "$1" -x c++ - || { echo "not alone: $name"; failed=1; }
done
exit $failed
