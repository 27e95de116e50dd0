"""Files of sites with stand-ins for their commands: submissions, and the start of ranks."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcgnn.supervise.template import LaunchShape, Template

ROOT = Path(__file__).resolve().parents[2]
SITES = ROOT / "jobs" / "sites"


@dataclass(frozen=True)
class Site:
    """The requirements on a site's file.

    `submit` are the words before the script, `asks` the settings of sbatch, `launcher` the command
    that starts ranks, `network` the settings in the environment of ranks.
    """

    submit: str
    asks: Mapping[str, str]
    launcher: str
    network: Mapping[str, str]
    modules: str
    gpu: Mapping[str, str] | None = None


SRUN = "srun --kill-on-bad-exit=0 --cpu-bind=cores"
SLURM = "sbatch --nodes=2 --ntasks-per-node=4 --cpus-per-task=7"
GPUS = {"GPUS_PER_NODE": "4"}
HYBRID = {"FI_CXI_RX_MATCH_MODE": "hybrid"}
TABLE: Mapping[str, Site] = {
    "frontier": Site(
        SLURM,
        {"PARTITION": "batch", "TIMELIMIT": "02:00:00"},
        SRUN,
        {},
        "PrgEnv-gnu cray-mpich cray-python",
    ),
    "perlmutter": Site(
        SLURM,
        {"QOS": "regular", "CONSTRAINT": "cpu", "TIMELIMIT": "04:00:00"},
        SRUN,
        {},
        "PrgEnv-gnu cray-mpich python",
        {"QOS": "regular", "CONSTRAINT": "gpu", "TIMELIMIT": "04:00:00", **GPUS},
    ),
    "lumi": Site(
        SLURM,
        {"PARTITION": "standard", "TIMELIMIT": "12:00:00"},
        SRUN,
        {},
        "LUMI partition/C cray-python",
    ),
    "jupiter": Site(
        SLURM,
        {"PARTITION": "booster", "TIMELIMIT": "12:00:00", **GPUS},
        SRUN,
        {"OMPI_MCA_pml": "ucx", "UCX_TLS": "rc,sm,cuda,self"},
        "Stages GCC OpenMPI Python mpi4py h5py",
    ),
    "marenostrum5": Site(
        SLURM,
        {"QOS": "gp_resa", "TIMELIMIT": "12:00:00"},
        "srun --mpi=pmix --kill-on-bad-exit=0 --cpu-bind=cores",
        {"OMPI_MCA_pml": "ucx", "UCX_TLS": "rc,sm,self"},
        "gcc openmpi python",
        {"QOS": "acc_resa", "PARTITION": "acc", "TIMELIMIT": "12:00:00", **GPUS},
    ),
    "alps": Site(
        f"{SLURM} --uenv=prgenv-gnu/25.6:v2 --view=default",
        {"PARTITION": "normal", "TIMELIMIT": "12:00:00", **GPUS},
        SRUN,
        {"MPICH_GPU_SUPPORT_ENABLED": "1", **HYBRID},
        "",
    ),
    "aurora": Site(
        "qsub -v ARGS,HPCGNN_SITE,HPCGNN_SUPERVISE $HPCGNN_QSUB -l select=2:mpiprocs=4",
        {},
        "mpiexec --ppn 4 --cpu-bind list:1-7:8-14:53-59:60-66",
        {"FI_CXI_DEFAULT_CQ_SIZE": "1048576", **HYBRID},
        "frameworks",
    ),
    "fugaku": Site(
        'pjsub $HPCGNN_PJSUB -x ARGS -L "node=2,elapse=01:00:00" --mpi proc=8',
        {},
        "mpiexec",
        {"OMP_PROC_BIND": "close"},
        "",
    ),
}
JOBS: Mapping[str, tuple[str, str]] = {
    # The submitted script, and the command of ranks.
    "train": ("train.sbatch my.toml", "hpcgnn.train my.toml run.resume=auto"),
    "partition": ("partition.sbatch g.h5 --parts 8", "hpcgnn.partition g.h5 --parts 8"),
    "seeds": (
        "seeds.sbatch runs/all my.toml",
        "hpcgnn.train my.toml train.seeds=[3] run.dir=runs/all/seed-3 run.resume=auto",
    ),
    "supervised": ("train.sbatch my.toml", "hpcgnn.train my.toml run.resume=auto"),
}
ON_HOSTS = {
    "slurm": "--overlap -w {hosts} -N {nodes} -n {ranks}",
    "aurora": "--hosts {hosts} -n {ranks}",
}

LAUNCH = 'echo "${0##*/} $*" >>ranks; env >settings\n'
# A submission runs its script at once, in the environment that a job would have.
COMMANDS = {
    "srun": LAUNCH,
    "mpiexec": LAUNCH,
    "python": "[[ $1 != -c ]] || exit 0\n[[ $* != *supervise* ]] || " + LAUNCH,
    "sbatch": """
