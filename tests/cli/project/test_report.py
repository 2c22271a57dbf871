"""`gateway report` and `gateway report verify`, run as a user runs them."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
DAY = ("--on", "2026-11-16")


def run(*args: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_gateway("report", *args, cwd=cwd, env={**os.environ, **environ})


def write_report(folder: Path, *args: str, project: Path = SMALL) -> Path:
    page = folder / "review.html"
    answer = run(str(project), *DAY, "--output", str(page), *args)
    assert answer.returncode == 0, answer.stderr
    return page


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private key and its public half."""
    assert run_gateway("bundle", "keygen", str(tmp_path / "review.key")).returncode == 0
    return tmp_path / "review.key", tmp_path / "review.key.pub"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "gateway.db"

    async def make() -> None:
        await (await open_sqlite_store(path)).close()

    asyncio.run(make())
    return path


def test_report_is_a_page_its_data_and_its_results(tmp_path: Path) -> None:
    page = write_report(tmp_path)

    assert sorted(each.name for each in tmp_path.iterdir()) == ["review.html", "review.json", "review.oscal.json"]
    data = json.loads((tmp_path / "review.json").read_bytes())
    assert data["format"] == "gateway-review/1"
    assert data["revision"]["day"] == "2026-11-16"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    copy = tmp_path / "another place"
    shutil.copytree(SMALL, copy)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()

    write_report(tmp_path / "one")
    write_report(tmp_path / "other", project=copy)

    for each in (tmp_path / "one").iterdir():
        assert each.read_bytes() == (tmp_path / "other" / each.name).read_bytes()


def test_day_comes_from_the_source_date(tmp_path: Path) -> None:
    answer = run(str(SMALL), "--output", "json", SOURCE_DATE_EPOCH="1794830400")

    assert json.loads(answer.stdout)["revision"]["day"] == "2026-11-16"


def test_source_date_that_is_no_number_is_wrong_use() -> None:
    answer = run(str(SMALL), SOURCE_DATE_EPOCH="yesterday")

    assert (answer.returncode, answer.stdout) == (2, "")
    assert "SOURCE_DATE_EPOCH is not a number of seconds: 'yesterday'" in answer.stderr


def test_data_is_printed_for_programs() -> None:
    answer = run(str(SMALL), *DAY, "--output", "json")

    assert answer.returncode == 0
    assert json.loads(answer.stdout)["summary"]["verdict"].endswith("low.")


def test_summary_is_printed_for_people() -> None:
    answer = run(str(SMALL), *DAY)

    assert answer.returncode == 0
    assert "high    Every caller is user:you" in answer.stdout


