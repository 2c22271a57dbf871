"""The pictures in docs/architecture.md match the code: arrows between packages, and the order of function calls."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    http_tool,
    start_gateway,
    tokens_of,
    write_project,
)
from tests.support.paths import ROOT
from tests.test_architecture import ARROWS

pytestmark = pytest.mark.anyio

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ANA = Person("ana", ("staff",))
ECHO = "tests.support.tools.echo_tools"
BESIDE = {"errors", "cli", "examples", "pytest_plugin", "__main__", "__init__"}


def picture(heading: str) -> str:
    section = PAGE.partition(f"## {heading}\n")[2]
    found = re.search(r"```mermaid\n(.*?)```", section, re.DOTALL)
    assert found, f"no picture below {heading!r}"
    return found[1]


def functions_of(heading: str) -> list[tuple[str, str]]:
    """Return the functions in a picture in the order of their arrows: qualified name and file."""
    found = re.findall(r'\["([\w.]+)<br/>([\w/]+\.py)"\]', picture(heading))
    assert len(found) > 5
    return found


@contextmanager
def record_functions() -> Iterator[list[tuple[str, str]]]:
    """Record the package's functions that run during the block, each when first entered."""
    entered: dict[tuple[str, str], None] = {}
    package = f"{ROOT / 'gateway'}/"

    def profile(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            entered.setdefault((code.co_qualname, code.co_filename.removeprefix(package)))

    order: list[tuple[str, str]] = []
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield order
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        order.extend(entered)


def test_picture_of_the_packages_has_the_arrows_of_the_code() -> None:
    arrows = {each: {to for to in allowed if to not in BESIDE | {"gateway"}} for each, allowed in ARROWS.items()}

    def reached(package: str) -> set[str]:
        return arrows[package].union(*(reached(each) for each in arrows[package]))

    needed = {
        (each, to)
        for each in arrows.keys() - BESIDE
        for to in arrows[each]
        if not any(to in reached(other) for other in arrows[each] - {to})
    }

    assert set(re.findall(r"(\w+) --> (\w+)", picture("Packages"))) == needed


async def test_call_takes_the_path_of_the_picture(tmp_path: Path) -> None:
    backend = {"type": "python", "entrypoint": f"{ECHO}:echo", "run": "loop"}
    documents = [*base_documents(["tokens"]), tokens_of([ANA]), http_tool("echo", 1, tier="community", backend=backend)]
    documents.append(catalogue("desk", ["role:staff"], ["*"]))
    write_project(tmp_path / "p", documents, policy="p, role:staff, *, tool:*, invoke, community, allow\n")
    async with start_gateway(tmp_path / "p", tmp_path / "data", people=[ANA], python_packages=(ECHO,)) as gateway:
        with record_functions() as entered:
            reply = await gateway.caller(ANA).rest_call("desk", "echo", {"text": "hi"})

    shown = functions_of("The path of a call")
    assert reply.status == 200
    assert [each for each in entered if each in shown] == shown


async def test_start_takes_the_path_of_the_picture(tmp_path: Path) -> None:
    write_project(tmp_path / "p", [*base_documents(["tokens"]), tokens_of([ANA])], policy="")
    with record_functions() as entered:
        async with start_gateway(tmp_path / "p", tmp_path / "data", people=[ANA]):
            pass

    shown = functions_of("From YAML to a served revision")
    assert [each for each in entered if each in shown] == shown
