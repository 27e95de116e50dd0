"""Checkpoints in the memory of two hosts: the host of rank 0 and a partner.

Files below ``run.partner_dir`` of a host (``/dev/shm`` is its memory) outlive the ranks but not the
host, so losing one host loses one copy. A restart writes the newest complete copy that its hosts
hold to disk, and resumes from it as from any other checkpoint.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Self, TypeAlias

from hpcgnn.comm import ProcessGrid, agree, bcast, recv_any, send_any
from hpcgnn.config.config import Config
from hpcgnn.console import number, report, warn
from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.spmd import collective
from hpcgnn.train.run.checkpoint import (
    Checkpoint,
    checkpoint_paths,
    read_checkpoint,
    write_checkpoint,
)
from hpcgnn.train.run.directory import RunDirectory, newest_checkpoint

Age: TypeAlias = tuple[int, int]
"""The position of a seed in ``train.seeds``, and the epochs done."""

_NONE: Age = (-1, -1)


class MemoryCheckpoints:
    """A run's checkpoints in the memory of hosts.

    Only the first rank of each host reads its folder, see `find_folder`.
    """

    def __init__(self, grid: ProcessGrid, config: Config, directory: RunDirectory) -> None:
        self._grid, self._config, self._directory = grid, config, directory
        self._hosts = grid.host_names
        self._folder: Path | None = None
        self._partner = next(
            (rank for rank, host in enumerate(self._hosts) if host != self._hosts[0]), 0
        )

    @collective
    def find_folder(self) -> None:
        """Derive the folder's name from the run's first session, so that it is unique to the run.

        There is no folder before that session is written.
        """
        grid, directory = self._grid, self._directory
        name: str | None = None
        with agree(grid.world):
            if grid.rank == 0 and (sessions := directory.read_sessions()):
                key = f"{directory.path.absolute()} {sessions[0]['started']}"
                name = f"hpcgnn-{os.getuid()}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        name = bcast(grid.world, name)
        self._folder = None if name is None else Path(self._config.run.partner_dir, name)

    @collective
    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the copies by a new checkpoint, which is complete on rank 0.

        Raises `CollectiveInputError` if a host's memory has no room for it.
        """
        comm, rank, copy = self._grid.world, self._grid.rank, None
        with agree(comm):
            if rank == 0:
                # Read it back to send CPU tensors.
                copy = read_checkpoint(self._write(checkpoint))
        if self._partner == 0:
            return
        if rank == 0:
            send_any(comm, copy, self._partner)
        received = recv_any(comm, 0) if rank == self._partner else None
        with agree(comm):
            if received is not None:
                self._write(received)

    def _write(self, checkpoint: Checkpoint) -> Path:
        assert self._folder is not None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.lstat().st_uid != os.getuid():
                raise PermissionError(1, "belongs to another user")
        except OSError as error:
            raise InputError(
                f"run.partner_dir {self._folder}: {error.strerror}; choose another"
            ) from error
        path = write_checkpoint(self._folder, checkpoint)
        for *_, older in checkpoint_paths(self._folder):
            if older != path:
                shutil.rmtree(older)
        return path

    @collective
    def bring_back(self) -> Self:
        """Write the newest copy of all hosts to disk, if it is newer than the one there.

        Returns itself.

        Raises `CollectiveInputError` if it cannot be written.
        """
        self.find_folder()
        comm, rank = self._grid.world, self._grid.rank
        if self._folder is None or self._config.run.resume == "never":
            self.drop()
            return self
        held: tuple[Age, Checkpoint | None] = (_NONE, None)
        on_disk = _NONE
        with agree(comm):
            if self._hosts.index(self._grid.host) == rank:
                held = self._newest_whole(self._folder)
            if rank == 0:
                newest = newest_checkpoint(self._config, self._directory.checkpoints)
                on_disk = _NONE if newest is None else newest[:2]
        ages = comm.allgather(held[0])
        holder = max(range(comm.size), key=ages.__getitem__)
        if ages[holder] <= bcast(comm, on_disk):
            if rank == 0:
                hosts = number(len(set(self._hosts)), "host")
                report(f"no checkpoint in the memory of {hosts} is newer than that on disk")
            return self
        copy = held[1] if rank == holder else None
        if holder != 0 and rank == holder:
            send_any(comm, copy, 0)
        elif holder != 0 and rank == 0:
            copy = recv_any(comm, holder)
        with agree(comm):
            if rank == 0:
                assert copy is not None
                path = write_checkpoint(self._directory.checkpoints, copy)
                report(f"{path.name} was restored from the memory of {self._hosts[holder]}")
        return self

    def _newest_whole(self, folder: Path) -> tuple[Age, Checkpoint | None]:
        while (newest := newest_checkpoint(self._config, folder)) is not None:
            position, epoch, path = newest
            try:
                return (position, epoch), read_checkpoint(path)
            except StorageFormatError as error:
                warn(f"a damaged copy in memory is ignored: {error}")
                shutil.rmtree(path)
        return _NONE, None

    def drop(self) -> None:
        """Remove the copy in the memory of this host."""
        if self._folder is not None and self._hosts.index(self._grid.host) == self._grid.rank:
            shutil.rmtree(self._folder, ignore_errors=True)
