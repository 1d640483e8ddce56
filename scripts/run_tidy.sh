#!/usr/bin/env bash
# clang-tidy over our own sources with the compile commands of a build.
# usage: scripts/run_tidy.sh BUILD_DIR
set -euo pipefail
build=$1
# Tests are left to the compiler's warnings: GoogleTest's macros trip several of the checks.
git ls-files 'src/*.cc' 'apps/*.cc' | xargs -P "$(nproc)" -n 4 clang-tidy-14 -p "$build" --quiet
