"""Gateways of the benchmarks: a small project that a caller adds to, and the configuration of this repository."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.load import MANY, wait_for
from benchmarks.servers import Served

ROOT = Path(__file__).parent.parent
COMMAND = (sys.executable, "-m", "gateway")
"""What starts a gateway; a benchmark may put a program before it that watches it."""


@contextmanager
def gateway(
    tools: int = 10,
    ratio: float | None = None,
    collector: int = 0,
    *,
    more: str = "",
    storage: str = "",
    pipeline: str = "",
    identity: str = "",
    files: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
) -> Iterator[Served]:
    """Serve a project with so many tools, which sends a share (`ratio`) of its traces to a collector.

    `more` are additional documents and `files` additional files of its project; `storage`, `pipeline` and `identity`
    replace its own.
    """
    with TemporaryDirectory() as folder:
        storage = storage or f"{{type: sqlite, path: {folder}/data/gateway.db}}"
        write_project(Path(folder), tools, ratio, storage, pipeline or PLAIN_PIPELINE, identity or ANYBODY)
        for name, text in {**(files or {}), **({"more.yaml": more} if more else {})}.items():
            Path(folder, "configs", name).write_text(text, encoding="utf-8")
        environ = {"GATEWAY_PYTHON_PACKAGES": "bench_tools", "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        if collector:
            environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector}"
        with start_gateway(Path(folder), environ, command) as served:
            yield served


@contextmanager
def shipped_gateway(command: Sequence[str] = COMMAND) -> Iterator[Served]:
    """Serve a copy of `configs/` and `policies/` whose limits refuse nothing."""
    with TemporaryDirectory() as folder:
        for name in ("configs", "policies"):
            shutil.copytree(ROOT / name, Path(folder, name))
        for name in ("pipelines.yaml", "gates.yaml"):
            file = Path(folder, "configs", name)
            file.write_text(raise_limits(file.read_text(encoding="utf-8")), encoding="utf-8")
        with start_gateway(Path(folder), {"HELPDESK_TOKEN": "none", "REPOS_DIR": folder}, command) as served:
            yield served


def raise_limits(text: str) -> str:
    """Raise the limits of the example: calls of a loop, a rate, a quota and a budget."""
    raised, count = re.subn(r"\b(sameCall|limit|burst|calls): \d+", rf"\1: {MANY}", text)
    if not count:
        raise SystemExit("the example configuration has other limits than this benchmark raises")
    return re.sub(r"bytes: \d+MiB", "bytes: 1000000GiB", raised)


def shipped_pipeline() -> str:
    """Return the pipeline of the example configuration, with a loop guard that stops nothing."""
    text = (ROOT / "configs" / "pipelines.yaml").read_text(encoding="utf-8")
    found = re.search(r"name: standard.*?spec:\n(.*?)\n---", text, re.DOTALL)
    if found is None:
        raise SystemExit("the example configuration has no pipeline named standard")
    return raise_limits(found[1])


@contextmanager
def start_gateway(folder: Path, environ: Mapping[str, str], command: Sequence[str]) -> Iterator[Served]:
    words = [*command, "serve", "--configs", str(folder), "--port", "0", "--admin-port", "0"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    log = folder / "output.txt"  # an unread pipe would fill with warnings and stop the gateway
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(words, cwd=folder, env={**inherited, **environ}, stdout=output)
    try:
        port = read_port(process, log)
        wait_for(port)
        yield process.pid, port
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print(f"the gateway {process.pid} did not stop within two minutes and was killed", file=sys.stderr)


def read_port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    while process.poll() is None:
        if found := re.search(r"REST +http://127\.0\.0\.1:(\d+)/v1 ", log.read_text(encoding="utf-8")):
            return int(found[1])
        time.sleep(0.1)
    raise SystemExit(f"the gateway did not start:\n{log.read_text(encoding='utf-8')}")


def write_project(folder: Path, tools: int, ratio: float | None, storage: str, pipeline: str, identity: str) -> None:
    (folder / "configs").mkdir()
    (folder / "policies").mkdir()
    (folder / "bench_tools.py").write_text(FUNCTIONS, encoding="utf-8")
    documents = [
        ("Gateway", "bench", f"{{{FRAME}{'' if ratio is None else ', telemetry: o'}}}"),
        *([] if ratio is None else [("Telemetry", "o", f"{{traces: {{sample: {{ratio: {ratio}}}}}}}")]),
        ("IdentityProvider", "i", identity),
        ("Storage", "s", storage),
        ("CollisionPolicy", "c", "{onCollision: throw}"),
        ("Pipeline", "p", pipeline if pipeline.startswith("{") else f"\n{pipeline}"),
        ("TrustTier", "t", "{rank: 0, description: Ours., origin: first-party, mayBeTrusted: true}"),
        ("Catalogue", "bench", '{audience: [role:bench], include: [{tools: ["*"]}], publish: {path: /bench}}'),
        *(("Tool", name, TOOL) for name in ["echo", *(f"tool_{number}" for number in range(tools - 1))]),
    ]
    texts = [document(*each) for each in documents]
    for start in range(0, len(texts), PER_FILE):
        some = "\n---\n".join(texts[start : start + PER_FILE])
        (folder / "configs" / f"part-{start:05}.yaml").write_text(some, encoding="utf-8")
    shutil.copy(ROOT / "policies" / "model.conf", folder / "policies")
    rows = ["p, role:bench, bench, tool:*, discover|invoke, t, allow"]
    rows += [f"p, role:other{number}, bench, tool:tool_{number}, invoke, t, allow" for number in range(tools - 1)]
    (folder / "policies" / "policy.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def document(kind: str, name: str, spec: str) -> str:
    return f"apiVersion: gateway/v1\nkind: {kind}\nmetadata: {{name: {name}, owner: team}}\nspec: {spec}"


def tool_spec(backend: str, more: str = "", *, argument: str = "text", flags: str = "[]") -> str:
    return f"""
  version: 1.0.0
  description: Returns its text.
  trust: {{tier: t, flags: {flags}}}
  input: {{schema: {{type: object, required: [{argument}], properties: {{{argument}: {{type: string}}}}}}}}
  backend: {backend}
{more}"""


PLAIN_PIPELINE = "{call: [{use: gates}, {use: timeout, with: {after: 30s}}]}"
ANYBODY = '{type: none, subject: "user:bench", roles: [role:bench]}'
FUNCTIONS = """
def echo(text: str) -> str:
    return text


def often(text: str) -> str:
    return (text + "\\n") * 20_000


def quote(text: str) -> dict[str, str]:
    return {"sku": text, "total": "1316.00", "currency": "EUR"}
"""
PER_FILE = 500
"""Documents: the size of a file is limited."""

FRAME = "defaults: {pipeline: p, collisionPolicy: c, tier: t}, identity: [i], storage: s"
TOOL = tool_spec('{type: python, entrypoint: "bench_tools:echo", run: loop}')
