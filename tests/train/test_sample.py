from hpcgnn.train.config_file import load_config
from hpcgnn.train.sample import RANGES, sample_overrides

NEEDED = ["graph.store=g.h5", "run.dir=d", "train.task=programs"]


def test_drawn_settings_are_valid_lie_in_range_and_follow_the_seed() -> None:
    seen: dict[str, set[object]] = {key: set() for key in RANGES}
    for seed in range(60):
        assert sample_overrides(seed) == sample_overrides(seed)
        config = load_config(None, [*NEEDED, *sample_overrides(seed)])
        for key, values in RANGES.items():
            section, name = key.split(".")
            value = getattr(getattr(config, section), name)
            assert value in values
            seen[key].add(value)
    assert all(seen[key] == set(values) for key, values in RANGES.items())