def test_project_with_errors_has_no_report(tmp_path: Path) -> None:
    shutil.copytree(SMALL, tmp_path / "broken")
    (tmp_path / "broken" / "configs" / "gates.yaml").write_text("kind: Nothing\n", encoding="utf-8")

    answer = run(str(tmp_path / "broken"), *DAY, "--output", str(tmp_path / "review.html"))

    assert answer.returncode == 1
    assert not (tmp_path / "review.html").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--output", "review.pdf"), "'review.pdf' is neither text nor json nor the name of a page"),
        (("--sign", "some.key"), "there is no file to sign"),
        (("--link", "javascript:alert(1)//{file}"), "the link is not an address with {file}"),
        (("--link", "https://git.example/{rev}/{file}"), "the link needs a commit for {rev}"),
        (("--dependencies", "no-such.lock"), "no-such.lock cannot be read"),
        (("--anchors", "anchors.jsonl"), "anchors and public keys go together"),
        (("--connection-env", "NO_SUCH_VARIABLE"), "the environment variable NO_SUCH_VARIABLE is not set"),
    ],
)
def test_wrong_use_is_refused(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    answer = run(str(SMALL), *DAY, *args, cwd=tmp_path)

    assert answer.returncode == 2
    assert words in answer.stderr


def test_changes_since_a_folder_are_in_the_report(tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(SMALL, older)
    gates = older / "configs" / "gates.yaml"
    gates.write_text(gates.read_text(encoding="utf-8").replace("amount > 500", "amount > 50"), encoding="utf-8")

    answer = run(str(SMALL), *DAY, "--against", str(older), "--output", "json")

    data = json.loads(answer.stdout)
    assert data["changes"]["risk"] == "high"
    assert [each["name"] for each in data["changes"]["documents"]] == ["large-refunds"]
    assert data["accessChanges"] == {"gained": [], "lost": []}
    assert "GateRule large-refunds changed since" in str(data["summary"]["findings"])


def test_sections_without_data_say_why() -> None:
    data = json.loads(run(str(SMALL), *DAY, "--output", "json").stdout)

    assert data["changes"] == {"absent": "no earlier revision was named", "help": "compare with one: --against REV"}
    for name in ("replay", "quarantines", "audit", "dependencies"):
        assert data[name]["absent"]
        assert data[name]["help"]


def test_store_fills_its_sections(tmp_path: Path, database: Path) -> None:
    stop = ("quarantine", "add", "tool:order_read", "--reason", "leaks \u202edata", "--database", str(database))
    refused = run_gateway(*stop)
    stopped = run_gateway(*stop[:4], "leaks data", *stop[5:])
    assert (refused.returncode, stopped.returncode) == (2, 0), stopped.stderr

    data = json.loads(run(str(SMALL), *DAY, "--database", str(database), "--output", "json").stdout)

    [found] = data["quarantines"]["stops"]
    assert (found["target"], found["reason"]) == ("tool:order_read", "leaks data")
    assert (data["audit"]["entries"] > 0, data["audit"]["findings"]) == (True, [])
    assert data["audit"]["until"].startswith("20")
    assert data["grants"]["grants"] == []
    assert data["accessUse"]["use"]["oldest"] is None


def test_replay_of_a_store_without_calls_says_so(database: Path) -> None:
    answer = run(str(SMALL), *DAY, "--database", str(database), "--replay", "7d", "--output", "json")

    assert json.loads(answer.stdout)["replay"]["summary"] == "There are no recorded calls to replay."


def test_missing_store_ends_the_command(tmp_path: Path) -> None:
    answer = run(str(SMALL), *DAY, "--database", str(tmp_path / "none.db"))

    assert answer.returncode == 1
    assert "there is no database" in answer.stderr


def test_dependencies_of_a_lock_file_have_their_digests(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    digest = f"sha256:{'a' * 64}"
    lock.write_text(f"jinja2==3.1.6 ; python_version > '3' \\\n    --hash={digest}\nx[y]==1 \\\n", encoding="utf-8")

    data = json.loads(run(str(SMALL), *DAY, "--dependencies", str(lock), "--output", "json").stdout)

    assert data["dependencies"]["packages"] == [
        {"name": "jinja2", "version": "3.1.6", "digests": [digest]},
        {"name": "x", "version": "1", "digests": []},
    ]


def test_dependencies_of_a_bill_of_materials_have_their_digests(tmp_path: Path) -> None:
    bill = tmp_path / "sbom.json"
    hashes = [{"alg": "SHA-256", "content": "b" * 64}, {"alg": "MD5", "content": "c"}]
    component = {"name": "jinja2", "version": "3.1.6", "externalReferences": [{"hashes": hashes}]}
    bill.write_text(json.dumps({"components": [component, {"name": 1}, "?"]}), encoding="utf-8")

    data = json.loads(run(str(SMALL), *DAY, "--dependencies", str(bill), "--output", "json").stdout)

    assert data["dependencies"]["packages"] == [
        {"name": "jinja2", "version": "3.1.6", "digests": [f"sha256:{'b' * 64}"]}
    ]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"components": 1}', "jinja2>=3\n"])
def test_file_without_dependencies_is_wrong_use(content: str, tmp_path: Path) -> None:
    (tmp_path / "odd.lock").write_text(content, encoding="utf-8")

    answer = run(str(SMALL), *DAY, "--dependencies", str(tmp_path / "odd.lock"))

    assert answer.returncode == 2
    assert "lists no package with its version" in answer.stderr


def test_signed_report_is_verified_offline(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    page = write_report(tmp_path, "--sign", str(keys[0]))

    for name in ("review.html", "review.json", "review.oscal.json", "review.sig"):
        answer = run("verify", str(page.with_name(name)), "--key", str(keys[1]))
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.startswith("✓ key ")
    answer = run("verify", str(page), "--key", str(keys[1]), "--output", "json")
    assert json.loads(answer.stdout)["verified"] is True


@pytest.mark.parametrize("name", ["review.html", "review.json", "review.oscal.json", "review.sig"])
def test_changed_report_is_refused(name: str, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    page = write_report(tmp_path, "--sign", str(keys[0]))
    changed = page.with_name(name)
    changed.write_bytes(changed.read_bytes().replace(b"a", b"b", 1))

    answer = run("verify", str(page), "--key", str(keys[1]))

    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("error: ")


def test_report_of_another_project_is_refused(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    page = write_report(tmp_path, "--sign", str(keys[0]))
    (tmp_path / "other").mkdir()
    other = write_report(tmp_path / "other", "--commit", "abc", "--sign", str(keys[0]))
    shutil.copy(other, page)

    answer = run("verify", str(page), "--key", str(keys[1]))

    assert answer.returncode == 1
    assert "'review.html' is not the file that was signed" in answer.stderr


def test_report_without_a_signature_is_refused(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    page = write_report(tmp_path, "--sign", str(keys[0]))
    write_report(tmp_path)  # its files would not fit the earlier signature

    answer = run("verify", str(page), "--key", str(keys[1]))

    assert answer.returncode == 1
    assert "there is no signature file 'review.sig'" in answer.stderr


def test_private_key_does_not_verify(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    page = write_report(tmp_path, "--sign", str(keys[0]))

    assert run("verify", str(page), "--key", str(keys[0])).returncode == 2
    assert run("verify", str(page)).returncode == 2
