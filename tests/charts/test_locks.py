"""The build inputs of the image: exactly the pins of requirements.lock for running and building, and nothing else."""

import re
import tomllib
from typing import Final

import pytest

from tests.support.paths import ROOT

CONTAINERFILE: Final = (ROOT / "Containerfile").read_text(encoding="utf-8")
PARTS: Final = ("requirements-runtime.lock", "requirements-build.lock")


def pins(name: str) -> dict[str, set[str]]:
    """Return version and markers of each package, with its allowed hashes."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        pinned, *hashes = re.split(r"\s+--hash=", line)
        found[pinned] = set(hashes)
    return found


def names(name: str) -> set[str]:
    return {pinned.partition("==")[0] for pinned in pins(name)}


@pytest.mark.parametrize("part", PARTS)
def test_every_pin_of_the_image_is_one_of_the_lock_file(part: str) -> None:
    whole = {pinned.partition(" ;")[0]: hashes for pinned, hashes in pins("requirements.lock").items()}

    for pinned, hashes in pins(part).items():
        assert hashes, pinned
        assert whole.get(pinned.partition(" ;")[0]) == hashes, f"{pinned} is not what requirements.lock has: make lock"


def test_image_has_every_dependency_and_no_tool_of_developers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    declared = [*project["dependencies"], *extras]

    assert {re.split(r"[\[<>=!~ ]", each, maxsplit=1)[0] for each in declared} <= names("requirements-runtime.lock")
    assert not {"pytest", "mypy", "ruff", "hypothesis", "hatchling", "uv", "fastmcp"} & names(
        "requirements-runtime.lock"
    )


def test_containerfile_pins_its_base_and_hands_over_nothing_but_what_runs() -> None:
    first, last = re.split(r"^FROM .*$", CONTAINERFILE, flags=re.MULTILINE)[1:]
    froms = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)

    assert set(froms) == {"${BASE_IMAGE}"}
    assert re.search(r"^ARG BASE_IMAGE=\S+@sha256:[0-9a-f]{64}$", CONTAINERFILE, re.MULTILINE)
    assert first.count("--no-deps --require-hashes --only-binary :all:") == 2
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["10001:10001"]
    assert all("--from=build" in line for line in re.findall(r"^COPY .*$", last, re.MULTILINE))
    assert 'ENTRYPOINT ["gateway"]\nCMD ["serve"]' in last
    assert "HEALTHCHECK" in last


def test_context_of_the_image_is_a_list_of_what_is_let_in() -> None:
    lines = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]

    assert rules[0] == "*"
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE) for word in line.split()
    }
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == copied