echo "sbatch $*" >submitted; env | sed -n 's/^SBATCH_//p' >asked
while [[ $1 == --* ]]; do shift; done
export SLURM_SUBMIT_DIR=$PWD SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_CPUS_PER_TASK=7 SLURM_NNODES=2
export SLURM_JOB_NODELIST='n[1-2]' SLURM_ARRAY_TASK_ID=3 SLURM_EXPORT_ENV=NONE
exec bash "$@"
""",
    "qsub": """
echo "qsub $*" >submitted; touch asked
printf 'n1\\nn1\\nn1\\nn1\\nn2\\nn2\\nn2\\nn2\\n' >nodes
export PBS_O_WORKDIR=$PWD PBS_JOBID=7.head PBS_NODEFILE=$PWD/nodes OMP_NUM_THREADS=7
export PBS_ARRAY_INDEX=3
exec bash "${@: -1}"
""",
    "qstat": "echo '    Resource_List.walltime = 06:00:00'",
    "pjsub": """
echo "pjsub $*" >submitted; touch asked
export PJM_O_WORKDIR=$PWD PJM_JOBID=7 PJM_MPI_PROC=8 PJM_NODE=2 PJM_BULKNUM=3
exec bash "${@: -1}"
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with jobs, an environment that holds hpcgnn, and stand-ins on PATH."""
    ignored = shutil.ignore_patterns("site.env", "configs")
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=ignored)
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    for name, code in COMMANDS.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{code}\n")
        (bin_folder / name).chmod(0o755)
    return tmp_path


def submit(
    folder: Path, site: str, words: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Submit as the page of a site says."""
    script = f"""
module() {{ echo "$*" >>modules; }}
export -f module
set -euo pipefail
. $HPCGNN_SITE
{words}
"""
    environment = {
        "PATH": f"{folder}/venv/bin:{os.environ['PATH']}",
        "HPCGNN_VENV": f"{folder}/venv",
        "HPCGNN_SITE": f"jobs/sites/{site}.env",
        "HPCGNN_PROJECT": "proj7",
        "HPCGNN_PPN": "4",
        "HPCGNN_DEPTH": "7",
        **settings,
    }
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )


