"""`gateway audit`: verifying, exporting and key generation, for people and pipelines."""

import gzip
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway import __version__
from gateway.audit.content_hash import ContentKey
from gateway.audit.entries import AuditCaller, AuditEntry, AuditTarget
from gateway.audit.signing_keys import SigningKey, VerifyKey
from gateway.audit.verification import verify
from gateway.cli.main import app
from tests.audit.sample_logs import (
    ANA,
    KEY,
    NOON,
    OTHER_KEY,
    PLACE,
    Lines,
    log,
    mark,
    sign_anchors,
    tamper_log,
    write_lines,
    write_table,
)

ALPHA = log("alpha")
BETA = log("beta", 4, after=[mark(ALPHA[-1])])
FORGED = [*ALPHA[:4], *ALPHA[5:]]


def audit(*words: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, words)])


@pytest.fixture
def anchors(tmp_path: Path) -> list[object]:
    """The options that name the anchors of both shards and the key that signed them."""
    path = tmp_path / "anchors.jsonl"
    path.write_bytes(b"".join(each.encode() for each in sign_anchors(ALPHA[-1], BETA[2])))
    (tmp_path / "key.pub").write_bytes(KEY.public.pem())
    return ["--anchors", path, "--public-key", tmp_path / "key.pub"]


@pytest.mark.parametrize("kind", ["file", "gzip", "database"])
def test_good_log_is_reported_with_its_shards(tmp_path: Path, anchors: list[object], kind: str) -> None:
    rows = [*ALPHA, *BETA]
    path = write_table(tmp_path / "db", rows) if kind == "database" else write_lines(tmp_path / "log", rows)
    if kind == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes()))

    answer = audit("verify", *(["--database"] if kind == "database" else []), path, *anchors)

    assert answer.exit_code == 0, answer.output
    assert answer.stdout.splitlines() == [
        "✓ 12 entries in 2 shards are unaltered",
        "shard  from  to  anchored to  hash of the last",
        f"alpha  1     8   8            {ALPHA[-1].hash.hex()[:16]}",
        f"beta   1     4   3            {BETA[-1].hash.hex()[:16]}",
    ]
    assert answer.stderr == "note: entries after the last anchor of their shard, not confirmed yet: 1\n"


def test_bad_entry_is_named(tmp_path: Path) -> None:
    answer = audit("verify", write_lines(tmp_path / "log", FORGED))

    assert answer.exit_code == 1
    assert answer.stdout.splitlines()[0] == (
        "✗ alpha:5 missing: entry 6 is at the position of 5: entries were deleted or reordered"
    )
    assert "no anchors were given" in answer.stderr


def test_rewritten_log_is_named_by_its_anchors(tmp_path: Path, anchors: list[object]) -> None:
    path = write_lines(tmp_path / "log", tamper_log(ALPHA, 4))

    assert audit("verify", path).exit_code == 0
    answer = audit("verify", path, *anchors)
    assert answer.exit_code == 1
    assert answer.stdout.startswith("✗ alpha:1 rewritten: entries 1 to 8 are not what was anchored at 2026-11-18T")
    assert "✗ beta:1 truncated" in answer.stdout


def test_json_has_the_same(tmp_path: Path, anchors: list[object]) -> None:
    answer = audit("verify", write_lines(tmp_path / "log", [*ALPHA, *BETA[:2]]), *anchors, "--format", "json")

    assert answer.exit_code == 1
    report = json.loads(answer.stdout)
    assert report["findings"] == [
        {
            "fault": "truncated",
            "shard": "beta",
            "seq": 3,
            "detail": "entry 3 is missing: an anchor of 2026-11-18T11:06:40Z covers entry 3",
        }
    ]
    assert (report["good"], report["entries"], report["anchors"]) == (False, 10, 2)
    assert report["shards"][0] == {
        "shard": "alpha",
        "first": 1,
        "last": 8,
        "head": ALPHA[-1].hash.hex(),
        "anchored": 8,
    }


def test_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", ALPHA)
    path.write_bytes(path.read_bytes() + b"\x1b]0;owned\x07\n")

    answer = audit("verify", path)

    assert answer.exit_code == 1
    assert answer.stdout.startswith("✗ alpha:9 malformed: line 9 is not an entry of a decision log (line 9)")
    assert "\x1b" not in answer.output


