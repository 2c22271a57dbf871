"""Values that are encoded once, in a cache that stays bounded."""

from gateway.telemetry.export.wire_format import BoundedCache


def test_it_is_made_once() -> None:
    made: list[int] = []

    def make(number: int) -> str:
        made.append(number)
        return str(number)

    remembered = BoundedCache(make)

    assert [remembered[1], remembered[2], remembered[1]] == ["1", "2", "1"]
    assert made == [1, 2]


def test_it_begins_anew_when_it_is_full() -> None:
    remembered = BoundedCache(str, most=2)

    found = [remembered[number] for number in (1, 2, 3)]

    assert found == ["1", "2", "3"]
    assert dict(remembered) == {3: "3"}
