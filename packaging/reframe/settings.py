"""Systems for ReFrame: one host, and any Slurm; a site adds its own (docs/sites.md)."""

_ENVIRONMENTS = [{"name": "builtin", "cc": "cc", "cxx": "c++", "ftn": ""}]


def _system(name: str, description: str, scheduler: str, launcher: str) -> dict[str, object]:
    partition = {
        "name": "ranks",
        "scheduler": scheduler,
        "launcher": launcher,
        "environs": ["builtin"],
        "max_jobs": 1,
    }
    return {
        "name": name,
        "descr": description,
        "hostnames": [".*"],
        "modules_system": "nomod",
        "partitions": [partition],
    }


site_configuration = {
    "systems": [
        _system("workstation", "one host, mpirun", "local", "mpirun"),
        _system("slurm", "a Slurm cluster, srun; -J for partition and account", "slurm", "srun"),
        _system("squeue", "the same where Slurm keeps no accounts", "squeue", "srun"),
    ],
    "environments": _ENVIRONMENTS,
}
