"""Files that are read whole: special files give an error of one line, without waiting."""

import os
from pathlib import Path

import pytest

from hpcgnn.errors import InputError
from hpcgnn.storage import read_whole, require_file


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_bytes(b"text")
    for name, fault in {
        "none": "no such file",
        "folder": "is a folder, not a file",
        "pipe": "is a pipe or a device, not a file",
        "device": "is a pipe or a device, not a file",
        "loop": "Too many levels of symbolic links",
        "x" * 300: "File name too long",
        "file/below": "no such file",
    }.items():
        for read in (require_file, read_whole):
            with pytest.raises(InputError, match=f"{fault}; give another"):
                read(tmp_path / name, "give another")


def test_as_many_bytes_as_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_whole(path, most=5) == b"12345"
    with pytest.raises(InputError, match="is larger than 0 MiB; check the path"):
        read_whole(path, most=4)
