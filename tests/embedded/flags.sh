#!/usr/bin/env bash
# flags.sh COMPILER FOLDER INCLUDES TARGET-FLAGS [all]: the header-only edition under compilers' flags. Each set of flags is compiled and run with
# flags.cc: the result is right, or the compiler or the call refuses. A set names what must come of it: 'right', 'refused' or 'either'. INCLUDES and
# TARGET-FLAGS are lists with spaces. Without 'all' only the sets that tell most. The unit at -O0 also shows that everything lies in the edition's
# namespace.
set -euo pipefail
compiler=$1 folder=$2 includes=$3 target=$4 all=${5:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$folder"
is_clang=$("$compiler" --version | grep -ci clang || true)

some=("right -O0" "refused -O2 -ffast-math" "either -O2 -funsafe-math-optimizations")
many=("right -O1" "right -O2" "right -O3" "right -Os" "refused -O3 -Ofast" "refused -O1 -ffinite-math-only" "right -O3 -freciprocal-math"
  "right -O3 -fno-signed-zeros -fno-trapping-math" "either -O3 -fassociative-math -fno-signed-zeros -fno-trapping-math" "right -O3 -ffast-math -fno-fast-math"
  "right -O3 -ffp-contract=off" "right -O3 -ffp-contract=fast" "either -O1 -funsafe-math-optimizations" "either -O3 -funsafe-math-optimizations"
  "either -Os -funsafe-math-optimizations" "right -O2 -DFOVEA_EMBEDDED_DEFAULT_FP_STATE" "right -O2 -frounding-math")
if ((is_clang)); then
  some+=("either -O2 -fno-honor-infinities")
  many+=("either -O2 -fno-honor-nans" "either -O3 -fapprox-func" "either -O2 -ffp-model=fast" "right -O2 -ffp-model=strict")
fi
sets=("${some[@]}")
[[ $all == all ]] && sets+=("${many[@]}")

failed=0
for set in "${sets[@]}"; do
  want=${set%% *} flags=${set#* }
  read -ra words <<<"$includes $target $flags"
  words+=(-std=c++17 -Wall -Wextra -Wshadow -Wfloat-equal -Werror -Wno-unknown-warning-option -Wno-uninitialized -Wno-maybe-uninitialized -Wno-overriding-option
    -Wno-deprecated-ofast -Wno-nan-infinity-disabled)
  if ! "$compiler" "${words[@]}" -c "$here/flags.cc" -o "$folder/flags.o" 2> "$folder/log"; then
    grep -q "gives wrong results with -ffast-math" "$folder/log" && got="refused by the compiler" || got="does not compile"
  else
    "$compiler" "${words[@]}" "$folder/flags.o" -o "$folder/flags"
    code=0
    got=$(${FOVEA_EMULATOR:-} "$folder/flags") || code=$?
    # an instruction that this CPU lacks, where the flags ask for more than it has
    if ((code == 132)) && [[ $target == *avx512* ]] && ! grep -q avx512f /proc/cpuinfo; then
      echo "$flags: compiled; this CPU cannot run it"
      continue
    fi
  fi
  case "$want $got" in
    "right right" | "refused refused"* | "either right" | "either refused"*) ;;
    *) failed=1; got="$got (expected: $want)"; [[ $got != "does not"* ]] || head -n 5 "$folder/log" ;;
  esac
  echo "$flags: $got"
  [[ $flags != -O0 ]] && continue
  # weak functions are those of which a linker keeps one
  outside=$(nm -C "$folder/flags.o" | awk '$2 == "W"' | grep -E 'fovea::' | grep -vE 'fovea::embedded::[a-z0-9_]+::' || true)
  [[ -z $outside ]] || { echo "outside of the namespace: $outside"; failed=1; }
done
exit "$failed"
