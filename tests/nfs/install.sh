#!/usr/bin/env bash
# Install what the NFS of the tests needs, where that is possible: Debian's packages, as root. Starts nothing.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

packages=(user-mode-linux kmod nfs-common nfs-kernel-server rpcbind iproute2 e2fsprogs)
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "needs Debian and root: apt-get install ${packages[*]}" >&2
    exit 1
fi
# Debian starts the services of a package that it installs, unless this file forbids it.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
# Another installation may be under way, as of Slurm by the tests beside.
install() { apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${packages[@]}" </dev/null >&2; }
install || { apt-get update -qq </dev/null >&2 && install; }
