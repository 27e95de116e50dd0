"""Rollouts: names that need escapes, and two files that appear in order."""

from pathlib import Path
from xml.etree import ElementTree as ET

import h5py
import numpy as np
import pytest

from hpcgnn.errors import InputError
from hpcgnn.storage import FieldInfo, Rollout, RolloutFile
from tests.support.full_disk import unsynced


def test_a_field_with_a_slash_in_its_name_is_shown_and_read(tmp_path: Path) -> None:
    info = FieldInfo("u/v", 1, np.dtype(np.float32))
    rows = np.arange(3, dtype=np.float32)[:, None]
    with RolloutFile(tmp_path / "out.xdmf", [info], np.zeros(1), (3, 0), {}) as file:
        file.write_nodes([(np.arange(3), np.zeros((3, 2)))])
        file.write_step(0, [(rows,)])
    root = ET.parse(tmp_path / "out.xdmf").getroot()
    (item,) = root.findall(".//Attribute[@Name='u/v']/DataItem")
    with h5py.File(tmp_path / "out.h5") as written:
        np.testing.assert_array_equal(written[item.text.partition(":")[2]], rows)
    with Rollout(tmp_path / "out.h5") as rollout:
        assert rollout.names == ("u/v",)
        assert rollout.columns("u/v") == [""]
        np.testing.assert_array_equal(rollout.read("u/v", 0), rows)


def test_no_description_appears_without_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = FieldInfo("u", 1, np.dtype(np.float32))
    file = RolloutFile(tmp_path / "out.xdmf", [info], np.zeros(1), (3, 0), {})
    unsynced(monkeypatch, tmp_path / "out.h5")
    with pytest.raises(InputError, match=r"out\.h5: cannot be written"), file:
        file.write_nodes([(np.arange(3), np.zeros((3, 2)))])
    assert list(tmp_path.iterdir()) == []
