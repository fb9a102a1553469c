#!/usr/bin/env bash
# pkg_config.sh LIBRARY-FOLDER WORK-FOLDER C++-COMPILER C-COMPILER SOURCE-FOLDER MODULE...: the consumers build and run with pkg-config's flags alone; a static
# library's C consumer with those of --static.
set -euo pipefail
libraries=$1 work=$2 compiler=$3 c_compiler=$4 source=$5
shift 5
export PKG_CONFIG_PATH=$libraries/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
mkdir -p "$work"
define=()
[[ " $* " == *" fovea-tbb "* ]] && define=(-DCONSUMER_USES_TBB)
read -ra flags <<<"$(pkg-config --cflags --libs "$@")"
(set -x; "$compiler" -std=c++17 "${define[@]}" "$source/consumer.cc" -o "$work/consumer" "${flags[@]}")
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"$work/consumer"

static=()
[[ -e $libraries/libfovea.a ]] && static=(--static)
read -ra flags <<<"$(pkg-config --cflags --libs "${static[@]}" fovea)"
(set -x; "$c_compiler" -std=c11 "$source/consumer_c.c" -o "$work/consumer_c" "${flags[@]}" -lm)
"$work/consumer_c"
