"""Databases that are set up already: each test process sets one up, and the others are copies of it."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gateway.storage.sql.sqlite.database_setup import open_database_file

USUAL_PATH: Final = "${GATEWAY_DATA_DIR:-data}/gateway.db"
"""Where projects of tests say that their database is."""


def prepare_data_folder(folder: Path, project: Path) -> None:
    """Put one into the folder that a project finds as GATEWAY_DATA_DIR, if that is where it looks for its own."""
    documents = project.rglob("*.yaml") if project.is_dir() and not folder.is_file() else ()
    if any(USUAL_PATH in each.read_text(encoding="utf-8") for each in documents):
        put_ready_database(folder / "gateway.db")


def put_ready_database(path: Path) -> Path:
    """Put one where a test wants it, unless there is one; its path."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(_ready())
    return path


@cache
def _ready() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ready.db"
        open_database_file(path).release()
        return path.read_bytes()
