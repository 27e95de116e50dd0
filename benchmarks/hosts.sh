#!/bin/bash
# Emulated hosts on one machine: each with its own network, hostname, /dev/shm and processes.
#
#   hosts.sh check                        say in one line what is missing here, if anything
#   hosts.sh up DIRECTORY HOST...         start the hosts and a host `head`, joined by a bridge
#   hosts.sh rate DIRECTORY RATE [HOST...]
#                                         shape these links, or all, both ways: 200mbit, 1gbit, none
#   hosts.sh link DIRECTORY HOST STATE    down: cut the link of a host; up: heal it
#   hosts.sh run DIRECTORY HOST COMMAND...
#   hosts.sh mpiexec DIRECTORY SLOTS LAUNCHER ARGUMENTS...
#                                         mpiexec of Open MPI or MPICH on the head, with SLOTS ranks
#                                         per host, or those of HOST:RANKS,HOST:RANKS
#   hosts.sh down DIRECTORY               end the hosts and all of their processes
#
# A host is a set of namespaces held by one process, whose number is in DIRECTORY/HOST.pid: when it
# ends, the kernel ends all other processes there and removes the links. There is no route out of the
# emulated network, and the machine's own network is not touched.
set -euo pipefail

SUBNET=10.83.0
HEAD=254
# A queue this long holds TCP's windows: a shaped link then delays, as a fabric does, and does not
# drop. The burst must hold the largest packet that TCP hands to its device, 64 KiB.
QUEUE=500ms
BURST=128kb

fail() {
    echo "hosts: $*" >&2
    exit 1
}

check() {
    local tool
    ((EUID == 0)) || fail "only root can make namespaces"
    for tool in ip tc; do
        type -P "$tool" >/dev/null || fail "no $tool: install iproute2"
    done
    for tool in unshare nsenter; do
        type -P "$tool" >/dev/null || fail "no $tool: install util-linux"
    done
    unshare --net --uts --mount --pid --fork true 2>/dev/null || fail "namespaces are not permitted here"
    unshare --net bash -c 'ip link add type veth && tc qdisc add dev veth0 root tbf rate 1mbit burst 64kb latency 1s' \
        2>/dev/null || fail "the kernel has no veth links or no token bucket (sch_tbf)"
}

wait_for() {
    local tries=$(($1 * 10))
    shift
    until "$@"; do
        ((tries-- > 0)) || return 1
        sleep 0.1
    done
}

# ---- hosts -----------------------------------------------------------------------------------

write_names() {
    local number=1 host
    echo "127.0.0.1 localhost"
    echo "$SUBNET.$HEAD head"
    for host in "$@"; do
        echo "$SUBNET.$number $host"
        number=$((number + 1))
    done
}

start_host() {
    local host=$1
    # The first process of a host adopts its daemons, and bash in `wait` reaps them.
    # shellcheck disable=SC2016
    setsid unshare --net --uts --mount --pid --fork --kill-child --mount-proc bash -c '
        hostname "$1" && mount -t tmpfs tmpfs /dev/shm && mount --bind "$2/hosts" /etc/hosts &&
        touch "$2/$1.ready" && sleep infinity & wait' \
        bash "$host" "$state" </dev/null >"$state/$host.log" 2>&1 &
    local outer=$!
    wait_for 5 test -e "$state/$host.ready" || fail "no namespaces: $(cat "$state/$host.log")"
    ps -o pid= --ppid "$outer" | tr -d ' ' >"$state/$host.pid"
}

holder() {
    [[ -s $state/$1.pid ]] || fail "no host $1 in $state"
    cat "$state/$1.pid"
}

run() {
    local host=$1
    shift
    # Daemons name their files by process numbers, which may be equal on several hosts.
    mkdir -p "$state/$host.tmp"
    exec nsenter --target "$(holder "$host")" --net --uts --mount --pid --wd="$PWD" \
        env TMPDIR="$state/$host.tmp" "$@"
}

network_of() {
    nsenter --net="/proc/$(holder "$1")/ns/net" "${@:2}"
}

connect() {
    local number=1 host
    network_of head ip link set lo up
    # A separate address: that of a port disappears with its host, while others still look for it.
    network_of head ip link add bridge address 02:00:00:00:00:fe type bridge
    network_of head ip addr add "$SUBNET.$HEAD/24" dev bridge
    network_of head ip link set bridge up
    for host in "$@"; do
        network_of head ip link add "$host" type veth peer name eth0 netns "$(holder "$host")"
        network_of head ip link set "$host" master bridge up
        network_of "$host" ip link set lo up
        network_of "$host" ip addr add "$SUBNET.$number/24" dev eth0
        network_of "$host" ip link set eth0 up
        number=$((number + 1))
    done
}

