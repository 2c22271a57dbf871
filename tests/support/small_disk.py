"""A small disk in memory that fills quickly. Tests that may not mount one are skipped."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Fill the disk to the last page, so that no file can grow."""
        with (self.folder / "ballast").open("ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                self._grow(file.fileno(), size)

    def make_room(self) -> None:
        (self.folder / "ballast").unlink()

    @staticmethod
    def _grow(file: int, size: int) -> None:
        try:
            while True:
                os.posix_fallocate(file, os.fstat(file).st_size, size)
        except OSError:  # the disk is full
            return


@contextmanager
def mount_small_disk(megabytes: int) -> Iterator[SmallDisk]:
    folder = Path(mkdtemp(prefix="gateway-disk-"))
    try:
        _mount(folder, megabytes)
        try:
            yield SmallDisk(folder)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        folder.rmdir()


def _mount(folder: Path, megabytes: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"no disk can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
