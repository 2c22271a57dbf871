"""What an operator wants to know of a running gateway at a glance. Nothing in it is of any one caller."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.errors import StoreUnavailable
from gateway.runtime.admitting import Admission
from gateway.runtime.kept import Kept
from gateway.runtime.quarantining import stopped_status
from gateway.runtime.reloading import Reloading
from gateway.runtime.running import Running
from gateway.snapshot import Snapshot


async def status_of(
    running: Running, reloading: Reloading | None = None, *, admission: Admission | None = None
) -> Mapping[str, Any]:
    """With several workers, turns, calls and circuits are those of the one that answers."""
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
        "withheld": [each.as_data() for each in published.vigil.all()] if published.vigil else [],
        "collisions": [dict(each) for each in collision_rows(snapshot)],
        "refusals": await _refusals(running),
        "stopped": await stopped_status(running.controlled.quarantines),
        **running.controlled.status(),
        **running.observing.status(),
        "warnings": running.warnings,
    }


def collision_rows(snapshot: Snapshot) -> Iterator[Mapping[str, Any]]:
    """Every name that two tools or prompts wanted, and the URIs that two upstreams could have; and who got it."""
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


def _spool_sizes(kept: Kept) -> dict[str, Any]:
    """Nobody lists a bucket to learn how much is in it: its name is told instead."""
    return {"spoolBytes": _below(kept.spool)} if isinstance(kept.spool, Path) else {"spoolBucket": kept.spool.bucket}


async def _database_sizes(running: Running) -> Mapping[str, int | None]:
    """Nothing is known of a database that cannot be reached; the rest is told all the same."""
    try:
        return await running.controlled.engine.sizes()
    except StoreUnavailable:
        return {"databaseBytes": None}


async def _refusals(running: Running) -> dict[str, dict[str, int]]:
    """By reason, of the last day: how many calls were recorded one by one, and how many were counted above that."""
    try:
        found = await running.controlled.store.refusals_by_reason()
    except StoreUnavailable:
        return {}
    return {reason: {"recorded": kept, "counted": counted} for reason, (kept, counted) in sorted(found.items())}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # gone meanwhile
        return 0


def _below(folder: Path) -> int:
    return sum(_size(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names)