up() {
    local host
    trap down EXIT
    write_names "$@" >"$state/hosts"
    printf '%s\n' "$@" >"$state/names"
    write_agent
    for host in head "$@"; do start_host "$host"; done
    connect "$@"
    trap - EXIT
}

holds_host() {
    grep -qsF -- "$state" "/proc/$1/cmdline"
}

ended() {
    ! holds_host "$1"
}

down() {
    local file pid
    for file in "$state"/*.pid; do
        [[ -s $file ]] || continue
        pid=$(<"$file")
        # The number may have been reused for another process.
        if holds_host "$pid"; then kill -KILL "$pid"; fi
        wait_for 10 ended "$pid" || fail "process $pid of $state does not end"
        rm -rf "$file" "${file%.pid}.ready" "${file%.pid}.tmp"
    done
}

shape() {
    local host=$1 device=$2 rate=$3
    if [[ $rate == none ]]; then
        network_of "$host" tc qdisc del dev "$device" root 2>/dev/null || true
    else
        network_of "$host" tc qdisc replace dev "$device" root \
            tbf rate "$rate" burst "$BURST" latency "$QUEUE"
    fi
}

rate() {
    local rate=$1 host all
    shift
    mapfile -t all <"$state/names"
    (($#)) || set -- "${all[@]}"
    for host in "$@"; do
        shape "$host" eth0 "$rate"
        shape head "$host" "$rate"
    done
}

link() {
    [[ $2 == up || $2 == down ]] || fail "$usage"
    network_of head ip link set "$1" "$2"
}

# ---- MPI -------------------------------------------------------------------------------------

# In place of ssh: the agent gets options, a host, and a command for its shell.
write_agent() {
    local self
    self=$(readlink -f -- "${BASH_SOURCE[0]}")
    cat >"$state/agent" <<AGENT
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
exec bash ${self@Q} run ${state@Q} "\$1" /bin/sh -c "\${*:2}"
AGENT
    chmod +x "$state/agent"
}

mpiexec() {
    local slots=$1 launcher=$2 hosts version agent
    shift 2
    version=$("$launcher" --version) || fail "$launcher does not start"
    case $version in
    *"Open MPI) 4"*) agent=(--mca plm_rsh_agent "$state/agent") ;;
    *"Open MPI) 5"*) agent=(--prtemca plm_ssh_agent "$state/agent") ;;
    *HYDRA*) agent=(-launcher ssh -launcher-exec "$state/agent") ;;
    *) fail "$launcher is not of Open MPI 4 or 5, nor of MPICH" ;;
    esac
    hosts=$slots
    [[ $slots == *:* ]] || hosts=$(sed "s/\$/:$slots/" "$state/names" | paste -sd ,)
    if [[ $version == *HYDRA* ]]; then
        agent+=(-hosts "$hosts" -bind-to none -genv MPIR_CVAR_ENABLE_HEAVY_YIELD 1)
        # Only by the network: all hosts have the same kernel, whose memory UCX would share.
        agent+=(-genv FI_PROVIDER tcp -genv UCX_TLS "tcp,self")
    else
        # Every host takes the machine's first cores for its own, so no rank must be bound to them.
        agent+=(--host "$hosts" --bind-to none --map-by slot --mca pml ob1 --mca osc ^ucx)
        agent+=(--mca btl "self,sm,tcp" --mca btl_tcp_if_include "$SUBNET.0/24")
        agent+=(--mca mpi_yield_when_idle 1)
    fi
    # The agent must see the processes that hold the hosts, so only network and names are the head's.
    # shellcheck disable=SC2016
    exec nsenter --target "$(holder head)" --net --uts unshare --mount bash -c \
        'mount --bind "$0" /etc/hosts && exec "$@"' "$state/hosts" "$launcher" "${agent[@]}" "$@"
}

usage="usage: hosts.sh check | up | rate | link | run | mpiexec | down, see the head of the file"
command=${1:-}
if (($# >= 2)); then
    mkdir -p -- "$2"
    state=$(cd -- "$2" && pwd)
    shift 2
fi
case $command,$# in
check,1) check ;;
up,[1-9]*) up "$@" ;;
rate,[1-9]*) rate "$@" ;;
link,2) link "$@" ;;
run,0 | run,1 | mpiexec,[0-2]) fail "$usage" ;;
run,* | mpiexec,*) "$command" "$@" ;;
down,0) down ;;
*) fail "$usage" ;;
esac
