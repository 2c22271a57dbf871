"""The status of a running gateway for operators: what it serves, what it refuses, and how much room its stores take."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.app.app import App
from gateway.app.revisions.reload import Reloader
from gateway.app.stores.databases import StorageLocation
from gateway.errors import StoreUnavailable
from gateway.policy import Access, Grant, StopList
from gateway.registries import Snapshot
from gateway.server import AdmissionControl


async def build_status(
    running: App, reloading: Reloader | None = None, *, admission: AdmissionControl | None = None
) -> Mapping[str, Any]:
    """Return the status for operators. With several workers, turns, calls and circuits are those of this one."""
    published = running.service.published
    snapshot = published.snapshot
    together = None if reloading is None else reloading.together
    sizes = {**await _database_sizes(running), **await asyncio.to_thread(_spool_sizes, running.kept)}
    return {
        "name": snapshot.name,
        "revision": snapshot.revision,
        **({} if reloading is None else reloading.status()),
        "process": os.getpid(),
        "workers": running.settings.workers,
        "revisions": {} if together is None else await together.revisions(),
        "catalogues": [
            {"name": name, "path": each.path, "tools": len(published.catalogues[name].registry.all())}
            for name, each in snapshot.catalogues.items()
        ],
        "openTurns": len(running.service.turns),
        "runningCalls": len(running.service.running),
        "requests": {} if admission is None else admission.status(),
        "storage": sizes,
        "circuits": running.circuits,
        "upstreams": running.upstreams.status(),
        "withheld": [each.to_dict() for each in published.definition_guard.list_blocked()]
        if published.definition_guard
        else [],
        "collisions": [dict(each) for each in collision_rows(snapshot)],
        "refusals": await _refusals(running),
        "stopped": await stop_list_status(running.controlled.stops),
        "grants": grant_status(running),
        **running.controlled.status(),
        **running.observing.status(),
        "warnings": running.warnings,
    }


def collision_rows(snapshot: Snapshot) -> Iterator[Mapping[str, Any]]:
    """Yield every name or URI that two definitions compete for, and which one has it."""
    for catalogue in snapshot.catalogues.values():
        for each in catalogue.collisions:
            yield {
                "catalogue": catalogue.name,
                "kind": each.kind,
                "name": each.incoming.name,
                "existing": each.existing.source,
                "incoming": each.incoming.source,
                "outcome": each.outcome,
                "reason": each.reason,
            }


def grant_status(running: App) -> Mapping[str, Any]:
    """Return the grants in force, or why none is, for status pages. Never raises for an unreadable store."""
    at = running.controlled.grants.now()
    try:
        grants = running.controlled.grant_store.current().grants
    except StoreUnavailable as error:
        return {"inForce": None, "problem": error.message}
    access = running.service.published.access
    found = [dict(each.to_dict(at)) for each in grants if each.is_running(at) and _is_allowed(access, each)]
    return {"inForce": found, "problem": None}


def _is_allowed(access: Access, grant: Grant) -> bool:
    """Whether the served policy still allows a grant, as far as that is known without the recipient's credential."""
    policy = access.snapshot.grants.get(grant.policy)
    return policy is not None and grant.role in policy.roles


def _spool_sizes(kept: StorageLocation) -> dict[str, Any]:
    """Return the size of a spool folder, or the name of a bucket, whose size would take a listing."""
    return {"spoolBytes": _total(kept.spool)} if isinstance(kept.spool, Path) else {"spoolBucket": kept.spool.bucket}


async def _database_sizes(running: App) -> Mapping[str, int | None]:
    """Return the sizes, or `None` for a database that cannot be reached."""
    try:
        return await running.controlled.engine.sizes()
    except StoreUnavailable:
        return {"databaseBytes": None}


async def _refusals(running: App) -> dict[str, dict[str, int]]:
    """Return refused calls of the last day by reason: how many were recorded singly, and how many only counted."""
    try:
        found = await running.controlled.store.refusals_by_reason()
    except StoreUnavailable:
        return {}
    return {reason: {"recorded": recorded, "counted": counted} for reason, (recorded, counted) in sorted(found.items())}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # removed meanwhile
        return 0


def _total(folder: Path) -> int:
    return sum(_size(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names)


async def stop_list_status(stops: StopList) -> Mapping[str, Any]:
    """Return what is quarantined, or why that is unknown, for status pages. Never raises for an unreadable store."""
    try:
        found = [dict(each.to_dict()) for each in await stops.list_stops()]
    except StoreUnavailable as error:
        return {"quarantines": None, "problem": error.message}
    return {"quarantines": found, "problem": stops.problem}