def lines(path: Path) -> Sequence[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("name", TABLE)
def test_job(folder: Path, name: str, job: str) -> None:
    site, (script, program) = TABLE[name], JOBS[job]
    settings = {"HPCGNN_SUPERVISE": "1"} if job == "supervised" else {}
    if not site.asks:
        script, _, settings["ARGS"] = script.partition(" ")
        script = script.replace("sbatch", {"aurora": "pbs", "fugaku": "pjm"}[name])
    done = submit(folder, name, f"{site.submit} jobs/{script}", **settings)
    if (name, job) == ("fugaku", "supervised"):
        assert done.returncode == 2
        assert "HPCGNN_SUPERVISE: this mpiexec takes no list of hosts" in done.stderr
        assert not lines(folder / "ranks")
        return
    assert done.returncode == 0, done.stderr
    [submitted] = lines(folder / "submitted")
    assert ("proj7" in submitted) == (not site.asks)
    asked = dict(line.split("=", 1) for line in lines(folder / "asked"))
    assert asked == (site.asks | {"ACCOUNT": "proj7"} if site.asks else {})
    assert {f"load {site.modules}"} == set(lines(folder / "modules")) or not site.modules
    [started] = lines(folder / "ranks")
    if job == "supervised":
        places = ON_HOSTS.get(name, ON_HOSTS["slurm"])
        command = f"{site.launcher} {places} python -m {program}"
        assert started == f"python -m hpcgnn.supervise --ranks 8 -- {command}"
        template = Template.of(command.split(), num_hosts=2)
        filled = " ".join(template.command(LaunchShape(["n2"], 4, 4)))
        assert re.search(r"(-w|--hosts) n2 (-N 1 )?-n 4 python -m hpcgnn.train", filled)
    else:
        assert started == f"{site.launcher} -n 8 python -m {program}"
    found = dict(line.split("=", 1) for line in lines(folder / "settings") if "=" in line)
    assert found.items() >= site.network.items()
    assert found["OMP_NUM_THREADS"] == ("12" if name == "fugaku" else "7")
    if site.asks:
        assert (found["SRUN_CPUS_PER_TASK"], found["SLURM_EXPORT_ENV"]) == ("7", "ALL")


FAULT = "ended by a fault of a machine"
SILENT = """
echo "$*" >>questions
(($(wc -l <questions) % 2 == 0)) || exit 1
echo JobId=7 ArrayJobId=5 ArrayTaskId=3 Requeue=1 JobState=RUNNING
"""


def test_a_job_is_requeued_once_the_controller_answers(folder: Path) -> None:
    for name, code in (("srun", "exit 75"), ("sleep", ""), ("scontrol", SILENT)):
        command = folder / "venv" / "bin" / name
        command.write_text(f"#!/bin/bash\n{code}\n")
        command.chmod(0o755)
    done = submit(folder, "lumi", f"{SLURM} jobs/train.sbatch my.toml")
    assert done.returncode == 0, done.stderr
    asked, requeued = "--oneliner show job 7", "requeue 5_3"
    assert lines(folder / "questions") == [asked, asked, requeued, requeued]


@pytest.mark.parametrize(("fault", "again"), [("stopped with a checkpoint", True), (FAULT, False)])
def test_ten_faults_are_too_many_but_not_ten_restarts(
    folder: Path, fault: str, again: bool
) -> None:
    for name, code in (("srun", "exit 76"), ("scontrol", SILENT)):
        (folder / "venv" / "bin" / name).write_text(f"#!/bin/bash\n{code}\n")
    script = "exec 2>>log; exec sbatch jobs/train.sbatch my.toml"
    (folder / "questions").write_text("\n")
    for name in ("scontrol", "srun"):
        (folder / "venv" / "bin" / name).chmod(0o755)
    earlier = f"hpcgnn: {fault}: requeueing job 7\n" * 10
    (folder / "log").write_text(f"hpcgnn: start 1 on n[1-2], x\n{earlier}")
    done = submit(folder, "lumi", script, SLURM_RESTART_COUNT="10")
    assert done.returncode == (0 if again else 76), (folder / "log").read_text()


@pytest.mark.parametrize("name", [name for name, site in TABLE.items() if site.gpu])
def test_gpus(folder: Path, name: str) -> None:
    site = TABLE[name]
    done = submit(folder, name, f"{site.submit} jobs/train.sbatch my.toml", HPCGNN_GPU="1")
    assert done.returncode == 0, done.stderr
    asked = dict(line.split("=", 1) for line in lines(folder / "asked"))
    assert asked == {**(site.gpu or {}), "ACCOUNT": "proj7"}


def test_every_site_says_where_it_is_from_and_has_a_page() -> None:
    page = (ROOT / "docs" / "sites.md").read_text()
    assert {path.stem for path in SITES.glob("*.env")} == TABLE.keys()
    for path in SITES.glob("*.env"):
        second = path.read_text().splitlines()[1]
        assert re.search(r": compared with .*\).*; not run there\.$", second), path
        assert "Not confirmed: " in path.read_text(), path
        assert f"jobs/sites/{path.name}" in page


def test_a_project_is_asked_for() -> None:
    for path in SITES.glob("*.env"):
        done = subprocess.run(["bash", path], env={}, capture_output=True, text=True)
        assert "HPCGNN_PROJECT: set HPCGNN_PROJECT to your " in done.stderr


@pytest.mark.parametrize("args", ["", "runs/all"])
def test_an_array_of_seeds_needs_a_folder_and_a_configuration(folder: Path, args: str) -> None:
    done = submit(folder, "aurora", "qsub jobs/seeds.pbs", ARGS=args)
    assert (done.returncode, lines(folder / "ranks")) == (2, [])
    assert 'ARGS="DIR CONFIG.toml [KEY=VALUE ...]" qsub -J 1-5' in done.stderr
