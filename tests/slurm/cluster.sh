#!/bin/bash
# A real Slurm on one machine: a controller and two nodes, each an emulated host of its own.
#
#   cluster.sh install                    Slurm and munge from Debian's packages, if not there yet
#   cluster.sh up DIRECTORY               start; all that the cluster writes is below DIRECTORY
#   cluster.sh run DIRECTORY COMMAND...   on the controller's host
#   cluster.sh down DIRECTORY             stop what `up` started
#
# A host is a set of namespaces (network, hostname, mounts, processes) held by one process, whose
# number is in DIRECTORY/HOST.pid: when it ends, the kernel ends all that runs there and removes
# the links. Nothing has a route out of the emulated network.
set -euo pipefail

NODES=(node1 node2)
CORES=4
SUBNET=10.83.0
PORT=17310

fail() {
    echo "cluster: $*" >&2
    exit 1
}

install_slurm() {
    # Slurm's plugin opens the library of PMIx by the name that only the -dev package has.
    local packages=(slurm-wlm slurm-wlm-basic-plugins munge libpmix-dev iproute2 procps util-linux)
    ((EUID == 0)) || fail "only root can install Slurm and make namespaces"
    type -P apt-get >/dev/null || fail "no apt-get: Slurm is installed from Debian's packages only"
    ! dpkg --status "${packages[@]}" &>/dev/null || return 0
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends "${packages[@]}"
}

# ---- hosts -----------------------------------------------------------------------------------

write_names() {
    local number=1 host
    echo "127.0.0.1 localhost"
    echo "$SUBNET.254 head"
    for host in "${NODES[@]}"; do
        echo "$SUBNET.$number $host"
        number=$((number + 1))
    done
}

start_host() {
    local host=$1
    # The first process of a host adopts its daemons, and bash in `wait` reaps them.
    # shellcheck disable=SC2016
    unshare --net --uts --mount --pid --fork --kill-child --mount-proc bash -c '
        hostname "$1" && mount -t tmpfs tmpfs /dev/shm && mount --bind "$2/hosts" /etc/hosts &&
        touch "$2/$1.ready" && sleep infinity & wait' \
        bash "$host" "$state" </dev/null >"$state/$host.log" 2>&1 &
    local outer=$!
    wait_for 5 test -e "$state/$host.ready" || fail "no namespaces: $(cat "$state/$host.log")"
    ps -o pid= --ppid "$outer" | tr -d ' ' >"$state/$host.pid"
}

wait_for() {
    local tries=$(($1 * 10))
    shift
    until "$@"; do
        ((tries-- > 0)) || return 1
        sleep 0.1
    done
}

on() {
    local host=$1
    shift
    nsenter --target "$(<"$state/$host.pid")" --net --uts --mount --pid --wd="$PWD" \
        env SLURM_CONF="$state/slurm.conf" "$@"
}

network_of() {
    nsenter --net="/proc/$(<"$state/$1.pid")/ns/net" "${@:2}"
}

connect_hosts() {
    local number=1 host
    network_of head ip link set lo up
    network_of head ip link add bridge type bridge
    network_of head ip addr add "$SUBNET.254/24" dev bridge
    network_of head ip link set bridge up
    for host in "${NODES[@]}"; do
        network_of head ip link add "$host" type veth \
            peer name eth0 netns "$(<"$state/$host.pid")"
        network_of head ip link set "$host" master bridge up
        network_of "$host" ip link set lo up
        network_of "$host" ip addr add "$SUBNET.$number/24" dev eth0
        network_of "$host" ip link set eth0 up
        number=$((number + 1))
    done
}

# ---- Slurm -----------------------------------------------------------------------------------

write_configuration() {
    cat <<CONF
ClusterName=hpcgnn
SlurmctldHost=head($SUBNET.254)
SlurmctldPort=$PORT
SlurmdPort=$((PORT + 1))
SrunPortRange=$((PORT + 10))-$((PORT + 200))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# Credentials that expire soon let a requeued job start again within seconds.
AuthInfo=socket=$state/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$state/controller
SlurmdSpoolDir=$state/spool-%n
# The hosts share /tmp; what is local to one of them must not.
TmpFS=$state/tmp-%n
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd-%n.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd-%n.log
# No systemd and no cgroups in these hosts.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
KillWait=20
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=$(join "${NODES[@]}") CPUs=$CORES Sockets=1 CoresPerSocket=$CORES RealMemory=2000
PartitionName=batch Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=2
CONF
}

join() {
    local IFS=,
    echo "$*"
}

nodes_idle() {
    [[ $(on head sinfo --noheader --responding --states=idle --format=%D 2>/dev/null) == \
    "${#NODES[@]}" ]]
}

start_slurm() {
    mkdir -p "$state/controller"
    (umask 077 && head -c 128 /dev/urandom >"$state/munge.key")
    on head munged --key-file="$state/munge.key" --socket="$state/munge.socket" \
        --pid-file="$state/munged.pid" --log-file="$state/munged.log" \
        --seed-file="$state/munge.seed"
    on head slurmctld -i
    for host in "${NODES[@]}"; do
        mkdir -p "$state/spool-$host" "$state/tmp-$host"
        on "$host" slurmd -N "$host"
    done
    wait_for 30 nodes_idle || fail "the nodes did not come up: $(tail -n 5 "$state"/slurm*.log)"
}

stop_hosts() {
    local file pid
    for file in "$state"/{head,node1,node2}.pid; do
        [[ -s $file ]] || continue
        pid=$(<"$file")
        # A number may have been given to another process since.
        if grep -qsF -- "$state" "/proc/$pid/cmdline"; then kill -KILL "$pid"; fi
        rm -f "$file"
    done
}

up() {
    trap stop_hosts EXIT
    write_names >"$state/hosts"
    write_configuration >"$state/slurm.conf"
    for host in head "${NODES[@]}"; do start_host "$host"; done
    connect_hosts
    start_slurm
    trap - EXIT
}

if [[ $# -ge 2 ]]; then
    mkdir -p "$2"
    state=$(cd -- "$2" && pwd)
fi
case $#,${1:-} in
1,install) install_slurm ;;
2,up) up ;;
2,down) stop_hosts ;;
*,run) on head "${@:3}" ;;
*) fail "usage: cluster.sh install | up DIRECTORY | run DIRECTORY COMMAND... | down DIRECTORY" ;;
esac
