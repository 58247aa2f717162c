#!/usr/bin/env bash
# Make a base image from Debian's packages, for machines that reach no container registry: Debian 12 with its Python 3.11.
# Usage: make-base.sh OUT.sif      Debian on x86-64, as root; wants what install-apptainer.sh installs
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
out=$(readlink -m "${1:?usage: make-base.sh OUT.sif}")
suite=bookworm
installed=/usr/local/lib/kdgat-apptainer/usr/bin

fail() { echo "make-base: $*" >&2; exit 1; }

[ "$(id -u)" -eq 0 ] || fail "needs root: sudo $0 $1"
PATH=$PATH:${KDGAT_APPTAINER:+$(dirname "$KDGAT_APPTAINER"):}$installed
for program in mmdebstrap mksquashfs apptainer; do
    command -v "$program" >/dev/null || fail "$program is missing: run containers/install-apptainer.sh first"
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/kdgat-base.XXXXXX")
# On one filesystem: what mmdebstrap mounted in it, if it was killed, is the machine's own /proc, /sys and /dev.
trap 'rm -rf --one-file-system "$work" "$out.new.$$"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

archive() { apt-get indextargets --format '$(REPO_URI)' "Label: $1" | head -n 1; }
main=$(archive Debian)
security=$(archive Debian-Security)
[ -n "$main" ] || fail "apt has no Debian archive in its sources: add a mirror to /etc/apt/sources.list"
sources=("deb $main $suite main" "deb $main $suite-updates main")
if [ -n "$security" ]; then
    sources+=("deb $security $suite-security main")
else
    echo "make-base: apt has no security archive in its sources, so the base goes without $suite-security" >&2
fi

chmod 755 "$work"
mmdebstrap --quiet --variant=apt --mode=root --include=python3,python3-venv,libpython3-dev,ca-certificates \
    --aptopt='Acquire::Check-Valid-Until "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/lib/*.a' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/log/* "$1"/root/.cache' \
    --customize-hook='rm -f "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/etc/apt/apt.conf.d/99mmdebstrap' \
    --customize-hook='rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*' \
    "$suite" "$work/root" "${sources[@]}"
rm -rf --one-file-system "$work/root/dev"
mkdir "$work/root/dev"
chmod -R a+rX "$work/root"

# One owner: a builder without a range of user ids of its own could not unpack files of several.
mkdir -p "$(dirname "$out")" "$work/cache"
APPTAINER_CACHEDIR=$work/cache APPTAINER_TMPDIR=$work TMPDIR=$work \
    apptainer --quiet build --mksquashfs-args='-all-root -no-xattrs -comp zstd -Xcompression-level 3' \
    "$work/base.sif" "$work/root"
cp "$work/base.sif" "$out.new.$$"
chmod a+r "$out.new.$$"
mv "$out.new.$$" "$out"
echo "$out"
