#!/usr/bin/env bash
# Runs every fuzz target of a build for some seconds each; stops at the first crash, leaving its input.
# usage: scripts/run_fuzz.sh BUILD_DIR SECONDS
set -euo pipefail
build=$1
seconds=$2
found=0
for target in "$build"/tests/fuzz/fuzz_*; do
  [ -x "$target" ] && [ -f "$target" ] || continue
  found=$((found + 1))
  name=$(basename "$target")
  corpus="$build/corpus/$name"
  mkdir -p "$corpus"
  echo "fuzz: $name for $seconds s"
  "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=10 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$build/$name-" "$corpus"
done
[ "$found" -gt 0 ] || { echo "run_fuzz.sh: no fuzz target in $build" >&2; exit 1; }
echo "fuzz: $found targets, no crash"
