"""The key cache: rotation under a running process, outages, and one download for any number of callers."""

import asyncio
import gzip
import logging
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from gateway.errors import Unauthenticated
from gateway.identity.authenticator import Authenticator
from gateway.identity.key_sets import MAX_DOCUMENT, MAX_STALE_AGE, KeysUnavailable
from gateway.identity.provider_settings import FileKeySettings, UrlKeySettings
from tests.identity.token_samples import (
    ISSUER,
    OTHER_RSA,
    RSA,
    FakeClock,
    KeyServer,
    bearer,
    claims,
    issuer,
    jwk,
    jwks,
    key_file,
    serving,
    signed,
    started,
)

pytestmark = pytest.mark.anyio

OLD, NEW = jwk(RSA, "k1"), jwk(OTHER_RSA, "k2")


class Timer:
    """Sleeps until a test ends the sleep."""

    def __init__(self) -> None:
        self.asleep: asyncio.Queue[float] = asyncio.Queue()
        self._ticks: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        self.asleep.put_nowait(seconds)
        await self._ticks.get()

    async def rings(self) -> float:
        """End one sleep and what follows it; return the length of the next one."""
        with anyio.fail_after(5):
            self._ticks.put_nowait(None)
            return await self.asleep.get()


class HeldServer(KeyServer):
    """Answers once it is released, and signals each request."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.set()
        await self.released.wait()
        return await super().answer(request)


def new_token(sub: str = "ada") -> bytes:
    return bearer(signed(claims(sub=sub), key=OTHER_RSA, kid="k2"))


async def reason_of(identities: Authenticator, header: bytes) -> str | None:
    try:
        await identities.authenticate(header)
    except Unauthenticated as refusal:
        return refusal.reason
    return None


async def test_new_key_is_found_when_a_token_names_it(tmp_path: Path) -> None:
    clock = FakeClock()

    async with serving(KeyServer()) as server, started([issuer(UrlKeySettings(server.url))], clock) as identities:
        server.body = jwks(OLD, NEW)
        clock.passes(seconds=10)

        assert await reason_of(identities, new_token()) is None
        assert await reason_of(identities, bearer(signed(claims()))) is None
        assert server.requests == 2


async def test_keys_are_never_fetched_per_request() -> None:
    async with serving(KeyServer()) as server, started([issuer(UrlKeySettings(server.url))], FakeClock()) as identities:
        for number in range(20):
            assert await reason_of(identities, bearer(signed(claims(jti=f"t{number}")))) is None

        assert server.requests == 1


async def test_unknown_keys_are_asked_for_once_per_pause() -> None:
    clock = FakeClock()

    async with serving(KeyServer()) as server, started([issuer(UrlKeySettings(server.url))], clock) as identities:
        for _ in range(4):
            clock.passes(seconds=5)
            assert await reason_of(identities, new_token()) == "unknown-key"

        assert server.requests == 1 + 2


async def test_clock_that_was_set_back_does_not_stop_asking() -> None:
    clock = FakeClock()

    async with serving(KeyServer()) as server, started([issuer(UrlKeySettings(server.url))], clock) as identities:
        clock.passes(seconds=-20)
        server.body = jwks(OLD, NEW)

        assert await reason_of(identities, new_token()) is None


async def test_any_number_of_callers_wait_for_one_reading() -> None:
    clock = FakeClock()

    async with serving(HeldServer()) as server, anyio.create_task_group() as group:
        assert isinstance(server, HeldServer)
        server.released.set()
        async with started([issuer(UrlKeySettings(server.url))], clock) as identities:
            server.body = jwks(OLD, NEW)
            server.released.clear()
            server.asked.clear()
            clock.passes(seconds=10)
            reasons: list[str | None] = []

            async def call(number: int) -> None:
                reasons.append(await reason_of(identities, new_token(f"user{number}")))

            with anyio.fail_after(5):
                for number in range(50):
                    group.start_soon(call, number)
                await server.asked.wait()
                server.released.set()
                while len(reasons) < 50:
                    await anyio.lowlevel.checkpoint()

        assert reasons == [None] * 50
        assert server.requests == 2


async def test_caller_who_gives_up_does_not_end_the_reading_of_others() -> None:
    clock = FakeClock()

    async with serving(HeldServer()) as server:
        assert isinstance(server, HeldServer)
        server.released.set()
        async with started([issuer(UrlKeySettings(server.url))], clock) as identities:
            server.body = jwks(OLD, NEW)
            server.released.clear()
            server.asked.clear()
            clock.passes(seconds=10)

            with anyio.fail_after(5):
                impatient = asyncio.create_task(identities.authenticate(new_token("bob")))
                patient = asyncio.create_task(identities.authenticate(new_token()))
                await server.asked.wait()
                impatient.cancel()
                await asyncio.wait({impatient})
                server.released.set()
                assert (await patient).subject == "user:ada"

        assert impatient.cancelled()
        assert server.requests == 2


async def test_known_tokens_are_not_held_up_by_a_reading() -> None:
    clock = FakeClock()

    async with serving(HeldServer()) as server:
        assert isinstance(server, HeldServer)
        server.released.set()
        async with started([issuer(UrlKeySettings(server.url))], clock) as identities:
            server.released.clear()
            server.asked.clear()
            clock.passes(seconds=10)

            with anyio.fail_after(5):
                waiting = asyncio.create_task(reason_of(identities, new_token()))
                await server.asked.wait()
                assert await reason_of(identities, bearer(signed(claims()))) is None
                server.released.set()
                assert await waiting == "unknown-key"


async def test_closing_refuses_waiting_callers() -> None:
    async with serving(HeldServer()) as server:
        assert isinstance(server, HeldServer)
        identities = Authenticator([issuer(UrlKeySettings(server.url))], FakeClock())

        with anyio.fail_after(5):
            waiting = asyncio.create_task(reason_of(identities, bearer(signed(claims()))))
            await server.asked.wait()
            await identities.close()
            server.released.set()

            assert await waiting == "unknown-key"
            assert await reason_of(identities, bearer(signed(claims()))) == "unknown-key"
        assert server.requests <= 1


async def test_closing_what_was_never_started_is_no_error() -> None:
    await Authenticator([issuer(UrlKeySettings("https://login.example.com/jwks"))], FakeClock()).close()


async def test_keys_are_renewed_in_the_background() -> None:
    timer = Timer()

    async with (
        serving(KeyServer()) as server,
        started([issuer(UrlKeySettings(server.url))], FakeClock(), sleep=timer.sleep) as identities,
    ):
        assert await reason_of(identities, new_token()) == "unknown-key"
        server.body = jwks(NEW)
        assert await timer.asleep.get() == 600
        await timer.rings()

        assert await reason_of(identities, new_token()) is None
        assert await reason_of(identities, bearer(signed(claims()))) == "unknown-key"
        assert server.requests == 2


@pytest.mark.parametrize(
    ("cache_control", "seconds"),
    [
        (None, 600),
        ("max-age=900", 900),
        ("public, MAX-AGE=900, must-revalidate", 900),
        ('max-age="900"', 900),
        ("max-age=1", 60),
        ("max-age=0", 60),
        ("max-age=999999999", 3600),
        ("max-age=-5", 600),
        ("max-age=soon", 600),
        ("s-maxage=900", 600),
        ("no-store", 60),
        ("no-cache, max-age=900", 60),
    ],
)
async def test_issuer_decides_within_bounds_how_long_keys_are_fresh(cache_control: str | None, seconds: int) -> None:
    timer, server = Timer(), KeyServer()
    server.headers = {} if cache_control is None else {"Cache-Control": cache_control}

    async with serving(server), started([issuer(UrlKeySettings(server.url))], FakeClock(), sleep=timer.sleep):
        assert await timer.asleep.get() == seconds


BROKEN = {
    "error": (503, b"", {}, "answers with status 503"),
    "redirect": (302, b"", {"Location": "/elsewhere"}, "answers with status 302"),
    "other success": (204, b"", {}, "answers with status 204"),
    "not a key set": (200, b"<html>", {}, "is not a JSON object"),
    "no usable key": (200, b'{"keys":[]}', {}, "no key that fits"),
    "packed": (200, gzip.compress(jwks(NEW)), {"Content-Encoding": "gzip"}, "is not a JSON object"),
    "too large": (200, b" " * (MAX_DOCUMENT + 1), {}, "is larger than 1048576 bytes"),
}


@pytest.mark.parametrize(("status", "body", "headers", "problem"), BROKEN.values(), ids=BROKEN)
async def test_last_good_keys_are_kept_while_the_issuer_is_out(
    status: int,
    body: bytes,
    headers: dict[str, str],
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    timer, clock = Timer(), FakeClock()
    caplog.set_level(logging.INFO, "gateway.identity")

    async with (
        serving(KeyServer()) as server,
        started([issuer(UrlKeySettings(server.url))], clock, sleep=timer.sleep) as identities,
    ):
        await timer.asleep.get()
        server.status, server.body, server.headers = status, body, headers
        assert [await timer.rings(), await timer.rings()] == [30, 30]
        assert await reason_of(identities, bearer(signed(claims()))) is None
        assert identities.issuers_without_keys == ()

        server.status, server.body, server.headers = 200, jwks(NEW), {}
        assert await timer.rings() == 600
        assert await reason_of(identities, new_token()) is None

    warning, recovery = caplog.messages
    assert warning.startswith(f"the keys of issuer {ISSUER} are not renewed: the key ")
    assert problem in warning
    assert recovery == f"the keys of issuer {ISSUER} can be read again"


async def test_keys_are_given_up_when_the_issuer_stays_out() -> None:
    clock = FakeClock()

    async with serving(KeyServer()) as server, started([issuer(UrlKeySettings(server.url))], clock) as identities:
        server.status = 503
        clock.passes(seconds=MAX_STALE_AGE.total_seconds())
        late = bearer(signed(claims(exp=int(clock.now.timestamp()) + 300)))
        assert await reason_of(identities, late) is None

        clock.passes(seconds=61)
        assert await reason_of(identities, late) == "unknown-key"
        assert identities.issuers_without_keys == (ISSUER,)


async def test_issuer_that_is_out_at_the_start_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    timer = Timer()
    server = KeyServer()
    server.status = 500

    async with (
        serving(server),
        started([issuer(UrlKeySettings(server.url))], FakeClock(), sleep=timer.sleep) as identities,
    ):
        assert await timer.asleep.get() == 30
        assert identities.issuers_without_keys == (ISSUER,)
        assert await reason_of(identities, bearer(signed(claims()))) == "unknown-key"

        server.status = 200
        assert await timer.rings() == 600
        assert await reason_of(identities, bearer(signed(claims()))) is None


async def test_address_without_a_listener_is_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(KeyServer()) as server:
        url = server.url

    async with started([issuer(UrlKeySettings(url))], FakeClock()) as identities:
        assert identities.issuers_without_keys == (ISSUER,)

    assert caplog.messages == [
        f"the keys of issuer {ISSUER} are not renewed: the key address does not answer: ClientConnectorError"
    ]


async def test_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    timer = Timer()

    async with started([issuer(key_file(tmp_path, OLD))], FakeClock(), sleep=timer.sleep) as identities:
        assert await timer.asleep.get() == 5
        assert await reason_of(identities, new_token()) == "unknown-key"
        key_file(tmp_path, NEW)
        await timer.rings()

        assert await reason_of(identities, new_token()) is None
        assert await reason_of(identities, bearer(signed(claims()))) == "unknown-key"


async def test_file_that_did_not_change_leaves_what_is_remembered(tmp_path: Path) -> None:
    timer, header = Timer(), bearer(signed(claims()))

    async with started([issuer(key_file(tmp_path))], FakeClock(), sleep=timer.sleep) as identities:
        await timer.asleep.get()
        first = await identities.authenticate(header)
        await timer.rings()

        assert await identities.authenticate(header) is first


async def test_file_that_breaks_later_leaves_the_last_good_keys(tmp_path: Path) -> None:
    timer, keys = Timer(), key_file(tmp_path)

    async with started([issuer(keys)], FakeClock(), sleep=timer.sleep) as identities:
        await timer.asleep.get()
        keys.path.write_bytes(b"{")
        assert await timer.rings() == 30
        keys.path.unlink()
        assert await timer.rings() == 30

        assert await reason_of(identities, bearer(signed(claims()))) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the key file cannot be read: No such file or directory"),
        (b"{", "is not a JSON object"),
        (b" " * (MAX_DOCUMENT + 1), "is larger than"),
    ],
    ids=["missing", "broken", "too large"],
)
async def test_gateway_does_not_start_with_a_wrong_key_file(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_bytes(content)

    async with serving(KeyServer()) as server:
        providers = [issuer(UrlKeySettings(server.url)), issuer(FileKeySettings(path))]
        with pytest.raises(KeysUnavailable, match=message):
            await Authenticator(providers, FakeClock()).start()
