#!/usr/bin/env bash
# The first C++ example of README.md is examples/readme.cc, behind its first comment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
diff <(sed -n '/^```cpp$/,/^```$/p' README.md | sed '1d; /^```$/,$d') <(sed 1d examples/readme.cc)
