"""A supervisor over a launcher that the test scripts: its restarts, and its exit status."""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.supervise import attempt, command
from hpcgnn.supervise.hosts import count_slots, expand, find_allocation
from hpcgnn.supervise.template import Template

# A start takes and runs the first line of `plan`; a ping asks for a host not in `lost`. Unlike
# `mpiexec`, it may have no children.
LAUNCHER = """#!/bin/bash
cd "${BASH_SOURCE[0]%/*}"
if [[ $* == *" echo hpcgnn-answers" ]]; then
    ! grep -qx "$2" hung || sleep 60
    ! grep -qx "$2" slow || sleep 1
    ! grep -qx "$2" lost || { echo "no route to $2" >&2; exit 1; }
    echo hpcgnn-answers
    # It locks itself when its ranks have ended.
    sleep 60
fi
echo "$*" >>log
save() { mkdir -p "run/${2:-}checkpoints/seed1-epoch00000$1"; }
lose() { echo "$1" >>lost; }
finish() { mkdir -p run && touch run/summary.json; }
line=$(head -n 1 plan)
sed -i 1d plan
eval "$line"
"""
STAYS = "#!/bin/bash\nuntil [[ -e seen ]]; do sleep 0.01; done & wait; exec 9<>pipe; read -r <&9\n"
STALL = "echo 'rank 0 of 6 on node1 has made no progress for 8 s: in' >&2"
ALL, LAST_TWO = ("node1,node2,node3 -n 6", "node2,node3 -n 4")
CASES: dict[str, tuple[Sequence[str], Sequence[str], int, Sequence[str]]] = {
    # The action of each start, options, the exit status, hosts and ranks of each start.
    "it ends well": (["finish"], [], 0, [ALL]),
    "a host is lost": (["save 1; lose node1; exit 137", "finish"], [], 0, [ALL, LAST_TWO]),
    "two, one by one": (
        ["lose node3; kill -KILL $$", "lose node2; exit 1", "finish"],
        [],
        0,
        [ALL, "node1,node2 -n 4", "node1 -n 2"],
    ),
    "a host hangs": (["echo node1 >>hung; exit 76", "finish"], ["--ping=1"], 0, [ALL, LAST_TWO]),
    "a host is lost, and the launcher gives 0": (
        ["lose node1; exit 0", "finish"],
        [],
        0,
        [ALL, LAST_TWO],
    ),
    "a fault of a machine": (["exit 76", "finish"], [], 0, [ALL, ALL]),
    "a fault of the input": (["exit 2"], [], 2, [ALL]),
    "stopped with a checkpoint": (["exit 75"], [], 75, [ALL]),
    "no progress": (["exit 1", "exit 3"], ["--restarts", "1"], 3, [ALL, ALL]),
    "progress counts anew": (
        ["exit 1", "save 1; exit 1", "save 1; exit 1", "save 2; exit 1", "finish"],
        ["--restarts", "1"],
        0,
        [ALL] * 5,
    ),
    "progress of splits": (
        ["save 1 split-0/; exit 1", "save 1 split-1/; exit 1", "finish"],
        ["--restarts", "0"],
        0,
        [ALL] * 3,
    ),
    "a spare host": (
        ["lose node1; exit 1", "finish"],
        ["--ranks", "3"],
        0,
        ["node1,node2 -n 3", "node2,node3 -n 3"],
    ),
    "a launcher that stays": (
        ["mkfifo pipe; exec ./mpiexec", "finish"],
        [],
        0,
        [ALL, ALL],
    ),
    "a launcher behind a stall": (
        [f"{STALL}; sleep 60", "finish"],
        [],
        0,
        [ALL, ALL],
    ),
    "a launcher that waits for a lost host": (
        [f"lose node1; {STALL}; exec sleep 60", "finish"],
        ["--patience=50"],
        0,
        [ALL, LAST_TWO],
    ),
    "a launcher that waits for a host that hangs": (
        [f"echo node1 >>hung; {STALL}; exec sleep 60", "finish"],
        ["--patience=50", "--ping=1"],
        0,
        [ALL, LAST_TWO],
    ),
    "a host that is slow": (
        [f"echo node1 >>slow; {STALL}; exec sleep 60", "finish"],
        ["--patience=2", "--ping=30"],
        0,
        [ALL, ALL],
    ),
    # Its launcher ends while hosts are still being asked.
    "a slow host, and a launcher that does not wait": (
        [f"echo node1 >>slow; {STALL}; sleep 0.5; exit 76", "finish"],
        ["--ping=30"],
        0,
        [ALL, ALL],
    ),
    "a signal is passed on": (
        ["trap 'exit 75' USR1; kill -TERM $PPID; while :; do sleep 0.02; done"],
        [],
        75,
        [ALL],
    ),
    "a killed run after a signal": (
        ["trap 'exit 143' USR1; kill -TERM $PPID; while :; do sleep 0.02; done"],
        [],
        143,
        [ALL],
    ),
    # The previous rank 0 keeps the run directory locked for a while.
    "a late rank": (
        [
            "mkdir run; setsid flock run/.lock bash -c 'touch locked; sleep 0.4' &"
            " until [[ -e locked ]]; do sleep 0.01; done; exit 9",
            "flock -n run/.lock true && finish",
        ],
        [],
        0,
        [ALL, ALL],
    ),
}

