#!/usr/bin/env bash
# host_flags.sh COMPILE-COMMANDS FOLDER SOURCE...: what a host has in CMAKE_CXX_FLAGS that changes arithmetic changes nothing of the library's: the sources
# compile to the same assembly, kernels too. Of kernels two instruction sets are enough.
set -euo pipefail
commands=$1 folder=$2
shift 2
flags=(-ffast-math "-funsafe-math-optimizations -ffinite-math-only" "-fassociative-math -fno-signed-zeros -fno-trapping-math" "-freciprocal-math -ffp-contract=fast")
mkdir -p "$folder"
failed=0

# assembly COMMAND FLAGS OUTPUT: by the command of a build, with the host's flags before those that are Fovea's own
assembly() {
  local command=${1/ -Wall / $2 -Wall } few=
  [[ $1 != *"/kernels/"* ]] || few=" -UFOVEA_DISABLED_TARGETS '-DFOVEA_DISABLED_TARGETS=~(HWY_SSE2|HWY_AVX2|HWY_NEON_WITHOUT_AES)'"
  command=$(sed -E "s# -o [^ ]+ -c #$few -S -o '$3' #" <<<"$command")
  eval "$command"
}

for source; do
  command=$(sed -nE 's/^ *"command": "(.*)",?$/\1/p' "$commands" | grep "/$source\$" | sed 's/\\"/"/g; s/\\\\/\\/g')
  command=${command%%$'\n'*}
  [[ $command == *" -Wall "*" -c "* ]] || { echo "no command for $source that can be changed: $command"; exit 1; }
  name=$folder/$(basename "$source")
  assembly "$command" "" "$name.s"
  tried=("${flags[@]}")
  [[ $source != kernels/* ]] || tried=("${flags[*]}")  # at once: they take long
  for host in "${tried[@]}"; do
    assembly "$command" "$host" "$name.host.s"
    cmp -s "$name.s" "$name.host.s" || { echo "$source: not the same with $host"; failed=1; }
  done
done
exit $failed
