"""Joules: from the counters of processors, and from core seconds if none can be read."""

import time
from pathlib import Path

import pytest

from hpcgnn.trace import energy
from hpcgnn.trace.energy import Counters, Meter, energy_line, energy_of, open_meter

RANGE = 262_143_328_850


def host(folder: Path, *packages: int) -> list[Path]:
    """Write counters of packages, of parts of packages, and repeated ones."""
    names = {f"intel-rapl:{number}": (f"package-{number}", packages[number]) for number in (0, 1)}
    names |= {"intel-rapl:0:0": ("core", 7), "intel-rapl:2": ("psys", 7)}
    names |= {"intel-rapl-mmio:0": ("package-0", 7)}
    for zone, (name, used) in names.items():
        values = {"name": name, "energy_uj": used, "max_energy_range_uj": RANGE}
        (folder / zone).mkdir()
        for file, value in values.items():
            (folder / zone / file).write_text(f"{value}\n", encoding="ascii")
    return [folder / f"intel-rapl:{number}" / "energy_uj" for number in (0, 1)]


def test_packages_add_up_since_the_start_and_go_round(tmp_path: Path) -> None:
    first, second = host(tmp_path, 5_000_000, RANGE - 1_000_000)
    counters = Counters(tmp_path)
    assert counters.joules() == 0
    first.write_text("7500000\n", encoding="ascii")
    assert counters.joules() == pytest.approx(2.5)
    second.write_text("3000000\n", encoding="ascii")
    assert counters.joules() == pytest.approx(2.5 + 4.0)
    second.write_text("2000000\n", encoding="ascii")
    assert counters.joules() == pytest.approx(2.5 + 4.0 + RANGE * 1e-6 - 1)


def test_a_round_that_nobody_asks_in_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "_EVERY_S", 1e-3)
    first, _ = host(tmp_path, 1_000_000, 0)
    with Counters(tmp_path).watched() as counters:
        # Two thirds of the counter's range three times, which is twice the range.
        for place in (2, 1, 0):
            first.with_suffix(".new").write_text(str(1_000_000 + place * RANGE // 3))
            first.with_suffix(".new").replace(first)
            limit = time.monotonic() + 60
            while counters._last[first] != 1_000_000 + place * RANGE // 3:
                assert time.monotonic() < limit
                time.sleep(1e-3)
    assert counters.joules() == pytest.approx(2 * RANGE * 1e-6)


@pytest.mark.parametrize("watts", [0.0, 3.5])
def test_the_first_rank_of_a_host_reads_it_and_all_hosts_must(tmp_path: Path, watts: float) -> None:
    first, _ = host(tmp_path, 0, 0)
    used = []
    for is_first in (True, False):
        first.write_text("0", encoding="ascii")
        with open_meter(lambda own: [True, own], is_first, watts, tmp_path) as meter:
            first.write_text("9000000", encoding="ascii")
            used.append((meter.source, meter.joules()))
    assert used == [("powercap", pytest.approx(9.0)), ("powercap", 0.0)]
    # Only this host or the other one has counters.
    with open_meter(lambda own: [own], True, watts, tmp_path / "none") as meter:
        assert meter.source == ("core seconds at 3.5 W" if watts else "")
    with open_meter(lambda own: [False, own], False, watts, tmp_path) as meter:
        busy = time.process_time() + 0.02
        while time.process_time() < busy:
            pass
        assert meter.source == ("core seconds at 3.5 W" if watts else "")
        assert meter.joules() >= 0.02 * watts
        assert (meter.joules() > 0) == (watts > 0)


@pytest.mark.parametrize("zones", [(), ("intel-rapl:0:0",)])
def test_no_counters(tmp_path: Path, zones: tuple[str, ...]) -> None:
    for zone in zones:
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text("dram\n", encoding="ascii")
    with pytest.raises(FileNotFoundError, match="no energy counters of processors"):
        Counters(tmp_path)
    with open_meter(lambda own: [own], True, 0.0, tmp_path) as meter:
        assert meter == Meter()


def test_what_a_run_says() -> None:
    hosts = [{"cores": 24, "host_cores": 64}, {"cores": 8, "host_cores": 64}]
    ranks = [{"energy": {"source": "powercap", "joules": joules}} for joules in (1200.0, 0.0, 34.0)]
    found = energy_of(ranks, hosts)
    assert found == {"source": "powercap", "joules": 1234.0, "core_share": 0.25}
    assert energy_line(found, 12.34) == (
        "energy 1,234 J, 12.3 J an epoch, by powercap: whole processors, 25% of whose cores are "
        "this run's"
    )
    given = {**found, "source": "core seconds at 5 W"}
    assert energy_line(given, 0.5) == "energy 1,234 J, 0.5 J an epoch, by core seconds at 5 W"
    assert energy_of([{"energy": {"source": "", "joules": 0.0}}], hosts) is None