def test_part_of_a_log_is_verified(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", [*ALPHA, *BETA])

    answer = audit("verify", path, "--from", 3, "--to", 5, "--shard", "alpha")

    assert answer.stdout.splitlines()[0] == "✓ 3 entries in 1 shard are unaltered"


def test_pruning_is_noted(tmp_path: Path) -> None:
    gamma = log("gamma", 2, more=[AuditEntry("log-pruned", NOON, PLACE, pruned=mark(ALPHA[4]))])

    answer = audit("verify", write_lines(tmp_path / "log", [*ALPHA[5:], *gamma]))

    assert answer.exit_code == 0
    assert "note: entries of shard alpha up to 5 were pruned according to gamma:3" in answer.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param([], "name one log to read", id="nothing"),
        pytest.param(["log", "--database", "db"], "name one log to read", id="both"),
        pytest.param(["missing"], "there is no file missing", id="no-file"),
        pytest.param(["--database", "missing"], "there is no database missing", id="no-database"),
        pytest.param(["--database", "log"], "not an SQLite database", id="no-sqlite"),
        pytest.param(["broken.gz"], "broken.gz cannot be read", id="broken-archive"),
        pytest.param(["empty"], "there are no entries to verify", id="empty"),
        pytest.param(["log", "--shard", "gamma"], "there are no entries to verify", id="no-such-shard"),
        pytest.param(["log", "--anchors", "anchors"], "anchors and public keys go together", id="anchors-alone"),
        pytest.param(["log", "--public-key", "key.pub"], "anchors and public keys go together", id="key-alone"),
        pytest.param(
            ["log", "--anchors", "missing", "--public-key", "key.pub"],
            "the anchors missing cannot be read",
            id="no-anchors",
        ),
        pytest.param(
            ["log", "--anchors", "anchors", "--public-key", "missing"], "the key missing cannot be read", id="no-key"
        ),
        pytest.param(["log", "--anchors", "anchors", "--public-key", "key"], "this is a private key", id="private-key"),
        pytest.param(["log", "--from", "0"], "greater than or equal to 1", id="no-entry"),
    ],
)
def test_what_cannot_be_read_is_another_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(Path("log"), ALPHA)
    Path("empty").touch()
    Path("anchors").touch()
    Path("broken.gz").write_bytes(gzip.compress(Path("log").read_bytes())[:100])
    Path("key").write_bytes(KEY.pem())
    Path("key.pub").write_bytes(KEY.public.pem())

    answer = audit("verify", *words)

    assert answer.exit_code == 2, answer.output
    assert message in " ".join(answer.stderr.split())
    assert "PRIVATE" not in answer.output


def test_wrong_key_is_reported(tmp_path: Path, anchors: list[object]) -> None:
    (tmp_path / "key.pub").write_bytes(OTHER_KEY.public.pem())

    answer = audit("verify", write_lines(tmp_path / "log", [*ALPHA, *BETA]), *anchors)

    assert answer.exit_code == 1
    assert answer.stdout.startswith(
        f"✗ alpha:8 anchor-key: the anchor is signed with key {KEY.id}, which is neither given nor endorsed (line 1)"
    )