Supervise = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervise:
    """Return a function that runs the command over a plan, and returns its status and starts."""
    launcher = tmp_path / "launch"
    for file, text in ((launcher, LAUNCHER), (tmp_path / "mpiexec", STAYS)):
        file.write_text(text)
        file.chmod(0o755)
    for name in ("log", "lost", "hung", "slow"):
        (tmp_path / name).touch()
    (tmp_path / "hosts").write_text("node1:2\nnode2 slots=2 # a socket\nnode3\nnode3\n")
    monkeypatch.setattr(attempt, "_POLL_S", 0.01)
    # This would end everything that this process has started.
    monkeypatch.setattr(command, "adopt_orphans", lambda: None)
    monkeypatch.setattr(command, "end_orphans", lambda: None)
    monkeypatch.setattr(attempt, "_LOOK_S", 0.05)
    descendants, answer = attempt.descendants, attempt._answer

    def see(root: int) -> dict[int, str]:
        if found := descendants(root):
            (tmp_path / "seen").touch()
        return found

    def ask(ping: Sequence[str], limit_s: float) -> str:
        hangs = ping[2] in (tmp_path / "hung").read_text().split()
        return answer(ping, limit_s if hangs else 100)

    # A host has time to answer, however busy this machine is.
    monkeypatch.setattr(attempt, "_answer", ask)
    monkeypatch.setattr(attempt, "descendants", see)

    def run(plan: Sequence[str], options: Sequence[str] = ()) -> tuple[int, list[str]]:
        (tmp_path / "plan").write_text("\n".join(plan) + "\n")
        program = ["hpcgnn", "train", f"run.dir={tmp_path}/run"]
        words = ["--hosts", str(tmp_path / "hosts"), "--patience=0.3", *options]
        words += ["--", str(launcher), "--host", "{hosts}", "-n", "{ranks}", *program]
        status = find_command("supervise").call(words)
        starts = (tmp_path / "log").read_text().splitlines()
        return status, [each.removeprefix("--host ").partition(" hpcgnn")[0] for each in starts]

    return run


