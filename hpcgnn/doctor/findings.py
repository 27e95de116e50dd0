"""Judge the facts about all ranks, the folder and the links."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcgnn.comm import Link
from hpcgnn.console import number
from hpcgnn.doctor.folder import FolderFacts
from hpcgnn.doctor.host import RankFacts
from hpcgnn.spmd import crowded, threads_of

GOOD, REMARK, FAULT = "good", "remark", "fault"

_LEAST_SHARED = 64 << 20
_SLOW_WRITING = 50e6
_SLOW_LINK = 1e9 / 8
_UNEVEN_LINKS = 4
_CORES_PER_RANK = (
    "tell the launcher the cores per rank (srun --cpus-per-task, mpiexec --map-by "
    "ppr:N:node:PE=CORES)"
)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    A `verdict` is good, remark (a run works, but not as well as it could) or fault (it fails); a
    good finding has no `remedy`.
    """

    topic: str
    verdict: str
    seen: str
    remedy: str = ""

    @classmethod
    def of(cls, topic: str, seen: str, remedy: str = "") -> "Finding":
        """Return a remark, or a good finding if there is no remedy."""
        return cls(topic, REMARK if remedy else GOOD, seen, remedy)


def judge(ranks: Sequence[RankFacts], folder: FolderFacts, links: Sequence[Link]) -> list[Finding]:
    """Return the findings about a world of ranks."""
    return [
        *_versions(ranks),
        _world(ranks),
        *_cores(ranks),
        _batch(ranks),
        *_memory(ranks),
        *_folder(folder),
        *([_links(links)] if links else []),
        _gpu(ranks),
        _energy(ranks),
    ]


def _versions(ranks: Sequence[RankFacts]) -> Iterable[Finding]:
    first = ranks[0]
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    odd = _first_that(ranks, lambda rank: (rank.versions, rank.mpi) != (first.versions, first.mpi))
    if odd is None:
        yield Finding("versions", GOOD, versions)
    else:
        yield Finding(
            "versions",
            FAULT,
            f"{versions}; {_others(first, odd)} on {odd.host}",
            "use one environment on all hosts: a shared folder, or one container image",
        )
    isas = {rank.isas for rank in ranks}
    seen, remedy = f"{first.system}; kernels for {first.isas[0]}", ""
    if len(isas) > 1:
        seen = f"hosts differ: {', '.join(sorted({names[0] for names in isas}))}"
        remedy = "ranks wait for the slowest; request hosts of one kind"
    yield Finding.of("processors", seen, remedy)


def _others(first: RankFacts, odd: RankFacts) -> str:
    """Return the versions of a rank that differ from those of the first."""
    expected = first.versions
    other = [f"{name} {v}" for name, v in odd.versions.items() if v != expected.get(name)]
    return ", ".join(other + [f"{odd.mpi} instead of {first.mpi}"] * (odd.mpi != first.mpi))


def _world(ranks: Sequence[RankFacts]) -> Finding:
    hosts = Counter(rank.host for rank in ranks)
    seen = f"{ranks[0].mpi}; {number(len(ranks), 'rank')} on {number(len(hosts), 'host')}"
    if len(set(hosts.values())) > 1:
        seen += f", {min(hosts.values())} to {max(hosts.values())} per host"
        remedy = "parts have equal work: give every host the same number of ranks"
        return Finding.of("MPI", seen, remedy)
    remedy = ""
    if not all(rank.moves_messages for rank in ranks):
        remedy = (
            "only one thread may call it, so long messages move only during waits: use a build "
            "with MPI_THREAD_MULTIPLE"
        )
    if len(ranks) == 1:
        remedy = "start it like a run (mpiexec -n 4 hpcgnn doctor) to check ranks and links"
    return Finding.of("MPI", seen, remedy)


def _cores(ranks: Sequence[RankFacts]) -> Iterable[Finding]:
    for host, members in _by_host(ranks).items():
        cores = set().union(*(rank.cores for rank in members))
        shared = Counter(core for rank in members for core in rank.cores)
        bound = all(count == 1 for count in shared.values())
        mates = [rank.cores for rank in members]
        threads = [threads_of(rank.cores, mates, rank.threads) for rank in members]
        seen = (
            f"{host}: {number(len(members), 'rank')} on {number(len(cores), 'core')}, "
            + ("each on its own" if bound else "which they share")
            + f", {number(min(threads), 'thread')} per rank"
        )
        remedy, (several, few) = "", crowded(mates) or (0, 0)
        if 0 < few < len(cores):
            remedy = f"{several} of them are bound to {number(few, 'core')}: {_CORES_PER_RANK}"
        elif sum(threads) > len(cores):
            remedy = (
                "more threads than cores: request --cpus-per-task, lower OMP_NUM_THREADS, or start "
                "fewer ranks"
            )
        elif max(threads, default=1) > 1 and any(
            len(rank.cores) < count for rank, count in zip(members, threads, strict=True)
        ):
            remedy = f"a rank may use fewer cores than it has threads: {_CORES_PER_RANK}"
        yield Finding.of("cores", seen, remedy)


def _batch(ranks: Sequence[RankFacts]) -> Finding:
    batch, remedy = ranks[0].batch, ""
    if not batch:
        return Finding.of("batch system", "none: the launcher's own world")
    seen = ", ".join(f"{name}={value}" for name, value in batch.items())
    tasks, step = batch.get("SLURM_NTASKS", ""), batch.get("SLURM_STEP_NUM_TASKS", "")
    cpus, passed = batch.get("SLURM_CPUS_PER_TASK"), batch.get("SRUN_CPUS_PER_TASK")
    if tasks.isdigit() and int(tasks) > len(ranks) and not step:
        remedy = f"the job has {tasks} tasks, this world has {len(ranks)} ranks: start with srun"
    elif cpus and not passed:
        remedy = (
            "since Slurm 22.05 srun does not take --cpus-per-task from the job: export "
            f"SRUN_CPUS_PER_TASK={cpus}"
        )
    return Finding.of("batch system", seen, remedy)


