#!/usr/bin/env bash
# Install what the private Slurm of the tests needs, where that is possible: Debian's packages, as root. Starts nothing.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need munged munge
need slurmctld slurmctld
need slurmd slurmd
need sbatch slurm-client
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "Slurm is missing (${missing[*]}) and there is no apt-get: install Slurm and munge by other means" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Slurm is missing (${missing[*]}) and this is not root: sudo apt-get install ${missing[*]}" >&2
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
log=$(mktemp)
install() { apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1 </dev/null; }
if ! install && ! { apt-get update -qq >"$log" 2>&1 </dev/null && install; }; then
    echo "apt-get could not install ${missing[*]}: $(grep -E '^E:' "$log" | tail -1) (all of it: $log)" >&2
    exit 1
fi
rm -f "$log"
# Nor shall the next start of this machine run them: the tests bring their own daemons.
if command -v systemctl >/dev/null; then
    systemctl disable "${missing[@]/slurm-client/munge}" >/dev/null 2>&1 || true
fi
