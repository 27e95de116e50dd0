#!/bin/bash
# A real Slurm on one machine: a controller and two nodes, each an emulated host of its own.
#
#   cluster.sh install                    Slurm and munge from Debian's packages, if not there yet
#   cluster.sh up DIRECTORY               start; all that the cluster writes is below DIRECTORY
#   cluster.sh run DIRECTORY COMMAND...   on the controller's host
#   cluster.sh down DIRECTORY             stop what `up` started
#
# benchmarks/hosts.sh makes the hosts; their daemons end with them.
set -euo pipefail

NODES=(node1 node2)
CORES=4
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

hosts() {
    bash "$(dirname -- "${BASH_SOURCE[0]}")/../../benchmarks/hosts.sh" "$@"
}

on() {
    hosts run "$state" "$1" env SLURM_CONF="$state/slurm.conf" "${@:2}"
}

wait_for() {
    local tries=$(($1 * 10))
    shift
    until "$@"; do
        ((tries-- > 0)) || return 1
        sleep 0.1
    done
}

# ---- Slurm -----------------------------------------------------------------------------------

write_configuration() {
    cat <<CONF
ClusterName=hpcgnn
SlurmctldHost=head($(head_address))
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

head_address() {
    awk '$2 == "head" { print $1 }' "$state/hosts"
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

up() {
    hosts up "$state" "${NODES[@]}"
    trap 'hosts down "$state"' EXIT
    write_configuration >"$state/slurm.conf"
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
2,down) hosts down "$state" ;;
*,run) on head "${@:3}" ;;
*) fail "usage: cluster.sh install | up DIRECTORY | run DIRECTORY COMMAND... | down DIRECTORY" ;;
esac
