#!/usr/bin/env bash
# Install the browser that the tests of the page look with, where that is possible: Debian's package, as root.
set -euo pipefail

command -v chromium >/dev/null && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "needs Debian and root: apt-get install chromium" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# Another installation may be under way, as of Slurm by the tests beside.
install() { apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends chromium </dev/null >&2; }
install || { apt-get update -qq </dev/null >&2 && install; }
