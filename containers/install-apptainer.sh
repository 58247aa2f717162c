#!/usr/bin/env bash
# Install Apptainer and what building images needs. Debian on x86-64, as root; a second call finds everything and ends.
# Usage: install-apptainer.sh [DIR]      default: /usr/local/lib/kdgat-apptainer, where kdgat finds it without PATH
#
# Debian's stable releases have no Apptainer, unstable has. Its program is taken from there together with the newer C
# library it was linked against, which lies beside it in DIR and concerns nothing else on this machine. apt checks the
# signatures of both, and the mirror is the one this machine's apt uses.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
default=/usr/local/lib/kdgat-apptainer
dir=$(readlink -m "${1:-$default}")
program=$dir/usr/bin/apptainer
marker=.kdgat-apptainer  # says that DIR is ours to replace
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

fail() { echo "install-apptainer: $*" >&2; exit 1; }

needed=(squashfs-tools squashfuse fakeroot uidmap mmdebstrap patchelf tzdata debian-archive-keyring
    ca-certificates)
missing=()
command -v dpkg-query >/dev/null || fail "this is no Debian (no dpkg): install apptainer by other means, see apptainer.org"
for package in "${needed[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ] && [ -x "$program" ] && "$program" --version; then exit 0; fi

# shellcheck disable=SC1091
distribution=$(. /etc/os-release && echo "${ID:-unknown}")
[ "$distribution" = debian ] || fail "this is $distribution, not Debian: install apptainer by other means, see apptainer.org"
[ "$(id -u)" -eq 0 ] || fail "needs root: sudo $0 ${1:-}"
if [ -n "$(ls -A "$dir" 2>/dev/null)" ] && [ ! -e "$dir/$marker" ]; then
    fail "$dir is not empty and was not made by this script: name another directory"
fi
[ "$(uname -m)" = x86_64 ] || fail "only x86-64 is supported, this is $(uname -m)"

export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
quietly() {
    if ! "$@" >"$work/log" 2>&1 </dev/null; then
        tail -n 15 "$work/log" >&2
        fail "failed: $*"
    fi
}

install=(apt-get install -y -qq --no-install-recommends)
if [ ${#missing[@]} -gt 0 ] && ! "${install[@]}" "${missing[@]}" >"$work/log" 2>&1 </dev/null; then
    # A source of somebody else that cannot be reached is no reason to stop: what counts is whether packages are found.
    apt-get update -qq >"$work/log" 2>&1 </dev/null || tail -n 5 "$work/log" >&2
    quietly "${install[@]}" "${missing[@]}"
fi

# Apptainer starts no container where this is missing, as it is in a minimal Debian.
if [ ! -e /etc/localtime ]; then
    echo "install-apptainer: this machine has no /etc/localtime; its time zone is now UTC" >&2
    ln -sfn /usr/share/zoneinfo/Etc/UTC /etc/localtime
fi

# A release that has the package keeps it up to date, which a copy in DIR would not.
if [ -n "$(apt-cache madison apptainer 2>/dev/null)" ]; then
    quietly "${install[@]}" apptainer
    mkdir -p "$dir/usr/bin"
    touch "$dir/$marker"
    ln -sfn "$(command -v apptainer)" "$program"
    ln -sfn "$(command -v apptainer)" "$dir/usr/bin/singularity"
    "$program" --version
    exit 0
fi

archive() { apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' | head -n 1; }
mirror=$(archive)
[ -n "$mirror" ] || { quietly apt-get update -qq; mirror=$(archive); }
[ -n "$mirror" ] || fail "apt has no Debian archive in its sources: add a mirror to /etc/apt/sources.list"
[ -r "$keyring" ] || fail "$keyring is missing: apt-get install debian-archive-keyring"

# An apt of its own: unstable must never be offered to the machine itself.
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/packages"
: >"$work/status"
echo "deb [signed-by=$keyring] $mirror sid main" >"$work/sources.list"
unstable=(
    apt-get -qq
    -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o "Dir::State::Status=$work/status" -o "Dir::Cache=$work"
    -o APT::Sandbox::User=root
    -o Acquire::Check-Valid-Until=false  # frozen mirrors serve an old, still signed list
)
quietly "${unstable[@]}" update
libraries=(libc6 libseccomp2 libsqlite3-0)
cd "$work/packages"
quietly "${unstable[@]}" download apptainer "${libraries[@]}"

# Put together beside DIR and moved there as a whole: an interrupted run leaves no half of an installation.
staged=$dir.new.$$
trap 'rm -rf "$work" "$staged"' EXIT
mkdir -p "$staged/lib"
touch "$staged/$marker"
dpkg-deb --extract apptainer_*.deb "$staged"
for library in "${libraries[@]}"; do
    dpkg-deb --extract "${library}"_*.deb "$work/$library"
    find "$work/$library" -name '*.so*' ! -type d -exec cp -a --no-clobber {} "$staged/lib/" \;
done
[ -e "$staged/lib/ld-linux-x86-64.so.2" ] || fail "the C library of $mirror sid has no ld-linux-x86-64.so.2"
while IFS= read -r binary; do
    quietly patchelf --set-interpreter "$dir/lib/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$dir/lib" "$binary"
done < <(find "$staged/usr/bin/apptainer" "$staged/usr/lib" -type f \( -name apptainer -o -name starter \))
# Away from /, the program looks for its settings and its mount point relative to itself, from two starting points.
for start in usr usr/lib; do
    mkdir -p "$staged/$start/var/lib/apptainer/mnt/session" "$staged/$start/etc"
    cp -a "$staged/etc/apptainer" "$staged/$start/etc/"
done
ln -s apptainer "$staged/usr/bin/singularity"  # the name that spython calls
chmod -R a+rX "$staged"
rm -rf "$dir"
mkdir -p "$(dirname "$dir")"
mv "$staged" "$dir"
if [ "$dir" = "$default" ]; then
    # Jobs on this machine call it by name.
    for name in apptainer singularity; do
        [ -e "/usr/local/bin/$name" ] || ln -s "$dir/usr/bin/$name" "/usr/local/bin/$name"
    done
fi
"$program" --version
