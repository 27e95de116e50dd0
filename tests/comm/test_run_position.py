"""What blocks change of a position is as before at their end, inside of each other too."""

from contextlib import AbstractContextManager, nullcontext

import pytest

from hpcgnn.comm.run_position import Instant, RunPosition


def state(run_position: RunPosition) -> tuple[Instant, bool, int, int]:
    return (
        run_position.now,
        run_position.counts_terms,
        run_position.sum_bits,
        run_position.sum_bytes,
    )


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", ["backward", "unpacked", "counting", "before_epochs", "summing"])
def test_a_block_in_itself_ends_as_it_began(name: str, fails: bool) -> None:
    run_position = RunPosition()
    run_position.begin(3, 7)

    def block(bits: int) -> AbstractContextManager[None]:
        return run_position.summing(bits, 4) if name == "summing" else getattr(run_position, name)()

    before = state(run_position)
    with block(8):
        inside = state(run_position)
        assert inside != before
        with pytest.raises(KeyError) if fails else nullcontext(), block(16):
            if fails:
                raise KeyError
        assert state(run_position) == inside
    assert state(run_position) == before
