"""The example configuration with its ticket service, and with a second person who may approve, or run it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from forked import Forked, Forking
from served import ROOT

from gateway.examples.helpdesk import HelpdeskServer
from gateway.examples.tickets import furnished
from gateway.identity.api_tokens import new_token


@contextmanager
def desked(forks: Forking, data: Path, *, digest: str) -> Iterator[Forked]:
    """`digest` is of the second person's token."""
    with _example(forks, data, {"GATEWAY_ENVIRONMENT": "desk", "GATEWAY_APPROVER_SHA256": digest}) as gateway:
        yield gateway


@contextmanager
def operated(forks: Forking, data: Path, *, digest: str) -> Iterator[Forked]:
    """`digest` is of the token of whoever runs it."""
    digests = {"GATEWAY_OPERATOR_SHA256": digest, "GATEWAY_APPROVER_SHA256": new_token()[1]}
    with _example(forks, data, {"GATEWAY_ENVIRONMENT": "operator", **digests}) as gateway:
        yield gateway


@contextmanager
def _example(forks: Forking, data: Path, more: Mapping[str, str]) -> Iterator[Forked]:
    with _helpdesk() as url:
        env = {"HELPDESK_URL": url, "HELPDESK_TOKEN": "token", "GATEWAY_DATA_DIR": str(data)}
        gateway = forks.start(ROOT, data, env={**env, **more})
        try:
            yield gateway
        finally:
            gateway.kill()


@contextmanager
def _helpdesk() -> Iterator[str]:
    server = HelpdeskServer(0, "token", furnished())
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
