import pytest

from hpcgnn.config.file import load_config
from hpcgnn.config.programs import (
    LARGE_BATCH,
    RANGES,
    sample_overrides,
)

NEEDED = ["graph.store=g.h5", "run.dir=d", "train.task=programs"]


@pytest.mark.parametrize("large_batch", [False, True])
def test_drawn_settings_are_valid_lie_in_range_and_follow_the_seed(large_batch: bool) -> None:
    ranges = {**RANGES, **(LARGE_BATCH if large_batch else {})}
    seen: dict[str, set[object]] = {key: set() for key in ranges}
    for seed in range(60):
        drawn = sample_overrides(seed, large_batch=large_batch)
        assert drawn == sample_overrides(seed, large_batch=large_batch)
        config = load_config(None, [*NEEDED, *drawn])
        for key, values in ranges.items():
            section, name = key.split(".")
            value = getattr(getattr(config, section), name)
            assert value in values
            seen[key].add(value)
    assert all(seen[key] == set(values) for key, values in ranges.items())
