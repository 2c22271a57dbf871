"""The example configuration with its ticket service, and with a second person who may approve or operate it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from gateway.examples.helpdesk_service import HelpdeskServer, sample_store
from gateway.identity.credentials import new_api_token
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.paths import ROOT


@contextmanager
def start_example(forks: ForkServer, data: Path, *, digest: str) -> Iterator[GatewayFork]:
    """Run the example with an approver; `digest` is that of the approver's token."""
    with _example(forks, data, {"GATEWAY_ENVIRONMENT": "desk", "GATEWAY_APPROVER_SHA256": digest}) as gateway:
        yield gateway


@contextmanager
def start_example_with_operator(forks: ForkServer, data: Path, *, digest: str) -> Iterator[GatewayFork]:
    """Run the example with an operator; `digest` is that of the operator's token."""
    digests = {"GATEWAY_OPERATOR_SHA256": digest, "GATEWAY_APPROVER_SHA256": new_api_token()[1]}
    with _example(forks, data, {"GATEWAY_ENVIRONMENT": "operator", **digests}) as gateway:
        yield gateway


@contextmanager
def _example(forks: ForkServer, data: Path, more: Mapping[str, str]) -> Iterator[GatewayFork]:
    with _helpdesk() as url:
        env = {"HELPDESK_URL": url, "HELPDESK_TOKEN": "token", "GATEWAY_DATA_DIR": str(data)}
        gateway = forks.start(ROOT, data, env={**env, **more})
        try:
            yield gateway
        finally:
            gateway.kill()


@contextmanager
def _helpdesk() -> Iterator[str]:
    server = HelpdeskServer(0, "token", sample_store())
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
