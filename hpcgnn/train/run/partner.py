"""Checkpoints in the memory of two hosts: that of rank 0 and a partner's.

Files below ``run.partner_dir`` of a host (``/dev/shm``: its memory) outlive the ranks but not the
host, so that one lost host takes one copy. A start brings the newest whole copy that its hosts hold
to the disk, where the run goes on from it as from any other.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Self, TypeAlias

from hpcgnn.comm import ProcessGrid, agree, bcast
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
"""The place of a seed in ``train.seeds``, and the epochs done."""

_NONE: Age = (-1, -1)


class PartnerMemory:
    """Where a run keeps checkpoints in memory.

    Only the first rank of each host touches its folder, see `find_folder`.
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
        """Take the folder that the run's first session names, so that no other run finds it.

        There is none before that session is written.
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
        """Keep a checkpoint, whole on rank 0, in place of the one before.

        Raises `CollectiveInputError` where a host's memory does not take it.
        """
        comm, rank, copy = self._grid.world, self._grid.rank, None
        with agree(comm):
            if rank == 0:
                # As it was written: on the CPU.
                copy = read_checkpoint(self._write(checkpoint))
        if self._partner == 0:
            return
        if rank == 0:
            comm.send(copy, self._partner)
        received = comm.recv(source=0) if rank == self._partner else None
        with agree(comm):
            if received is not None:
                self._write(received)

    def _write(self, checkpoint: Checkpoint) -> Path:
        assert self._folder is not None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.lstat().st_uid != os.getuid():
                raise PermissionError(1, "belongs to somebody else")
        except OSError as error:
            raise InputError(
                f"run.partner_dir {self._folder}: {error.strerror}; choose another"
            ) from error
        path = write_checkpoint(self._folder, checkpoint)
        for *_, other in checkpoint_paths(self._folder):
            if other != path:
                shutil.rmtree(other)
        return path

    @collective
    def bring_back(self) -> Self:
        """Write the newest copy of all hosts to the disk, if it is newer than what is there.

        Returns itself.

        Raises `CollectiveInputError` where the disk does not take it.
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
                report(f"no newer checkpoint in the memory of {hosts} than on the disk")
            return self
        copy = held[1] if rank == holder else None
        if holder != 0 and rank == holder:
            comm.send(copy, 0)
        elif holder != 0 and rank == 0:
            copy = comm.recv(source=holder)
        with agree(comm):
            if rank == 0:
                assert copy is not None
                path = write_checkpoint(self._directory.checkpoints, copy)
                report(f"{path.name} comes from the memory of {self._hosts[holder]}")
        return self

    def _newest_whole(self, folder: Path) -> tuple[Age, Checkpoint | None]:
        while (newest := newest_checkpoint(self._config, folder)) is not None:
            position, epoch, path = newest
            try:
                return (position, epoch), read_checkpoint(path)
            except StorageFormatError as error:
                warn(f"a copy in memory is left out: {error}")
                shutil.rmtree(path)
        return _NONE, None

    def drop(self) -> None:
        """Give the memory of this host back."""
        if self._folder is not None and self._hosts.index(self._grid.host) == self._grid.rank:
            shutil.rmtree(self._folder, ignore_errors=True)
