"""What blocks change of a moment is as before at their end, inside of each other too."""

from contextlib import AbstractContextManager, nullcontext

import pytest

from hpcgnn.comm.moment import Instant, Moment


def state(moment: Moment) -> tuple[Instant, bool, int, int]:
    return moment.now, moment.counts_terms, moment.sum_bits, moment.sum_bytes


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", ["backward", "unpacked", "counting", "before_epochs", "summing"])
def test_a_block_in_itself_ends_as_it_began(name: str, fails: bool) -> None:
    moment = Moment()
    moment.begin(3, 7)

    def block(bits: int) -> AbstractContextManager[None]:
        return moment.summing(bits, 4) if name == "summing" else getattr(moment, name)()

    before = state(moment)
    with block(8):
        inside = state(moment)
        assert inside != before
        with pytest.raises(KeyError) if fails else nullcontext(), block(16):
            if fails:
                raise KeyError
        assert state(moment) == inside
    assert state(moment) == before
