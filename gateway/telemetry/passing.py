"""Metrics on their way between the processes of one gateway: whichever is asked tells those of all."""

from collections.abc import Iterable
from typing import Any, Final

import orjson

from gateway.telemetry.instruments import Distribution, Exemplar, Family, Point
from gateway.telemetry.names import METRICS

_BY_NAME: Final = {metric.name: metric for metric in METRICS}


def packed(families: Iterable[Family]) -> bytes:
    return orjson.dumps({family.metric.name: family.points for family in families}, option=orjson.OPT_NON_STR_KEYS)


def unpacked(content: bytes) -> list[Family]:
    """Raises `ValueError` for what is none."""
    found = orjson.loads(content)
    try:
        return [Family(_BY_NAME[name], [_point(each) for each in points]) for name, points in found.items()]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("these are no metrics of ours") from error


def _point(found: Any) -> Point:
    attributes = tuple((str(name), str(value)) for name, value in found["attributes"])
    value = found["value"]
    if not isinstance(value, dict):
        return Point(attributes, float(value))
    examples = {int(place): Exemplar(**each) for place, each in (value["exemplars"] or {}).items()}
    return Point(attributes, Distribution(list(value["counts"]), value["sum"], examples or None))
