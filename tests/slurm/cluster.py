"""Commands for the Slurm that cluster.sh starts."""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("cluster.sh")

SITE = """
export MPIEXEC="srun --mpi=pmix --kill-on-bad-exit=0"
export HPCGNN_MPI=wheel HPCGNN_VENV="{venv}"
export OMPI_MCA_pml=ob1 OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_mpi_yield_when_idle=1
unset TMPDIR
"""


class Cluster:
    """Commands for a running Slurm; jobs write their output into `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._site = directory / "site.env"
        self._site.write_text(SITE.format(venv=sys.prefix))

    def run(self, *command: object, timeout_s: float = 60) -> str:
        words = ["bash", SCRIPT, "run", self.directory, "env", f"HPCGNN_SITE={self._site}"]
        done = subprocess.run(
            [str(word) for word in (*words, *command)],
            capture_output=True,
            check=False,
            text=True,
            timeout=timeout_s,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, template: str, *arguments: object, options: tuple[str, ...] = ()) -> str:
        """Return the number of a new job."""
        output = f"--output={self.directory}/job-%j.out"
        script = f"jobs/{template}"
        return self.run("sbatch", "--parsable", output, *options, script, *arguments).strip()

    def log(self, job: str) -> str:
        path = self.directory / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def facts(self, job: str) -> dict[str, str]:
        """Return Slurm's properties of a job, such as JobState and Restarts."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, *states: str, timeout_s: float = 240) -> None:
        """Wait until the job is in one of `states`; fail if it ends in another one."""
        deadline = time.monotonic() + timeout_s
        while (now := self.facts(job)["JobState"]) not in states:
            assert now not in {"FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}, self.log(job)
            assert time.monotonic() < deadline, f"job {job} is {now}, not {states}"
            time.sleep(0.3)

    def wait_until_gone(self, job: str) -> None:
        deadline = time.monotonic() + 120
        while job in self.run("squeue", "--noheader", "--format=%i").split():
            assert time.monotonic() < deadline, self.log(job)
            time.sleep(0.3)
