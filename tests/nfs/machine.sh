#!/bin/bash
# The first process of the machine: an NFS server, and one client per node, each in a network of its own, of one kernel.
# Then the words of the file JOB, and the end. The files of the host are there to be read.
set -euo pipefail
job=$1 version=$2
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/mnt/tmp TMPDIR=/mnt/tmp LANG=C.UTF-8
finish() { echo "exit status ${1:-$?} of the NFS machine"; sync; halt --force --poweroff; }
trap finish EXIT

mount -t proc proc /proc
mount -t sysfs sysfs /sys
for folder in /mnt /run /var/lib/nfs; do mount -t tmpfs none "$folder"; done
mkdir -p /mnt/tmp /mnt/server /mnt/shared /mnt/clients /mnt/modules/lib /dev/shm /dev/pts
mount -t tmpfs none /dev/shm
mount -t devpts devpts /dev/pts
ln -s /usr/lib/uml/modules /mnt/modules/lib/modules
modprobe -d /mnt/modules -a ext4 nfsd nfs nfsv3 nfsv4 veth
hostname server
ip link set lo up

mkfs.ext4 -q -F -E lazy_itable_init=1 /dev/ubda
mount /dev/ubda /mnt/server
mkdir /mnt/server/home
mkdir -p /var/lib/nfs/{sm,sm.bak,v4recovery,nfsdcld} /run/rpc_pipefs
touch /var/lib/nfs/{etab,rmtab,state}
mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
mount -t nfsd nfsd /proc/fs/nfsd
echo 15 >/proc/fs/nfsd/nfsv4leasetime  # a lock of a dead node stays for so long, and some seconds
echo 10 >/proc/fs/nfsd/nfsv4gracetime
echo 10 >/proc/sys/fs/nfs/nlm_grace_period  # that of version 3, which those of 4 wait for, too
{
    rpcbind
    rpc.statd --no-notify
    nfsdcld
    exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=0 '*:/mnt/server'
    rpc.mountd
    rpc.nfsd 4
} 2>/mnt/tmp/daemons || { cat /mnt/tmp/daemons; exit 1; }

number=0
for client in a b c; do
    number=$((number + 1))
    ip netns add "$client"
    ip link add "link-$client" type veth peer name eth0 netns "$client"
    ip address add "10.9.$number.1/24" dev "link-$client"
    ip link set "link-$client" up
    ip -n "$client" address add "10.9.$number.2/24" dev eth0
    ip -n "$client" link set eth0 up
    ip -n "$client" link set lo up
    mkdir "/mnt/clients/$client"
    # Locks of version 3 need daemons of their own in each network: without, they do not reach from node to node.
    if [ "$version" = 3 ]; then what=/mnt/server/home options=vers=3,nolock,tcp; else what=/home options=vers=$version; fi
    # A server knows its clients by their host names.
    nsenter --net="/run/netns/$client" unshare --uts sh -c 'hostname "$0" && exec mount -t nfs "$@"' \
        "$client" -o "$options" "10.9.$number.1:$what" "/mnt/clients/$client"
done
status=0
bash "$job" || status=$?
finish "$status"
