"""Command tools of a served gateway: the folders they are given can be read, the gateway's own files cannot."""

from pathlib import Path
from typing import Any

import pytest
from secured import Person, catalogue, document, frame, started, tokens_of, write_project

from gateway.backends.processes import HostControls

pytestmark = pytest.mark.anyio

HOST = HostControls.of_this_host()
ANA = Person("ana", ("staff",))


def reading_tool(folder: Path) -> dict[str, Any]:
    schema = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
    backend = {"type": "command", "argv": ["/bin/cat", "{text}"], "sandbox": {"readable": [str(folder)]}}
    spec = {"version": "1.0.0", "description": "Shows a file.", "input": {"schema": schema}, "backend": backend}
    return document("Tool", "show", {**spec, "trust": {"tier": "internal"}})


@pytest.mark.skipif(HOST.landlock < 3 or not HOST.network, reason="the kernel has no Landlock")
async def test_a_caller_cannot_have_files_shown_that_no_document_declares(tmp_path: Path) -> None:
    shared, project = tmp_path / "shared", tmp_path / "p"
    shared.mkdir()
    (shared / "note").write_text("a note", encoding="ascii")
    (shared / "link").symlink_to("/etc/passwd")
    documents = [*frame(["tokens"]), tokens_of([ANA]), reading_tool(shared), catalogue("desk", ["role:staff"], ["*"])]
    write_project(project, documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")
    async with started(project, tmp_path / "data", people=[ANA]) as gateway:
        caller = gateway.caller(ANA)
        hidden = [
            *(str(path) for path in [*project.rglob("*.yaml"), *(tmp_path / "data").rglob("*")] if path.is_file()),
            *(
                "/etc/passwd",
                "/proc/1/environ",
                "/proc/self/environ",
                f"{shared}/link",
                f"{shared}/../p/policies/policy.csv",
            ),
        ]
        shown = (await caller.modern_call("desk", "show", {"text": str(shared / "note")})).json["result"]
        refused = [(await caller.modern_call("desk", "show", {"text": path})).json["result"] for path in hidden]

    assert "a note" in shown["content"][0]["text"]
    assert len(hidden) > 6
    assert [path for path, each in zip(hidden, refused, strict=True) if not each["isError"]] == []
    assert all("ermission denied" in each["content"][0]["text"] for each in refused)
