"""`gateway init`, run as a user runs it."""

import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT

WRITTEN = [
    ".gitignore",
    "README.md",
    "configs/.schema/gateway.v1.json",
    "configs/gateway.yaml",
    "policies/model.conf",
    "policies/policy.csv",
    "policies/roles.csv",
    "policies/tests/starter.yaml",
]


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_gateway(*args, cwd=cwd)


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_what_is_written_is_checked_and_tested_green(tmp_path: Path) -> None:
    answer = run("init", "demo", cwd=tmp_path)

    assert (answer.returncode, answer.stderr) == (0, "")
    assert list(contents(tmp_path / "demo")) == WRITTEN
    assert run("check", "demo", "--strict", cwd=tmp_path).returncode == 0
    assert run("test", "demo", cwd=tmp_path).returncode == 0


def test_project_stays_sound_as_days_go_by(tmp_path: Path) -> None:
    run("init", "demo", cwd=tmp_path)

    assert run("check", "demo", "--strict", "--on", "2046-01-01", cwd=tmp_path).returncode == 0


def test_tree_and_next_commands_are_printed(tmp_path: Path) -> None:
    lines = run("init", "demo", cwd=tmp_path).stdout.splitlines()

    assert lines[:3] == ["demo", "├── .gitignore", "├── README.md"]
    assert "  gateway check demo  # every problem, with its line" in lines
    assert "  gateway tools --project demo  # the tools of the catalogue" in lines
    assert lines[-1] == "  cd demo && gateway serve  # serve it; records are stored in its folder data"


def test_what_is_written_is_served_with_its_records_in_its_own_folder(tmp_path: Path) -> None:
    printed = run("init", "demo", cwd=tmp_path).stdout.splitlines()[-1]
    folder, command = printed.partition("#")[0].strip().removeprefix("cd ").split(" && ")
    environ = {**os.environ, "GATEWAY_PORT": "0", "GATEWAY_ADMIN_PORT": "0"}
    serving = subprocess.Popen(
        [sys.executable, "-m", *command.split()],
        cwd=tmp_path / folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    too_late = threading.Timer(60, serving.kill)
    too_late.start()
    assert serving.stdout is not None
    with serving, serving.stdout:
        is_up = any(line.startswith("try: ") for line in serving.stdout)
        serving.terminate()
    too_late.cancel()

    assert is_up
    assert (tmp_path / "demo" / "data" / "gateway.db").is_file()
    assert not (tmp_path / "data").exists()


def test_readme_shows_how_to_serve_and_where(tmp_path: Path) -> None:
    run("init", "demo", cwd=tmp_path)
    written = contents(tmp_path / "demo")

    steps = written["README.md"].partition("In this folder:")[2]
    assert "\n    gateway serve " in steps
    assert "in the folder `data` of the current folder" in " ".join(steps.split())
    assert "relative to the folder that `gateway serve` is run in" in written["configs/gateway.yaml"]


def test_current_folder_is_the_default(tmp_path: Path) -> None:
    answer = run("init", cwd=tmp_path)

    assert list(contents(tmp_path)) == WRITTEN
    assert "  gateway check  # every problem, with its line" in answer.stdout.splitlines()
    assert answer.stdout.splitlines()[-1].startswith("  gateway serve  # ")


def test_folder_with_a_strange_name_is_quoted_and_obeyed_by_no_terminal(tmp_path: Path) -> None:
    answer = run("init", "my demo\x1b[31m", cwd=tmp_path)

    assert list(contents(tmp_path / "my demo\x1b[31m")) == WRITTEN
    assert "\x1b" not in answer.stdout
    assert "  gateway check 'my demo␛[31m'  # every problem, with its line" in answer.stdout.splitlines()


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "policy.csv").symlink_to(tmp_path / "nowhere")

    answer = run("init", str(tmp_path))

    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == (
        f"error: in {tmp_path}, already there: README.md, policies/policy.csv; "
        "nothing was written; --force overwrites them\n"
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["README.md", "policies", "policy.csv"]


def test_force_overwrites_what_is_ours_and_nothing_else(tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.txt"
    other.write_text("not ours", encoding="utf-8")
    project = tmp_path / "demo"
    project.mkdir()
    (project / "README.md").symlink_to(other)
    (project / "notes.txt").write_text("mine", encoding="utf-8")

    answer = run("init", str(project), "--force")

    assert answer.returncode == 0
    assert list(contents(project)) == sorted([*WRITTEN, "notes.txt"])
    assert other.read_text(encoding="utf-8") == "not ours"
    assert not (project / "README.md").is_symlink()


@pytest.mark.parametrize(
    ("in_the_way", "words"),
    [
        pytest.param("configs", "not a folder: {folder}/configs", id="file-for-folder"),
        pytest.param(".", "not a folder: {folder}", id="file-for-project"),
    ],
)
def test_file_in_place_of_a_folder_is_reported_even_with_force(tmp_path: Path, in_the_way: str, words: str) -> None:
    folder = tmp_path / "demo"
    file = folder / in_the_way
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine", encoding="utf-8")

    answer = run("init", str(folder), "--force")

    assert answer.returncode == 2
    assert answer.stderr.startswith(f"error: {words.format(folder=folder)}; ")
    assert list(contents(tmp_path).values()) == ["mine"]


def test_folder_in_place_of_a_file_is_reported_even_with_force(tmp_path: Path) -> None:
    (tmp_path / "README.md").mkdir()

    answer = run("init", str(tmp_path), "--force")

    assert answer.returncode == 2
    assert contents(tmp_path) == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    answer = run("init", str(tmp_path))

    assert answer.returncode == 1
    assert answer.stderr == f"error: {tmp_path} cannot be written: permission denied\n"


def test_failure_halfway_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """A name that is too long for the file system fails after its folder was created."""
    project = tmp_path / "new" / ("x" * 300)

    answer = run("init", str(project))

    assert answer.returncode == 1
    assert "cannot be written: file name too long" in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder here that nobody can write to")
def test_files_that_were_moved_come_back_when_another_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    (tmp_path / "policies").symlink_to("/proc")

    answer = run("init", str(tmp_path), "--force")

    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: {tmp_path} cannot be written: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "policies"]
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"


def test_wheel_carries_the_templates(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )

    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if "/templates/" in name}
    folders = [ROOT / "gateway" / package / "templates" for package in ("cli", "review")]
    on_disk = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.*")}
    assert all(any(name.startswith(f"gateway/{each}/") for name in on_disk) for each in ("cli", "review"))
    assert packed == {*on_disk, "gateway/cli/templates/project/gitignore"}
