"""Command tools of a running gateway can read the folders they are given, and none of the gateway's own files."""

from pathlib import Path
from typing import Any

import pytest

from gateway.backends.command.child_process import HostControls
from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    document,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

HOST = HostControls.detect()
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
    documents = [
        *base_documents(["tokens"]),
        tokens_of([ANA]),
        reading_tool(shared),
        catalogue("desk", ["role:staff"], ["*"]),
    ]
    write_project(project, documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")
    async with start_gateway(project, tmp_path / "data", people=[ANA]) as gateway:
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
