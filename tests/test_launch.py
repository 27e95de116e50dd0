import pytest

from hpcgnn.errors import InputError
from hpcgnn.launch import check_world, is_first


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_lonely_process_of_several_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}=4.*alone.*--mpi"):
        check_world({name: "4"}, 1)


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 1),
        ({"SLURM_STEP_NUM_TASKS": "1"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "4"}, 4),
        # mpiexec -n 1 whose daemons srun started on four hosts.
        ({"SLURM_STEP_NUM_TASKS": "4", "OMPI_COMM_WORLD_SIZE": "1"}, 1),
        ({"SLURM_NTASKS": "4"}, 1),
    ],
)
def test_sane_worlds_pass(environment: dict[str, str], size: int) -> None:
    check_world(environment, size)


def test_one_of_several_lonely_processes_speaks() -> None:
    assert is_first({})
    assert is_first({"SLURM_PROCID": "0", "PMI_RANK": "0"})
    assert not is_first({"SLURM_PROCID": "3"})