@pytest.mark.parametrize("name", CASES)
def test_starts(supervise: Supervise, name: str) -> None:
    plan, options, status, starts = CASES[name]
    assert supervise(plan, options) == (status, list(starts))


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        (["lose node1; lose node2; lose node3; exit 1"], [], "no host answers .*launch --host no"),
        (["lose node1; exit 1"], ["--least", "5"], "2 hosts left, for 4 ranks: --least requires 5"),
    ],
)
def test_gives_up(
    supervise: Supervise, plan: Sequence[str], options: Sequence[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        supervise(plan, options)


def test_says_what_it_does(supervise: Supervise, capsys: pytest.CaptureFixture[str]) -> None:
    supervise(["echo from a rank >&2; save 1; lose node1; exit 137", "finish"])
    told = re.sub(r"after \d+ s", "after N s", capsys.readouterr().err)
    for each in (
        "supervise: start 1: 6 ranks on node1,node2,node3\n",
        "from a rank\n",
        "supervise: status 137 after N s, 1 new checkpoint\n",
        "supervise: node1 is left out: status 1: no route to node1\n",
        "supervise: start 2: 4 ranks on node2,node3\n",
    ):
        assert each in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["mpiexec", "-n", "{ranks}", "other"],
            "does not start hpcgnn; give the whole command after",
        ),
        (
            ["mpiexec", "-n", "{ranks}", "hpcgnn", "train"],
            "3 hosts, but no placeholder for them: give",
        ),
        (
            ["mpiexec", "--host", "{slots}", "-n", "{rank}", "hpcgnn"],
            r"^\{rank\} is no placeholder",
        ),
        (["mpiexec", "{hosts}", "hpcgnn", "run.resume=never"], "run.resume=never: each start"),
        (["mpiexec", "{hosts}", "hpcgnn", "my.toml"], "run.resume=never: each start"),
        (["no-such-launcher", "{hosts}", "python3.12", "-m"], "no-such-launcher: No such file"),
    ],
)
def test_faults_of_the_command(tmp_path: Path, words: Sequence[str], message: str) -> None:
    (tmp_path / "hosts").write_text("a\nb\nc\n")
    (tmp_path / "my.toml").write_text("run.resume = 'never'")
    words = [word.replace("my.toml", str(tmp_path / "my.toml")) for word in words]
    with pytest.raises(InputError, match=message):
        find_command("supervise").call(["--hosts", str(tmp_path / "hosts"), "--", *words])


def test_a_host_is_asked_by_one_rank() -> None:
    words = ["{slots}", "{hosts}", "{nodes}", "{ranks}", "{per_host}"]
    ping = Template.of([*words, "hpcgnn"], 3).ping("a")
    assert ping[:-2] == ["a:1", "a", "1", "1", "1"]


def test_hosts_of_batch_systems(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("x1.site\nx1.site\nx2.site\nx2.site\n")
    slurm = {"SLURM_JOB_NODELIST": "n[8-10],gpu[01,03]x[1-2],head"}
    names = ["n8", "n9", "n10", "gpu01x1", "gpu01x2", "gpu03x1", "gpu03x2", "head"]
    for environment, given, hosts, ranks in (
        (slurm, None, names, 1),
        ({**slurm, "SLURM_TASKS_PER_NODE": "4(x7),3"}, None, names, 3),
        ({**slurm, "SLURM_TASKS_PER_NODE": "8(x12),9"}, None, names, 8),
        (slurm, 7, names, 7),
        ({"PBS_NODEFILE": str(file)}, None, ["x1.site", "x2.site"], 2),
    ):
        found = find_allocation(None, given, environment)
        assert (list(found.hosts), found.ranks_per_host) == (hosts, ranks)
    assert len(find_allocation(None, None, {}).hosts) == 1
    assert list(expand("a")) == ["a"]
    assert count_slots(["a slots=4 max-slots=8", "b:2", "b", "# c", ""]) == {"a": 4, "b": 3}
    file.write_text("# none\n")
    with pytest.raises(InputError, match="names no host"):
        find_allocation(file, None, {})
    with pytest.raises(InputError, match="No such file"):
        find_allocation(tmp_path / "none", None, {})


def test_all_that_a_process_has_started_ends() -> None:
    script = "setsid sleep 60 & sleep 60 & bash -c 'trap : TERM; sleep 60; sleep 60' & echo; wait"
    words = ["bash", "-c", script]
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        family = attempt.descendants(process.pid)
        assert len(family) >= 3
        attempt.end(process)
        # The process at the other end of the pipe has ended.
        process.stdout.read()


def test_what_outlives_its_launcher_ends() -> None:
    script = """
import os, subprocess
from hpcgnn.supervise.attempt import adopt_orphans, descendants, end_orphans
adopt_orphans()
subprocess.run(["bash", "-c", "setsid bash -c 'sleep 60; :' & setsid sleep 60 &"], check=True)
assert len(descendants(os.getpid())) >= 2
end_orphans()
assert not descendants(os.getpid())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
