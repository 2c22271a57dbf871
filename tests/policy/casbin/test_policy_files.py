"""Reading a folder of policies: stored rows, their positions, and refused files."""

import os
from pathlib import Path

import pytest

from gateway.policy.casbin.policy_files import MAX_FILE, MAX_LINE, MODEL_TEXT, PolicyCell, PolicySet, read_policies
from gateway.registries.diagnostics import Position
from tests.support.paths import ROOT

ROW = "p, role:a, *, tool:*, invoke, internal, allow"
SHIPPED = ROOT / "policies" / "model.conf"


def folder(tmp_path: Path, policy: str | bytes = ROW, **others: str | bytes) -> Path:
    files = {"model.conf": MODEL_TEXT, "policy.csv": policy, **{f"{name}.csv": text for name, text in others.items()}}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path


def problems(path: Path) -> list[str]:
    _, found = read_policies(path)
    return [f"{Path(one.position.file).name}:{one.position.line}:{one.position.column}: {one.code}" for one in found]


def rows(path: Path) -> list[tuple[str, ...]]:
    return [row.texts for row in read_policies(path)[0].permissions]


def test_cells_keep_their_place(tmp_path: Path) -> None:
    policies, found = read_policies(folder(tmp_path, "# who\n\n  p,role:a ,*,\ttool:*, invoke|read, internal, allow\n"))

    file = (tmp_path / "policy.csv").as_posix()
    (row,) = policies.permissions
    assert found == []
    assert row.texts == ("role:a", "*", "tool:*", "invoke|read", "internal", "allow")
    assert row.subject == PolicyCell("role:a", Position(file, 3, 5, 6))
    assert row.object == PolicyCell("tool:*", Position(file, 3, 16, 6))
    assert row.position == Position(file, 3)


def test_rows_of_every_kind_may_stand_in_any_file(tmp_path: Path) -> None:
    path = folder(tmp_path, f"g, user:ana, role:a\n{ROW}", ROLES=f"{ROW}\ng2, tool:a, class:a\ng, user:bo, role:a")

    policies, found = read_policies(path)

    assert found == []
    assert [row.position.file.rpartition("/")[2] for row in policies.permissions] == ["ROLES.csv", "policy.csv"]
    assert [(link.member.text, link.group.text) for link in policies.members] == [
        ("user:bo", "role:a"),
        ("user:ana", "role:a"),
    ]
    assert [(link.member.text, link.group.text) for link in policies.objects] == [("tool:a", "class:a")]


def test_file_with_ending_in_capitals_is_read(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "MORE.CSV").write_text(ROW.replace("allow", "deny"))
    (path / ".draft.csv").write_text("not, a, row")
    (path / "notes.txt").write_text("not, a, row")

    assert [texts[-1] for texts in rows(path)] == ["deny", "allow"]
    assert problems(path) == []


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + ROW.encode(),
        ROW.encode() + b"\r\n\r\n# comment\r\n",
        b"\n\n   \n\t\n" + ROW.encode(),
        "# größer ≥ kleiner\n".encode() + ROW.encode(),
    ],
    ids=["byte order mark", "Windows line ends", "blank lines", "comment beyond ASCII"],
)
def test_harmless_differences_are_read_over(tmp_path: Path, text: bytes) -> None:
    assert rows(folder(tmp_path, text)) == [tuple(ROW.split(", ")[1:])]
    assert problems(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("p, role:a, *, tool:*, invoke, internal", "policy.csv:1:31: row-arity"),
        ("p, role:a, *, tool:*, invoke, internal, allow,", "policy.csv:1:47: row-arity"),
        ("p", "policy.csv:1:1: row-arity"),
        ("g, user:ana", "policy.csv:1:4: row-arity"),
        ("g2, tool:a, class:a, more", "policy.csv:1:22: row-arity"),
        ("p2, role:a, *, tool:*, invoke, internal, allow", "policy.csv:1:1: unknown-section"),
        ("P, role:a, *, tool:*, invoke, internal, allow", "policy.csv:1:1: unknown-section"),
        (", role:a", "policy.csv:1:1: unknown-section"),
        ('p, "role:a", *, tool:*, invoke, internal, allow', "policy.csv:1:4: quoted-cell"),
        ("p, role:a\0, *, tool:*, invoke, internal, allow", "policy.csv:1:10: control-character"),
        ("# note\rp, role:a, *, tool:*, invoke, internal, deny", "policy.csv:1:7: control-character"),
        ("# note \u202e", "policy.csv:1:8: control-character"),
        ("p, role:a\u200b, *, tool:*, invoke, internal, allow", "policy.csv:1:10: control-character"),
        (f"{ROW}\n# " + "x" * MAX_LINE, "policy.csv:2:1: line-too-long"),
        (b"# fine\n\xff\xfe", "policy.csv:2:1: bad-encoding"),
        (ROW.encode("utf-16"), "policy.csv:1:1: bad-encoding"),
    ],
)
def test_unreadable_rows_are_refused_at_their_place(tmp_path: Path, text: str | bytes, problem: str) -> None:
    assert problems(folder(tmp_path, text)) == [problem]


