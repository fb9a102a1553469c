#!/usr/bin/env bash
# headers_after_macros.sh INCLUDE-FOLDER C++-COMPILER C-COMPILER: each public header of the library compiles behind macros of others
# (macros_of_others.h; those of X11 itself where its headers are installed), leaves them as they were, and passes warnings that hosts turn on.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wfloat-equal -Wfloat-conversion -Wdouble-promotion -Wcast-qual -Wcast-align
  -Wundef -Wredundant-decls -Wswitch-default -Wswitch-enum -Werror)
cxx_warnings=(-Wold-style-cast -Wzero-as-null-pointer-constant -Wextra-semi -Wnon-virtual-dtor -Woverloaded-virtual)
failed=0

# behind NAME LANGUAGE COMPILER...: the header, and then each macro, which must still mean what it did
behind() {
  local name=$1 language=$2
  shift 2
  {
    echo "#include \"$here/macros_of_others.h\""
    echo "#include \"$name\""
    echo "Status after_$((++count));"
  } | "$@" -fsyntax-only -I "$include" -x "$language" - || { echo "not after macros of others: $name"; failed=1; }
  echo "#include \"$name\"" | "$@" -fsyntax-only "${warnings[@]}" -I "$include" -x "$language" - || { echo "warnings: $name"; failed=1; }
}

include=$1 count=0
for header in "$1"/fovea/*.h; do
  name=${header#"$1"/}
  [[ $name == fovea/embedded.h ]] && continue
  behind "$name" c++ "$2" -std=c++17 "${cxx_warnings[@]}"
done
for name in fovea/c.h fovea/c_types.h fovea/c_cache.h fovea/c_tbb.h fovea/c_gradient.h fovea/score_function.h; do behind "$name" c "$3" -std=c11; done

if echo '#include <X11/Xlib.h>' | "$2" -fsyntax-only -x c++ - 2>/dev/null; then
  printf '#include <X11/Xlib.h>\n#include <X11/Xutil.h>\n#include <X11/Xatom.h>\n#include "fovea/fovea.h"\nStatus after;\n#undef Status\nfovea::Status ours;\n' |
    "$2" -std=c++17 -fsyntax-only -I "$1" -x c++ - || { echo "not after X11's headers"; failed=1; }
fi
exit $failed
