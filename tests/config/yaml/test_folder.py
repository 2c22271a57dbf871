"""Folders of documents: which files are read, in which order, and file system errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import pytest

from gateway.config.yaml.document import MAX_BYTES
from gateway.config.yaml.folder import list_files, read_documents, read_file
from gateway.registries.diagnostics import Diagnostic, Position


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def link(root: Path, name: str, target: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to(target)


def files_read(root: Path, *, exclude: tuple[str, ...] = ()) -> list[str]:
    documents, problems = read_documents(root, exclude=exclude)
    assert problems == []
    return [each.file for each in documents]


def codes(root: Path) -> list[tuple[str, str]]:
    return [(each.code, each.position.file) for each in read_documents(root)[1]]


def test_every_yaml_file_below_is_read_in_order(tmp_path: Path) -> None:
    names = [
        "tools/b.yaml",
        "a.yml",
        "tools/a.yaml",
        "gateway.yaml",
        "tools/x/y.YAML",
        "tools.yaml",
        "note.txt",
        "x.yaml.bak",
    ]
    write(tmp_path, dict.fromkeys(names, "a: 1\n"))

    assert files_read(tmp_path) == [
        "a.yml",
        "gateway.yaml",
        "tools.yaml",
        "tools/a.yaml",
        "tools/b.yaml",
        "tools/x/y.YAML",
    ]


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    names = [".schema/gateway.yaml", ".#a.yaml", "..2026_11_16/b.yaml", "x/.git/c.yaml", "a.yaml"]
    write(tmp_path, dict.fromkeys(names, "a: 1\n"))

    assert files_read(tmp_path) == ["a.yaml"]


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (("drafts",), ["a.yaml", "tools/b.yaml"]),
        (("drafts/*",), ["a.yaml", "tools/b.yaml"]),
        (("*/b.yaml", "a.*"), ["drafts/c.yaml"]),
    ],
)
def test_excluded_paths_are_passed_over(tmp_path: Path, exclude: tuple[str, ...], left: list[str]) -> None:
    write(tmp_path, dict.fromkeys(["a.yaml", "drafts/b.yaml", "drafts/c.yaml", "tools/b.yaml"], "a: 1\n"))

    assert files_read(tmp_path, exclude=exclude) == left


def test_positions_name_files_with_the_prefix(tmp_path: Path) -> None:
    write(tmp_path, {"tools/a.yaml": "a: 1\na: 2\n"})

    (document,), (problem,) = read_documents(tmp_path, prefix="configs")

    assert document.file == "configs/tools/a.yaml"
    assert problem.position == Position("configs/tools/a.yaml", 2, 1, 1)


def test_problems_of_all_files_are_reported(tmp_path: Path) -> None:
    write(tmp_path, {"b.yaml": "a: 1\na: 2\n", "a.yaml": "a: [\n", "c.yaml": "c: 1\n---\n- 1\n"})

    documents, problems = read_documents(tmp_path)

    assert [each.file for each in documents] == ["b.yaml", "c.yaml"]
    assert [(each.position.file, each.code) for each in problems] == [
        ("a.yaml", "yaml-syntax"),
        ("b.yaml", "duplicate-key"),
        ("c.yaml", "not-a-mapping"),
    ]


def test_mounted_config_map_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, {"..2026_11_16_10/gateway.yaml": "a: 1\n", "..2026_11_16_10/tools/t.yaml": "b: 1\n"})
    link(tmp_path, "..data", "..2026_11_16_10")
    link(tmp_path, "gateway.yaml", "..data/gateway.yaml")
    link(tmp_path, "tools", "..data/tools")

    assert files_read(tmp_path) == ["gateway.yaml", "tools/t.yaml"]


def test_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real", {"a.yaml": "a: 1\n"})
    link(tmp_path, "linked", "real")

    assert files_read(tmp_path / "linked") == ["a.yaml"]


def test_link_to_what_is_read_anyway_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {"b/x.yaml": "a: 1\n", "c.yaml": "a: 1\n", "data.txt": "a: 1\n"})
    link(tmp_path, "a", "b")
    link(tmp_path, "a.yaml", "c.yaml")
    link(tmp_path, "from-text.yaml", "data.txt")

    assert files_read(tmp_path) == ["b/x.yaml", "c.yaml", "from-text.yaml"]


def test_links_in_circles_end(tmp_path: Path) -> None:
    write(tmp_path, {"a/x.yaml": "a: 1\n", ".h/y.yaml": "b: 1\n"})
    link(tmp_path, "a/up", "..")
    link(tmp_path, "a/self", ".")
    link(tmp_path, "h", ".h")
    link(tmp_path, ".h/again", "../.h")
    link(tmp_path, "knot", "knot")

    assert files_read(tmp_path) == ["a/x.yaml", "h/y.yaml"]


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "outside", {"secret.yaml": "a: 1\n", "note.txt": ""})
    write(tmp_path / "in", {"a.yaml": "a: 1\n"})
    link(tmp_path / "in", "b.yaml", "../outside/secret.yaml")
    link(tmp_path / "in", "c", "../outside")
    link(tmp_path / "in", "d.txt", "../outside/note.txt")
    link(tmp_path / "in", "e.yaml", "/nowhere/at/all.yaml")

    assert codes(tmp_path / "in") == [("link-outside", "b.yaml"), ("link-outside", "c"), ("link-outside", "e.yaml")]


def test_links_to_nothing_are_unreadable_files(tmp_path: Path) -> None:
    link(tmp_path, "gone.yaml", "missing.yaml")
    link(tmp_path, "knot.yaml", "knot.yaml")

    assert codes(tmp_path) == [("unreadable-file", "gone.yaml"), ("unreadable-file", "knot.yaml")]


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")

    assert read_documents(tmp_path)[1] == [
        Diagnostic("unreadable-file", "not a regular file", Position("pipe.yaml", 1))
    ]


def test_fifty_megabytes_are_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "huge.yaml", "wb") as file:
        file.truncate(50 << 20)

    assert codes(tmp_path) == [("file-too-large", "huge.yaml")]


def test_folder_named_like_a_file_is_a_folder(tmp_path: Path) -> None:
    write(tmp_path, {"team.yaml/a.yaml": "a: 1\n"})

    assert files_read(tmp_path) == ["team.yaml/a.yaml"]


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    where = (tmp_path / "none").as_posix()

    assert read_documents(tmp_path / "none") == (
        [],
        [Diagnostic("missing-folder", "the folder does not exist", Position(where, 1))],
    )


def test_file_instead_of_a_folder_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {"a.yaml": "a: 1\n"})

    documents, (problem,) = read_documents(tmp_path / "a.yaml", prefix="configs")

    assert documents == []
    assert (problem.code, problem.help) == ("not-a-folder", "use the folder that contains the file")
    assert problem.position == Position("configs", 1)


@pytest.mark.parametrize(
    "files", [{}, {"a.txt": "a: 1"}, {"a.yaml": "# nothing yet\n"}], ids=["empty", "text", "comment"]
)
def test_folder_without_documents_is_a_warning(tmp_path: Path, files: dict[str, str]) -> None:
    documents, (problem,) = read_documents(write(tmp_path, files), prefix="configs")

    assert documents == []
    assert (problem.code, problem.severity, problem.position) == ("no-documents", "warning", Position("configs", 1))


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Drop root's rights for a while, because root may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def open_to_all() -> str:
    if not os.access(gettempdir(), os.W_OK | os.X_OK, effective_ids=True):
        pytest.skip("an ordinary user has no place for temporary files here")
    return gettempdir()


def test_folders_and_files_without_permission_are_reported() -> None:
    # pytest's own folders are closed to other users
    with as_ordinary_user(), TemporaryDirectory(dir=open_to_all()) as name:
        root = write(Path(name), {"closed/in/a.yaml": "a: 1\n", "b.yaml": "a: 1\n"})
        (root / "closed").chmod(0)
        (root / "b.yaml").chmod(0)

        found = [codes(root), codes(root / "closed"), codes(root / "closed/in")]

        (root / "closed").chmod(0o700)
    assert found == [
        [("unreadable-file", "b.yaml"), ("unreadable-folder", "closed")],
        [("unreadable-folder", f"{name}/closed")],
        [("unreadable-folder", f"{name}/closed/in")],
    ]


def test_names_that_are_not_utf8_can_be_shown(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml")).write_text("a: [", encoding="utf-8")

    assert codes(tmp_path) == [("yaml-syntax", "\\xff.yaml")]


def test_single_file_is_read_under_its_name(tmp_path: Path) -> None:
    write(tmp_path, {"a.yaml": "a: 1\n"})

    documents, problems = read_file(tmp_path / "a.yaml", "shown.yaml")

    assert problems == []
    assert documents[0].file == "shown.yaml"


def test_text_behind_a_position_is_found(tmp_path: Path) -> None:
    write(tmp_path, {"tools/a.yaml": "a: é\n", "big.yaml": "#" * (MAX_BYTES + 1)})
    (tmp_path / "bad.yaml").write_bytes(b"\xff")
    plain, prefixed = list_files(tmp_path), list_files(tmp_path, prefix="configs")

    assert plain("tools/a.yaml") == prefixed("configs/tools/a.yaml") == "a: é\n"
    assert [plain(name) for name in ("none.yaml", "tools", "big.yaml", "bad.yaml", "\0")] == [None] * 5
