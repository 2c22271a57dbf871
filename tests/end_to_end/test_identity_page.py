"""docs/identity.md, done as it says: a project with a list of tokens, who is let in, and who is no more."""

import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from served import ROOT, served
from terminals import block, blocks, typed

PAGE = "docs/identity.md"
ADDRESS = "http://127.0.0.1:8180"
LISTED, SIGNED, OPEN = blocks(PAGE, "yaml")


def project(folder: Path) -> Path:
    """Made by the page's own lines, beside a clone."""
    clone = folder / "clone"
    clone.mkdir()
    typed(block(PAGE, "sh", "gateway init"), folder=clone)
    return folder / "crew"


def tokens(lines: list[str]) -> dict[str, str]:
    """What stands for the page's names of tokens and digests."""
    assert lines == ["gateway token new"] * 2
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        token, digest = re.findall(r"^(?:token|sha256) +(\S+)$", typed(line), re.MULTILINE)
        found |= {f"TOKEN{number}": token, f"DIGEST{number}": digest}
    return found


def filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def test_list_of_tokens_lets_in_and_refuses_as_the_page_says(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    crew = project(tmp_path)
    (crew / "configs" / "callers.yaml").write_text(LISTED, encoding="utf-8")
    *making, checking, serving = block(PAGE, "sh", "gateway token new").splitlines()
    names = tokens(making)
    digests = dict(each.split("=") for each in filled(serving, names).split()[:2])
    assert serving.endswith("gateway serve --environment tokens --port 8180 --admin-port 8181")

    checked = typed(checking.replace("check", "check --strict"), folder=crew)
    with served(crew, crew, env=digests, options=("--environment", "tokens")) as gateway:
        asking = filled(block(PAGE, "sh", "token revoke"), names).replace(ADDRESS, gateway.url)
        answered = typed(asking, folder=crew, env={"GATEWAY_DATA_DIR": str(crew)})

    assert "no problems" in checked
    assert answered.replace("\r", "") == filled(block(PAGE, "text", "HTTP/1.1 401"), names)


@pytest.mark.parametrize("document", [LISTED, SIGNED, OPEN], ids=["token", "jwt", "none"])
def test_documents_of_the_page_pass_the_check(document: str, tmp_path: Path) -> None:
    crew = project(tmp_path)
    (crew / "configs" / "more.yaml").write_text(document, encoding="utf-8")

    assert "no problems" in typed("gateway check --strict", folder=crew)


def test_issuer_is_found_from_the_challenge_as_the_page_shows(tmp_path: Path) -> None:
    crew = project(tmp_path)
    keys = "http://127.0.0.1:1/keys.json"  # nobody answers: an issuer may be out when a gateway starts
    provider = SIGNED.replace("https://login.example.com/.well-known/jwks.json", keys)
    overlay = LISTED.partition("---\n")[2].replace("[callers]", "[people]")
    (crew / "configs" / "people.yaml").write_text(f"{provider}---\n{overlay}", encoding="utf-8")
    challenge, metadata = re.findall(r"^  (www-authenticate: .*|\{\"resource.*)$", page(), re.MULTILINE)

    with served(crew, crew, options=("--environment", "tokens")) as gateway:
        refused = asked(f"{gateway.url}/starter/mcp")
        where = f"{gateway.url}/.well-known/oauth-protected-resource/starter/mcp"
        with urllib.request.urlopen(where, timeout=60) as answer:
            found = answer.read()

    assert refused == challenge.partition(": ")[2].replace(ADDRESS, gateway.url)
    assert found.decode() == metadata.replace(ADDRESS, gateway.url)


def page() -> str:
    return (ROOT / PAGE).read_text(encoding="utf-8")


def asked(url: str) -> str | None:
    """The challenge of a request without a token."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, data=b"{}"), timeout=60)
    except urllib.error.HTTPError as error:
        return error.headers["www-authenticate"]
    return None