def test_terminal_shows_a_bar_and_the_answer_stays(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", log(length=9000))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    run = subprocess.Popen(
        [sys.executable, "-m", "gateway", "audit", "verify", str(path)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    shown = bytearray()
    while True:
        try:
            some = os.read(ours, 4096)
        except OSError:
            break
        if not some:
            break
        shown += some
    os.close(ours)
    printed, _ = run.communicate()

    assert run.returncode == 0
    assert b"verifying" in shown
    assert printed.decode().startswith("✓ 9,000 entries in 1 shard are unaltered\n")


# Exporting


@pytest.mark.parametrize("source", ["file", "database"])
def test_exported_log_verifies_again(tmp_path: Path, source: str) -> None:
    rows = [*ALPHA, *BETA]
    words = (
        ["--database", write_table(tmp_path / "db", rows)]
        if source == "database"
        else [write_lines(tmp_path / "log", rows)]
    )

    answer = audit("export", *words)

    assert answer.exit_code == 0
    assert answer.stderr == ""
    assert verify(Lines(answer.stdout_bytes.splitlines(keepends=True))).entries == 12


@pytest.mark.parametrize(
    ("format", "start"), [("cef", f"CEF:0|agent-gateway|agent-gateway|{__version__}|"), ("ocsf", "{")]
)
def test_log_is_exported_for_others(tmp_path: Path, format: str, start: str) -> None:
    answer = audit("export", write_lines(tmp_path / "log", ALPHA), "--format", format)

    assert answer.exit_code == 0
    assert [line.startswith(start) for line in answer.stdout.splitlines()] == [True] * 8


def test_choice_of_entries_is_exported_with_a_warning(tmp_path: Path) -> None:
    other = [AuditEntry("call-decided", NOON, PLACE, AuditCaller("user:eve", "evil"), AuditTarget("mail_send"))]
    path = write_lines(tmp_path / "log", log(length=4, more=other))

    answer = audit(
        "export", path, "--tenant", "evil", "--tool", "mail_send", "--since", "2026-11-01", "--until", "2027-01-01"
    )

    assert [json.loads(line)["seq"] for line in answer.stdout.splitlines()] == [5]
    assert "cannot be verified as a chain" in answer.stderr
    assert audit("export", path, "--until", "2026-11-01", "--format", "ocsf").stdout == ""
    assert ANA.tenant == "acme"


def test_damaged_log_is_not_exported_as_events(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", [ALPHA[0]._replace(body=b"{}")])

    answer = audit("export", path, "--format", "cef")

    assert answer.exit_code == 2
    assert "entry alpha:1 cannot be read; run gateway audit verify" in answer.stderr


# Keys


def test_keys_are_written_once_and_for_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "anchors.key"

    answer = audit("keygen", path)

    assert answer.exit_code == 0
    key = SigningKey.load(path.read_bytes())
    assert VerifyKey.load((tmp_path / "anchors.key.pub").read_bytes()).id == key.id
    assert key.id in answer.stdout
    assert path.stat().st_mode & 0o777 == 0o600
    again = audit("keygen", path)
    assert again.exit_code == 2
    assert "cannot be written (File exists)" in again.stderr
    assert SigningKey.load(path.read_bytes()).id == key.id


def test_private_key_is_not_left_without_its_public_half(tmp_path: Path) -> None:
    (tmp_path / "key.pub").touch()

    assert audit("keygen", tmp_path / "key").exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key.pub"]


def test_key_of_contents_is_usable(tmp_path: Path) -> None:
    answer = audit("keygen", tmp_path / "contents.key", "--for", "contents")

    assert answer.exit_code == 0
    assert ContentKey((tmp_path / "contents.key").read_text()).id in answer.stdout
    assert (tmp_path / "contents.key").stat().st_mode & 0o777 == 0o600
    assert audit("keygen", tmp_path / "missing" / "key").exit_code == 2


@pytest.mark.parametrize("command", ["verify", "export", "keygen"])
def test_help_shows_the_exit_codes(command: str) -> None:
    assert "Exit codes: 0" in audit(command, "--help").output


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b" \n\t\n", b"# anchors\n", b"\x00" * 40, b'{"anchor":{"at":1'],
    ids=["empty", "line", "blank", "comment", "zeros", "cut off"],
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_anchors_file_without_matching_entries_fails(
    tmp_path: Path, anchors: list[object], content: bytes, output: str
) -> None:
    Path(str(anchors[1])).write_bytes(content)

    answer = audit("verify", write_lines(tmp_path / "log", [*ALPHA, *BETA]), *anchors, "--format", output)

    assert answer.exit_code == 1
    assert "there are no anchors, so nothing is confirmed" in answer.stdout
    if output == "json":
        assert json.loads(answer.stdout)["good"] is False


def test_anchors_of_another_log_fail(tmp_path: Path, anchors: list[object]) -> None:
    answer = audit("verify", write_lines(tmp_path / "log", log("gamma")), *anchors)

    assert answer.exit_code == 1
    assert "✗ alpha:1 truncated" in answer.stdout


def test_empty_log_fails_with_and_without_anchors(tmp_path: Path, anchors: list[object]) -> None:
    empty = write_lines(tmp_path / "log", [])

    assert audit("verify", empty, *anchors).exit_code == 1
    assert audit("verify", empty).exit_code == 2


@pytest.mark.parametrize("content", [b"", b"\n", b"-----BEGIN PUBLIC KEY-----\n"], ids=["empty", "blank", "cut off"])
def test_key_file_without_a_key_fails(tmp_path: Path, anchors: list[object], content: bytes) -> None:
    Path(str(anchors[3])).write_bytes(content)

    answer = audit("verify", write_lines(tmp_path / "log", ALPHA), *anchors)

    assert answer.exit_code == 2
    assert "key" in answer.stderr