def test_wrong_arity_shows_what_to_write_and_letters_are_suggested(tmp_path: Path) -> None:
    _, found = read_policies(folder(tmp_path, "g, user:ana\ng22, a, b"))

    assert found[0].message == "a g row has 2 columns, this one has 1"
    assert found[0].help == "write g, member, role"
    assert found[1].help == "did you mean 'g2'?"


def test_bad_row_leaves_the_others(tmp_path: Path) -> None:
    path = folder(tmp_path, f"{ROW}\np, short\n{ROW}")

    assert len(rows(path)) == 2
    assert problems(path) == ["policy.csv:2:4: row-arity"]


def test_line_of_ten_megabytes_is_refused_in_one_line(tmp_path: Path) -> None:
    _, found = read_policies(folder(tmp_path, "p, " + "x" * 10_000_000))

    assert [one.code for one in found] == ["line-too-long"]
    assert len(found[0].message) < 100


def test_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with (path / "policy.csv").open("wb") as stream:
        stream.truncate(MAX_FILE + 1)

    assert problems(path) == ["policy.csv:1:1: file-too-large"]


def test_missing_folder_reports_both_files(tmp_path: Path) -> None:
    policies, found = read_policies(tmp_path / "nowhere")

    assert policies == PolicySet()
    assert [(one.code, Path(one.position.file).name) for one in found] == [
        ("file-missing", "model.conf"),
        ("file-missing", "policy.csv"),
    ]


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "more.csv").mkdir()

    assert problems(path) == ["more.csv:1:1: unreadable-file"]


def test_pipe_in_place_of_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    path = folder(tmp_path)
    os.mkfifo(path / "more.csv")

    assert problems(path) == ["more.csv:1:1: unreadable-file"]


def test_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "loop.csv").symlink_to("loop.csv")

    assert problems(path) == ["loop.csv:1:1: unreadable-file"]


def test_model_may_differ_in_spaces_and_comments(tmp_path: Path) -> None:
    path = folder(tmp_path)
    text = (
        MODEL_TEXT.replace(" = ", "=").replace(", ", " ,  ").replace("[matchers]", "; old style\n[ matchers ]\n# here")
    )
    (path / "model.conf").write_text(text.replace("deny))", "deny))  # any deny wins"))

    assert problems(path) == []


def test_shipped_model_file_is_the_model_of_the_program(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "model.conf").write_bytes(SHIPPED.read_bytes())

    assert problems(path) == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("some(where (p.eft == allow)) && !some(where (p.eft == deny))", "some(where (p.eft == allow))", 10),
        ("some(where (p.eft == allow)) && !some(where (p.eft == deny))", "!some(where (p.eft == deny))", 10),
        (" && within(r.tier, p.tier)", "", 12),
        (" && does", " || does", 12),
        ("p = sub, cat, obj, act, tier, eft", "p = sub, cat, obj, act, tier", 5),
        ("r = who, cat, obj, act, tier", "r = who, obj, cat, act, tier", 3),
        ("g2 = _, _", "g2 = _, _, _", 8),
        ("g2 = _, _", "g2 = _, _\ng3 = _, _", 9),
        ("[matchers]", "[matchers]\nm = r.who == r.who", 12),
        ("[matchers]", "[matcher]", 12),
        ("[matchers]", "nonsense\n[matchers]", 11),
        ("[policy_effect]\n", "", 9),
    ],
)
def test_model_with_another_meaning_is_refused(tmp_path: Path, old: str, new: str, line: int) -> None:
    path = folder(tmp_path)
    assert old in MODEL_TEXT
    (path / "model.conf").write_text(MODEL_TEXT.replace(old, new))

    _, found = read_policies(path)

    assert {one.code for one in found} == {"policy-model"}
    assert line in {one.position.line for one in found}


def test_definition_left_out_of_the_model_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "model.conf").write_text(MODEL_TEXT.replace("g2 = _, _\n", ""))

    _, found = read_policies(path)

    assert [one.message for one in found] == ["'role_definition.g2' is missing"]
