"""The memory that a job may use is the least of what its host and its control groups allow."""

from pathlib import Path

import pytest

from hpcgnn.doctor.host import look_around, memory_bytes

JOB = "system.slice/slurmstepd.scope/job_7/step_0"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({f"{JOB}/memory.max": "4096"}, 4096),
        ({f"{JOB}/memory.max": "max", "system.slice/memory.max": "8192"}, 8192),
        ({f"{JOB}/memory.max": "8192", "memory.max": "4096"}, 4096),
        ({"memory.max": "4096"}, 4096),
        ({"other/memory.max": "4096"}, None),
        ({f"memory/{JOB}/memory.limit_in_bytes": "4096"}, 4096),
        ({"memory/system.slice/memory.limit_in_bytes": "4096"}, 4096),
        ({"memory/memory.limit_in_bytes": "4096"}, 4096),
        ({f"memory/{JOB}/memory.limit_in_bytes": str((1 << 63) - 4096)}, None),
    ],
)
def test_each_control_group_around_the_job_counts(
    tmp_path: Path, limits: dict[str, str], expected: int | None
) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text(f"5:name=a:b:/x\n4:memory:/{JOB}\n2:cpu,cpuacct:/other\n0::/{JOB}\n")
    for name, text in limits.items():
        limit = tmp_path / "fs" / name
        limit.parent.mkdir(parents=True, exist_ok=True)
        limit.write_text(f"{text}\n")
    host = memory_bytes(tmp_path / "nowhere", tmp_path)
    assert memory_bytes(groups, tmp_path / "fs") == (host if expected is None else expected)


def test_this_process_is_in_groups_that_can_be_read() -> None:
    assert 0 < look_around().memory_bytes <= memory_bytes(Path("nowhere"))
