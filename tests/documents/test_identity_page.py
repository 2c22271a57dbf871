"""The steps in docs/identity.md work as written: a project with a list of tokens, admitted and revoked callers."""

import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.gateways.process import start_gateway_process
from tests.support.paths import ROOT
from tests.support.terminal import block, blocks, run_typed_line

PAGE = "docs/identity.md"
ADDRESS = "http://127.0.0.1:8180"
LISTED, SIGNED, OPEN = blocks(PAGE, "yaml")


def project(folder: Path) -> Path:
    """Create the project with the page's own lines, beside a clone."""
    clone = folder / "clone"
    clone.mkdir()
    run_typed_line(block(PAGE, "sh", "gateway init"), folder=clone)
    return folder / "crew"


def tokens(lines: list[str]) -> dict[str, str]:
    """Return values for the page's placeholders of tokens and digests."""
    assert lines == ["gateway token new"] * 2
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        token, digest = re.findall(r"^(?:token|sha256) +(\S+)$", run_typed_line(line), re.MULTILINE)
        found |= {f"TOKEN{number}": token, f"DIGEST{number}": digest}
    return found


def fill_in(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def test_list_of_tokens_lets_in_and_refuses_as_on_the_page(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    crew = project(tmp_path)
    (crew / "configs" / "callers.yaml").write_text(LISTED, encoding="utf-8")
    *making, checking, serving = block(PAGE, "sh", "gateway token new").splitlines()
    names = tokens(making)
    digests = dict(each.split("=") for each in fill_in(serving, names).split()[:2])
    assert serving.endswith("gateway serve --environment tokens --port 8180 --admin-port 8181")

    checked = run_typed_line(checking.replace("check", "check --strict"), folder=crew)
    with start_gateway_process(crew, crew, env=digests, options=("--environment", "tokens")) as gateway:
        asking = fill_in(block(PAGE, "sh", "token revoke"), names).replace(ADDRESS, gateway.url)
        answered = run_typed_line(asking, folder=crew, env={"GATEWAY_DATA_DIR": str(crew)})

    assert "no problems" in checked
    assert answered.replace("\r", "") == fill_in(block(PAGE, "text", "HTTP/1.1 401"), names)


@pytest.mark.parametrize("document", [LISTED, SIGNED, OPEN], ids=["token", "jwt", "none"])
def test_documents_of_the_page_pass_the_check(document: str, tmp_path: Path) -> None:
    crew = project(tmp_path)
    (crew / "configs" / "more.yaml").write_text(document, encoding="utf-8")

    assert "no problems" in run_typed_line("gateway check --strict", folder=crew)


def test_issuer_is_found_from_the_challenge_as_the_page_shows(tmp_path: Path) -> None:
    crew = project(tmp_path)
    keys = "http://127.0.0.1:1/keys.json"  # no issuer listens: it may be down when a gateway starts
    provider = SIGNED.replace("https://login.example.com/.well-known/jwks.json", keys)
    overlay = LISTED.partition("---\n")[2].replace("[callers]", "[people]")
    (crew / "configs" / "people.yaml").write_text(f"{provider}---\n{overlay}", encoding="utf-8")
    challenge, metadata = re.findall(r"^  (www-authenticate: .*|\{\"resource.*)$", page(), re.MULTILINE)

    with start_gateway_process(crew, crew, options=("--environment", "tokens")) as gateway:
        refused = read_challenge(f"{gateway.url}/starter/mcp")
        where = f"{gateway.url}/.well-known/oauth-protected-resource/starter/mcp"
        with urllib.request.urlopen(where, timeout=60) as answer:
            found = answer.read()

    assert refused == challenge.partition(": ")[2].replace(ADDRESS, gateway.url)
    assert found.decode() == metadata.replace(ADDRESS, gateway.url)


def page() -> str:
    return (ROOT / PAGE).read_text(encoding="utf-8")


def read_challenge(url: str) -> str | None:
    """Return the challenge to a request without a token."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, data=b"{}"), timeout=60)
    except urllib.error.HTTPError as error:
        return error.headers["www-authenticate"]
    return None
