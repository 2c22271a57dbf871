"""Moving a whole store: records into PostgreSQL, large results into a bucket and back; gateways that share both."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from forked import Forking
from orders import PROJECT, Answered, Shop, orders_service, shop_at
from seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore
from test_large import history
from typer.testing import CliRunner

from gateway.cli import app

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
    """The project with records and results where several gateways reach them."""
    copied = shutil.copytree(PROJECT, tmp_path / "shared")
    gateway = copied / "configs" / "gateway.yaml"
    text = gateway.read_text(encoding="utf-8")
    assert ON_ONE_HOST in text
    gateway.write_text(text.replace(ON_ONE_HOST, SHARED % BUCKET), encoding="utf-8")
    return copied


@asynccontextmanager
async def serving(forks: Forking, project: Path, folder: Path, env: Mapping[str, str]) -> AsyncIterator[Shop]:
    async with orders_service() as orders:
        given = {**env, "ORDERS_URL": orders.url}
        gateway = await asyncio.to_thread(forks.start, project, folder, env=given)
        async with shop_at(gateway.url) as shop:
            yield shop
        gateway.signal(signal.SIGTERM)
        assert await asyncio.to_thread(gateway.ended) == 0


async def ran(*words: str, env: Mapping[str, str], code: int = 0) -> str:
    done = await asyncio.to_thread(lambda: CliRunner(env=dict(env)).invoke(app, ["storage", *words]))
    assert done.exit_code == code, done.output
    assert SECRET_KEY not in done.output
    return done.output


async def content(shop: Shop, made: Answered) -> bytes:
    return await shop.content(str(made.call_id), str(made.turn))


async def test_store_moves_into_a_database_and_a_bucket_and_results_back_into_files(
    tmp_path: Path, forks: Forking, shared: Path, env: dict[str, str]
) -> None:
    async with serving(forks, PROJECT, tmp_path / "one", env) as shop:
        large = await shop.rest("history_fetch", {"bytes": 5 << 20})
        small = await shop.rest("order_place", {"order": "small"})
    data = tmp_path / "one" / "data"
    project = ("-p", str(shared))

    said = await ran("copy", "--from", str(data / "gateway.db"), "--results", str(data / "spool"), *project, env=env)
    again = await ran("copy-results", "--from", str(data / "spool"), *project, env=env)
    back = await ran("copy-results", "--to", str(tmp_path / "back"), *project, env=env)

    assert f"copied 1 large results, {5 << 20} bytes" in said
    assert "everything is copied" in said
    assert "copied 0 large results, 0 bytes; 1 were there already" in again
    assert f"copied 1 large results, {5 << 20} bytes" in back
    files = {kind: sorted(path.name for path in (tmp_path / kind).rglob("*.bytes")) for kind in ("one", "back")}
    assert files["one"] == files["back"] != []
    shutil.rmtree(data)
    async with serving(forks, shared, tmp_path / "two", env) as shop:
        assert await content(shop, large) == history(5 << 20)
        assert await content(shop, small) == b"placed small"


async def test_result_of_one_gateway_is_read_at_another(
    tmp_path: Path, forks: Forking, shared: Path, env: dict[str, str]
) -> None:
    async with (
        serving(forks, shared, tmp_path / "a", env) as here,
        serving(forks, shared, tmp_path / "b", env) as there,
    ):
        large = await here.rest("history_fetch", {"bytes": 5 << 20})
        found = await content(there, large)
        path = f"/v1/artifacts/{large.call_id}/query?turn={large.turn}"
        asked = await there.post(path, {"tool": "artifact_tail", "arguments": {"n": 2}})

    assert found == history(5 << 20)
    assert "order placed, paid, packed" in asked["rendered"]


async def test_what_cannot_be_copied_is_told(tmp_path: Path, shared: Path, env: dict[str, str]) -> None:
    project = ("-p", str(shared))
    (tmp_path / "spool").mkdir()
    lost = {**env, "S3_URL": "http://127.0.0.1:1"}

    neither = await ran("copy-results", *project, env=env, code=2)
    both = await ran("copy-results", "--from", "a", "--to", "b", *project, env=env, code=2)
    missing = await ran("copy-results", "--from", str(tmp_path / "none"), *project, env=env, code=2)
    nothing = await ran("copy-results", "--from", str(tmp_path / "spool"), *project, env=env)
    away = await ran("copy-results", "--to", str(tmp_path / "to"), *project, env=lost, code=1)
    strange = await ran(
        "copy-results", "--to", str(tmp_path / "to"), *project, env={**env, "S3_SECRET_KEY": "x"}, code=1
    )

    assert "give one of --from FOLDER and --to FOLDER" in neither
    assert "give one of --from FOLDER and --to FOLDER" in both
    assert "there is no folder" in missing
    assert "copied 0 large results" in nothing
    assert "the object store cannot be used" in away
    assert "lets nobody in with these credentials" in strange
