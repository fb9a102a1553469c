#!/usr/bin/env bash
# pkg_config.sh LIBRARY-FOLDER WORK-FOLDER COMPILER SOURCE-FOLDER MODULE...: the consumer builds and runs with pkg-config's flags alone.
set -euo pipefail
libraries=$1 work=$2 compiler=$3 source=$4
shift 4
export PKG_CONFIG_PATH=$libraries/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
mkdir -p "$work"
define=()
[[ " $* " == *" fovea-tbb "* ]] && define=(-DCONSUMER_USES_TBB)
read -ra flags <<<"$(pkg-config --cflags --libs "$@")"
(set -x; "$compiler" -std=c++17 "${define[@]}" "$source/consumer.cc" -o "$work/consumer" "${flags[@]}")
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$work/consumer"
