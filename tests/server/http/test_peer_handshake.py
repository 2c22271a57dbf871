"""The proof before HTTP: only connections that know the secret pass, whatever the others send."""

from random import Random

import pytest

from gateway.server.http.peer_handshake import (
    ANSWER_SIZE,
    HELLO_SIZE,
    MAGIC,
    MIN_SECRET_BYTES,
    ChannelKey,
    ChannelRefused,
    ClientProof,
    Kind,
    ServerProof,
)

KEY = ChannelKey(b"a" * MIN_SECRET_BYTES)
KINDS: tuple[Kind, ...] = ("forward", "control")


def server(name: str = "worker-1", *, key: ChannelKey = KEY, kinds: tuple[Kind, ...] = KINDS) -> ServerProof:
    return ServerProof({kind: key.of(kind, name) for kind in kinds})


def client(kind: Kind = "forward", *, name: str = "worker-1", key: ChannelKey = KEY) -> ClientProof:
    return ClientProof(key.of(kind, name), kind)


def exchange_proofs(one: ServerProof, other: ClientProof) -> bytes:
    """Everything that the client sends until the server accepts the proof."""
    answer, _ = one.take(other.hello)
    proof = other.take(answer)
    one.take(proof)
    return other.hello + proof


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_with_the_secret_are_proved(kind: Kind) -> None:
    one = server()

    exchange_proofs(one, client(kind))

    assert one.kind == kind


@pytest.mark.parametrize("size", [1, 2, 5, 37, 38, 39])
def test_pieces_of_any_size_are_the_same(size: int) -> None:
    one, other = server(), client()
    answers, rest = [], b""
    for start in range(0, HELLO_SIZE, size):
        answers.append(one.take(other.hello[start : start + size])[0])
    sent = other.take(b"".join(answers)) + b"GET / HTTP/1.1\r\n"
    for start in range(0, len(sent), size):
        piece = sent[start : start + size]
        rest += piece if one.kind else one.take(piece)[1]

    assert (one.kind, rest) == ("forward", b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (server(), client(key=ChannelKey(b"b" * 32))),
        (server("worker-0"), client(name="worker-1")),
        (server(key=ChannelKey(b"a" * 33)), client()),
    ],
    ids=["secret", "name", "longer"],
)
def test_client_sends_no_proof_to_a_server_that_has_none(one: ServerProof, other: ClientProof) -> None:
    answer, _ = one.take(other.hello)

    with pytest.raises(ChannelRefused):
        other.take(answer)


def test_kind_that_is_not_accepted_is_refused_without_an_answer() -> None:
    with pytest.raises(ChannelRefused, match="kind"):
        server(kinds=("forward",)).take(client("control").hello)
    for number in (0, 3, 255):
        with pytest.raises(ChannelRefused, match="kind"):
            server().take(MAGIC + bytes([number]) + bytes(32))


def test_proof_of_one_kind_is_none_of_another() -> None:
    """A client that knows only the key of one kind claims the other kind."""
    one, other = server(), client("forward")
    hello = other.hello[:5] + client("control").hello[5:6] + other.hello[6:]
    answer, _ = one.take(hello)

    with pytest.raises(ChannelRefused):
        other.take(answer)


def test_recorded_connection_cannot_be_replayed() -> None:
    sent = exchange_proofs(server(), client())

    for again in (sent, sent * 2):
        one = server()
        with pytest.raises(ChannelRefused, match="secret"):
            one.take(again)
        assert one.kind is None


def test_server_cannot_be_made_to_prove_itself_to_itself() -> None:
    """The answer of one connection is not a proof on another."""
    one, two = server(), server()
    answer, _ = one.take(client().hello)
    two.take(client().hello)

    for piece in (answer[32:], answer[:32], answer):
        with pytest.raises(ChannelRefused):
            one.take(piece)


def test_whatever_strangers_send_is_refused_or_waited_for() -> None:
    random = Random(20)
    good = client().hello
    for number in range(5000):
        one = server()
        match number % 4:
            case 0:
                data = random.randbytes(random.randrange(1, 200))
            case 1:
                data = MAGIC + random.randbytes(random.randrange(1, 200))
            case 2:
                data = good + random.randbytes(random.randrange(0, 120))
            case _:
                changed = bytearray(good + bytes(32))
                changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
                data = bytes(changed)
        try:
            answer, rest = one.take(data)
        except ChannelRefused:
            continue
        assert (one.kind, rest) == (None, b"")
        assert len(answer) in (0, ANSWER_SIZE)
        assert len(data) < HELLO_SIZE + 32


def test_whatever_strangers_answer_is_refused() -> None:
    random = Random(21)
    for number in range(2000):
        other = client()
        answer, _ = server().take(other.hello)
        changed = bytearray(answer)
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        with pytest.raises(ChannelRefused):
            other.take(bytes(changed) if number % 2 else random.randbytes(ANSWER_SIZE))


def test_secret_that_is_short_is_none_and_none_is_shown() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        ChannelKey(b"a" * 31)
    assert "aaa" not in repr(KEY)
    assert ChannelKey.new().reveal() != ChannelKey.new().reveal()
