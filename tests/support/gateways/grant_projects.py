"""A project in which members can get the role of agents for a while, and leads approve."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.gateways.gate_projects import LIZ, POLICY, approval_client
from tests.support.gateways.projects import Caller, Document, Person, Reply, document, write_project

MIA = Person("mia", ("member",))
MAX = Person("max", ("member", "lead"))
GRANT_PEOPLE = (MIA, MAX, LIZ, Person("ana", ("agent",)), Person("ops", ("ops",)), Person("tia", ("lead",), "acme"))
OPS = GRANT_PEOPLE[4]
TIA = GRANT_PEOPLE[5]
"""A lead of another tenant."""

GRANT_ROWS = f"{POLICY}p, role:ops, *, config, administer, community, allow\n"


def grant_policy(**changes: Any) -> Document:
    spec = {
        "description": "For incidents.",
        "roles": ["role:agent"],
        "to": ["role:member"],
        "approvers": ["role:lead"],
        "maxDuration": "2h",
        "maxTotal": "4h",
        **changes,
    }
    return document("GrantPolicy", "incidents", spec)


def grant_documents(port: int, *more: Document, **changes: Any) -> list[Document]:
    return [*approval_client(port, people=GRANT_PEOPLE), grant_policy(**changes), *more]


def write_grant_project(folder: Path, port: int, *more: Document, **changes: Any) -> Path:
    return write_project(folder, grant_documents(port, *more, **changes), policy=GRANT_ROWS)


async def request_grant(caller: Caller, subject: str = "user:mia", **changes: Any) -> Reply:
    body: Mapping[str, Any] = {"role": "role:agent", "seconds": 3600, "reason": "INC-42", **changes}
    return await caller.rest("POST", "/v1/grants", {"subject": subject, **body})


async def change_grant(caller: Caller, id: str, verb: str) -> Reply:
    return await caller.rest("POST", f"/v1/grants/{id}/{verb}", {})


async def get_grant(member: Caller, lead: Caller, **changes: Any) -> str:
    """Request and approve a grant; return its id."""
    requested = await request_grant(member, **changes)
    assert requested.status == 201, requested.body
    approved = await change_grant(lead, requested.json["id"], "approve")
    assert approved.status == 200, approved.body
    return str(approved.json["id"])
