"""Moving a whole store: records to PostgreSQL, large results to a bucket and back; gateways that share both."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from tests.end_to_end.server.test_large_results import history
from tests.support.gateways.forkserver import ForkServer
from tests.support.servers.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore
from tests.support.servers.orders_service import (
    PROJECT,
    OrdersClient,
    OrdersReply,
    connect_orders_client,
    orders_service,
)

pytestmark = pytest.mark.anyio

ON_ONE_HOST = "{type: sqlite, path: data/gateway.db, retain: {calls: 2d}}"
SHARED = """
  type: postgres
  connection: {fromEnv: DATABASE}
  retain: {calls: 2d}
  blobs:
    {type: s3, bucket: %s, endpoint: "${S3_URL}", region: us-east-1, prefix: "${S3_PREFIX}",
     accessKey: {fromEnv: S3_ACCESS_KEY}, secretKey: {fromEnv: S3_SECRET_KEY}}"""


@pytest.fixture
def env(new_database: Callable[[], str], s3: ObjectStore) -> dict[str, str]:
    found = {"ORDERS_URL": "http://127.0.0.1:1", "DATABASE": new_database(), "S3_URL": s3.endpoint}
    found |= {"S3_PREFIX": f"moved-{uuid4().hex}", "S3_ACCESS_KEY": ACCESS_KEY, "S3_SECRET_KEY": SECRET_KEY}
    return found


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return the project with records and results in shared storage."""
    copied = shutil.copytree(PROJECT, tmp_path / "shared")
    gateway = copied / "configs" / "gateway.yaml"
    text = gateway.read_text(encoding="utf-8")
    assert ON_ONE_HOST in text
    gateway.write_text(text.replace(ON_ONE_HOST, SHARED % BUCKET), encoding="utf-8")
    return copied


@asynccontextmanager
async def start_shop(
    forks: ForkServer, project: Path, folder: Path, env: Mapping[str, str]
) -> AsyncIterator[OrdersClient]:
    async with orders_service() as orders:
        given = {**env, "ORDERS_URL": orders.url}
        gateway = await asyncio.to_thread(forks.start, project, folder, env=given)
        async with connect_orders_client(gateway.url) as shop:
            yield shop
        gateway.signal(signal.SIGTERM)
        assert await asyncio.to_thread(gateway.ended) == 0


async def run_storage(*words: str, env: Mapping[str, str], code: int = 0) -> str:
    done = await asyncio.to_thread(lambda: CliRunner(env=dict(env)).invoke(app, ["storage", *words]))
    assert done.exit_code == code, done.output
    assert SECRET_KEY not in done.output
    return done.output


async def content(shop: OrdersClient, made: OrdersReply) -> bytes:
    return await shop.content(str(made.call_id), str(made.turn))


async def test_store_moves_into_a_database_and_a_bucket_and_results_back_into_files(
    tmp_path: Path, forks: ForkServer, shared: Path, env: dict[str, str]
) -> None:
    async with start_shop(forks, PROJECT, tmp_path / "one", env) as shop:
        large = await shop.rest("history_fetch", {"bytes": 5 << 20})
        small = await shop.rest("order_place", {"order": "small"})
    data = tmp_path / "one" / "data"
    project = ("-p", str(shared))

    output = await run_storage(
        "copy", "--from", str(data / "gateway.db"), "--results", str(data / "spool"), *project, env=env
    )
    again = await run_storage("copy-results", "--from", str(data / "spool"), *project, env=env)
    back = await run_storage("copy-results", "--to", str(tmp_path / "back"), *project, env=env)

    assert f"copied 1 large results, {5 << 20} bytes" in output
    assert "everything is copied" in output
    assert "copied 0 large results, 0 bytes; 1 existed already" in again
    assert f"copied 1 large results, {5 << 20} bytes" in back
    files = {kind: sorted(path.name for path in (tmp_path / kind).rglob("*.bytes")) for kind in ("one", "back")}
    assert files["one"] == files["back"] != []
    shutil.rmtree(data)
    async with start_shop(forks, shared, tmp_path / "two", env) as shop:
        assert await content(shop, large) == history(5 << 20)
        assert await content(shop, small) == b"placed small"


async def test_result_of_one_gateway_is_read_at_another(
    tmp_path: Path, forks: ForkServer, shared: Path, env: dict[str, str]
) -> None:
    async with (
        start_shop(forks, shared, tmp_path / "a", env) as here,
        start_shop(forks, shared, tmp_path / "b", env) as there,
    ):
        large = await here.rest("history_fetch", {"bytes": 5 << 20})
        found = await content(there, large)
        path = f"/v1/artifacts/{large.call_id}/query?turn={large.turn}"
        asked = await there.post(path, {"tool": "artifact_tail", "arguments": {"n": 2}})

    assert found == history(5 << 20)
    assert "order placed, paid, packed" in asked["rendered"]


async def test_copies_that_cannot_be_made_are_reported(tmp_path: Path, shared: Path, env: dict[str, str]) -> None:
    project = ("-p", str(shared))
    (tmp_path / "spool").mkdir()
    lost = {**env, "S3_URL": "http://127.0.0.1:1"}

    neither = await run_storage("copy-results", *project, env=env, code=2)
    both = await run_storage("copy-results", "--from", "a", "--to", "b", *project, env=env, code=2)
    missing = await run_storage("copy-results", "--from", str(tmp_path / "none"), *project, env=env, code=2)
    nothing = await run_storage("copy-results", "--from", str(tmp_path / "spool"), *project, env=env)
    away = await run_storage("copy-results", "--to", str(tmp_path / "to"), *project, env=lost, code=1)
    strange = await run_storage(
        "copy-results", "--to", str(tmp_path / "to"), *project, env={**env, "S3_SECRET_KEY": "x"}, code=1
    )

    assert "give one of --from FOLDER and --to FOLDER" in neither
    assert "give one of --from FOLDER and --to FOLDER" in both
    assert "there is no folder" in missing
    assert "copied 0 large results" in nothing
    assert "the object store cannot be used" in away
    assert "denies access with these credentials" in strange
