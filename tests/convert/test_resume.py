from pathlib import Path

import pytest

from hpcgnn.comm import ONE_PROCESS
from hpcgnn.convert.resume import SavedConversion
from hpcgnn.errors import InputError


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"key": 3, "generation": 1}', '{"key": {}}'])
def test_a_damaged_manifest_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=r"cannot be used .*; remove it to begin anew"):
        SavedConversion(tmp_path, ONE_PROCESS, {"format": "edge-list"})


def test_what_was_saved_is_found_by_the_same_conversion_alone(tmp_path: Path) -> None:
    with SavedConversion(tmp_path, ONE_PROCESS, {"format": "edge-list"}) as kept:
        assert kept.state() is None
        kept.save({"end": 7})
    with SavedConversion(tmp_path, ONE_PROCESS, {"format": "edge-list"}) as kept:
        assert kept.state() == {"end": 7}
    with pytest.raises(InputError, match="with other format; give the same"):
        SavedConversion(tmp_path, ONE_PROCESS, {"format": "triples"})


def test_two_conversions_cannot_share_the_folder(tmp_path: Path) -> None:
    with SavedConversion(tmp_path, ONE_PROCESS, {"format": "edge-list"}):
        for _ in range(2):
            with pytest.raises(InputError, match="another conversion uses it; wait for it"):
                SavedConversion(tmp_path, ONE_PROCESS, {"format": "edge-list"})
    with SavedConversion(tmp_path, ONE_PROCESS, {"format": "edge-list"}):
        pass
