"""Rollouts of fields whose names need escapes."""

from pathlib import Path
from xml.etree import ElementTree as ET

import h5py
import numpy as np

from hpcgnn.storage import FieldInfo, RolloutFile


def test_an_xdmf_shows_a_field_with_a_slash_in_its_name(tmp_path: Path) -> None:
    info = FieldInfo("u/v", 1, np.dtype(np.float32))
    rows = np.arange(3, dtype=np.float32)[:, None]
    with RolloutFile(tmp_path / "out.xdmf", [info], np.zeros(1), (3, 0), {}) as file:
        file.write_nodes([(np.arange(3), np.zeros((3, 2)))])
        file.write_step(0, [(rows,)])
    root = ET.parse(tmp_path / "out.xdmf").getroot()
    (item,) = root.findall(".//Attribute[@Name='u/v']/DataItem")
    with h5py.File(tmp_path / "out.h5") as written:
        np.testing.assert_array_equal(written[item.text.partition(":")[2]], rows)
