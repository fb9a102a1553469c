#!/usr/bin/env bash
# stripped_size.sh STRIP LIBRARY LIMIT: the stripped library has at most LIMIT bytes.
set -euo pipefail
stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT
"$1" -o "$stripped" "$2"
bytes=$(wc -c <"$stripped")
echo "$bytes bytes of $3"
((bytes <= $3))
