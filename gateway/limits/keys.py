"""What is counted together, as bytes: no two different lists of names make the same ones, whatever is in the names."""

from functools import lru_cache

from gateway.governance.limits import CountBy, CountedCall, Limit, Rate


def key_of(limit: Limit, call: CountedCall) -> bytes:
    """As long as the names are: whoever keeps it keeps a digest."""
    text = beginning_of(limit)
    for each in limit.by:
        text += _part(each, call)
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=4096)  # rules are few, and come again with every call
def beginning_of(limit: Limit) -> str:
    """The part that is the same for all calls: which rule it is, and what makes its counts comparable."""
    if isinstance(limit, Rate):
        numbers = f"rate {limit.limit} {limit.per} {limit.burst}"
    else:
        numbers = f"quota {limit.per}" if limit.counts == "calls" else f"quota {limit.per} {limit.counts}"
    return "".join(map(_framed, (numbers, ",".join(limit.by), limit.rule)))


def _part(by: CountBy, call: CountedCall) -> str:
    if by == "subject":
        return _framed(call.principal.tenant) + _framed(call.principal.subject)
    if by == "tenant":
        return _framed(call.principal.tenant)
    if by == "call":
        return _framed(call.tool) + _framed(call.fingerprint)
    return _framed(call.tool if by == "tool" else call.catalogue)


def _framed(name: str | None) -> str:
    return "-" if name is None else f"{len(name)}:{name}"
