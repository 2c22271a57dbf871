"""The files of a report: written beside each other, and read again to verify them."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.app import write_atomic
from gateway.cli.output import fail
from gateway.review import MOST_FILE, SIGNATURE_SUFFIX, SUFFIXES, InvalidReport

_ENDINGS: Final = (".oscal.json", ".json", ".html", SIGNATURE_SUFFIX)


def write_files(page: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files of a report, by their suffixes, beside the page."""
    for suffix, content in contents.items():
        path = page.with_name(f"{page.name.removesuffix('.html')}{suffix}")
        try:
            write_atomic(path, content)
            with suppress(OSError):
                path.chmod(0o644)
        except OSError as error:
            fail(f"{path} cannot be written ({error.strerror})", "name a folder that you may write to", code=1)


def report_stem(path: Path) -> Path:
    """Return the common part of the names of a report's files."""
    ending = next((each for each in _ENDINGS if path.name.endswith(each)), "")
    return path.with_name(path.name.removesuffix(ending))


def read_report_files(stem: Path) -> dict[str, bytes]:
    """Return the files of a report that exist, by their names."""
    found = {}
    for suffix in SUFFIXES:
        path = stem.with_name(f"{stem.name}{suffix}")
        with suppress(FileNotFoundError):
            found[path.name] = read_bounded_file(path, MOST_FILE)
    return found


def read_bounded_file(path: Path, most: int) -> bytes:
    """Read a file. Raises `InvalidReport` if it is too large or unreadable, and `FileNotFoundError`."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidReport(f"{path.name!r} cannot be read ({error.strerror})", help="check its permissions") from None
    if len(content) > most:
        raise InvalidReport(f"{path.name!r} is too large", help="a report is smaller")
    return content