def _memory(ranks: Sequence[RankFacts]) -> Iterable[Finding]:
    members = {host: len(those) for host, those in _by_host(ranks).items()}
    # Hosts of unequal memory or ranks: the least share counts, since parts have equal sizes.
    least = min(ranks, key=lambda rank: rank.memory_bytes / members[rank.host])
    share = least.memory_bytes / members[least.host]
    yield Finding.of(
        "memory",
        f"{_size(least.memory_bytes)} on {least.host}, {_size(share)} per rank; "
        "hpcgnn plan estimates what a run needs",
    )
    shared = [rank for rank in ranks if (rank.shared_bytes or 0) < _LEAST_SHARED]
    if shared:
        free_bytes = shared[0].shared_bytes
        yield Finding.of(
            "shared memory",
            f"{shared[0].host}: /dev/shm "
            + ("does not exist" if free_bytes is None else f"has {_size(free_bytes)} free"),
            "ranks of a host share rows there (hierarchical exchange, sampling); give a container "
            "more (--shm-size), or remove leftover files",
        )


def _folder(folder: FolderFacts) -> Iterable[Finding]:
    if folder.fault:
        yield Finding("files", FAULT, folder.fault, "name a writable folder: --dir DIR")
        return
    if folder.unseen:
        yield Finding(
            "files",
            FAULT,
            f"{folder.path}: {', '.join(folder.unseen)} cannot see a file written there",
            "put stores and run directories on a file system that all hosts share",
        )
        return
    where = f"{folder.path} ({folder.kind})" if folder.kind else folder.path
    seen = f"{where}: {folder.write_bytes_per_s / 1e6:,.0f} MB/s written and synced"
    remedy = "checkpoints are slow: choose a faster file system for run.dir"
    yield Finding.of("files", seen, remedy * (folder.write_bytes_per_s < _SLOW_WRITING))
    if folder.kind.startswith("nfs"):
        yield Finding.of(
            "NFS",
            f"{folder.path} is on it, and all ranks read and write through one server",
            "put stores on a parallel file system if there is one; otherwise run convert, generate "
            "and partition on one host: writing one file from several was not tested on NFS",
        )
    if not folder.locks:
        yield Finding.of(
            "file locks",
            f"{folder.path} has none",
            "set HDF5_USE_FILE_LOCKING=FALSE, and do not start two runs in one directory",
        )


def _links(links: Sequence[Link]) -> Finding:
    slowest = min(links, key=lambda link: link.bandwidth)
    fastest = max(links, key=lambda link: link.bandwidth)
    latency = max(link.latency_s for link in links)
    between = "hosts" if slowest.hosts[0] != slowest.hosts[1] else "ranks of a host"
    seen = (
        f"{number(len(links), 'pair')} of {between}: {latency * 1e6:,.1f} us and "
        f"{slowest.bandwidth / 1e6:,.0f} MB/s at worst ({' and '.join(_ends(slowest))})"
    )
    # Ranks of one host copy through memory; a plan needs figures only between hosts.
    options = f"hpcgnn plan ... --bandwidth {slowest.bandwidth:.3g} --latency {latency:.2g}"
    if between == "hosts" and slowest.bandwidth < _SLOW_LINK:
        remedy = (
            "as slow as 1 Gbit/s Ethernet: make MPI use the fast network (UCX_NET_DEVICES, "
            f"OMPI_MCA_btl_tcp_if_include); then {options}"
        )
        return Finding.of("network", seen, remedy)
    if slowest.bandwidth * _UNEVEN_LINKS < fastest.bandwidth:
        remedy = (
            f"the best pair ({' and '.join(_ends(fastest))}) is "
            f"{fastest.bandwidth / slowest.bandwidth:.0f} times faster: check the slow pair"
        )
        return Finding.of("network", seen, remedy)
    return Finding.of("network", f"{seen}; {options}" if between == "hosts" else seen)


def _ends(link: Link) -> tuple[str, str]:
    if link.hosts[0] != link.hosts[1]:
        return link.hosts
    return f"rank {link.ranks[0]}", f"rank {link.ranks[1]}"


def _gpu(ranks: Sequence[RankFacts]) -> Finding:
    without = _first_that(ranks, lambda rank: bool(rank.gpu))
    if without is None:
        return Finding("GPU", GOOD, "every rank finds one")
    if all(rank.gpu for rank in ranks):
        return Finding("GPU", GOOD, f"none; train.device = cpu does not need one ({without.gpu})")
    return Finding.of(
        "GPU",
        f"{without.host} has none: {without.gpu}",
        "train.device = cuda needs one for every rank: --gpus-per-task=1",
    )


def _energy(ranks: Sequence[RankFacts]) -> Finding:
    without = _first_that(ranks, lambda rank: bool(rank.energy))
    if without is None:
        return Finding("energy", GOOD, "every host counts joules, those of other jobs included")
    missing = f"not counted: {without.host}: {without.energy}; run.watts_per_core estimates it"
    return Finding("energy", GOOD, missing)


def _first_that(ranks: Sequence[RankFacts], holds: Callable[[RankFacts], bool]) -> RankFacts | None:
    return next((rank for rank in ranks if holds(rank)), None)


def _by_host(ranks: Sequence[RankFacts]) -> Mapping[str, list[RankFacts]]:
    hosts: dict[str, list[RankFacts]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    return hosts


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
