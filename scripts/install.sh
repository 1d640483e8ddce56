#!/usr/bin/env bash
# Installs the Debian packages Fovea needs, and only those that are missing.
# usage: scripts/install.sh [build] [lint]     without arguments: build
set -euo pipefail

# ocl-icd-opencl-dev: oneDNN's CMake files ask for OpenCL's headers.
build_packages=(g++ cmake ninja-build ccache pkg-config make git python3 python3-pip python3-venv
  libdnnl-dev ocl-icd-opencl-dev libfmt-dev nlohmann-json3-dev libcli11-dev libsimdjson-dev zlib1g-dev libpcre2-dev
  libcpp-httplib-dev
  libgtest-dev libgmock-dev libbenchmark-dev)
lint_packages=(clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev)

wanted=()
for group in "${@:-build}"; do
  case "$group" in
    build) wanted+=("${build_packages[@]}") ;;
    lint) wanted+=("${lint_packages[@]}") ;;
    *) echo "install.sh: unknown group '$group', use build or lint" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "install.sh: this is not a Debian system; install the equivalents of: ${missing[*]}" >&2
  exit 2
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install.sh: not root and no sudo; ask an administrator to run: apt-get install ${missing[*]}" >&2
    exit 2
  fi
  as_root=(sudo)
fi
echo "Installing with apt: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null
