"""Backends of a tool: an HTTP request, a Python function, a command, a tool or an operation of an upstream.

Each says which arguments it names, so that a tool can check them against its input schema.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.config.specs.base import Broken, Many, Maybe, Path, Some, Spec
from gateway.config.specs.common import Auth, Env, Headers, Json, credentials_as_text
from gateway.config.specs.scalars import (
    AbsolutePath,
    Duration,
    EntryPoint,
    JsonPath,
    Line,
    Name,
    PrivateNetwork,
    Prose,
    Size,
    Text,
    UrlTemplate,
)

ErrorWord = Literal["invalid", "not-permitted", "not-found", "conflict", "unavailable", "failed"]
ExitCode = Annotated[int, Field(ge=0, le=255)]

Argument = Annotated[
    str,
    Text("an argument", "write one argument, without NUL", r"[^\x00]*"),
]

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")


def _status(text: str) -> int:
    return int(text)


class _Status(Text):
    """A key that YAML may have read as a number."""

    def read(self, value: object) -> int:
        # a slotted dataclass is a new class, which `super()` without arguments does not know
        return int(Text.read(self, str(value) if type(value) is int and 0 < value < 1000 else value))


Status = Annotated[
    int,
    _Status("an HTTP status", "write an HTTP status from 400 to 599", r"[45][0-9]{2}", convert=_status),
]

NETWORKS: Final = "Private networks that the host's name may lead to; without them, only public addresses."

Mention = tuple[Path, str]
"""A place in the backend and the argument that it names."""


class FromArguments(Spec):
    """Takes values from the call's arguments."""

    from_: Literal["arguments"] = Field(description="Take the call's arguments.")
    only: Maybe[Some[Line]] = Field(None, description="Just these; without it, all that the path does not use.")


class HttpBackend(Spec):
    """One HTTP request per call; the host is fixed here."""

    type: Literal["http"] = Field(description="An HTTP request.")
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = Field(description="HTTP method.")
    url: UrlTemplate = Field(description="Address; {argument} in the path is replaced, percent-encoded.")
    headers: Headers = Field({}, description="Fixed headers.")
    query: Maybe[FromArguments] = Field(None, description="Arguments that go into the query string.")
    body: Maybe[FromArguments] = Field(None, description="Arguments that go into the JSON body.")
    auth: Maybe[Auth] = Field(None, description="Credentials for the service.")
    networks: Many[PrivateNetwork] = Field((), description=NETWORKS)
    pick: Maybe[JsonPath] = Field(None, description="Part of the answer that is the result.")
    errors: dict[Status, ErrorWord] = Field({}, description="What a status means, in our words.")

    def mentions(self) -> Iterator[Mention]:
        for name in _PLACEHOLDER.findall(self.url):
            yield ("url",), name

    def picks(self) -> Iterator[Mention]:
        for field, source in (("query", self.query), ("body", self.body)):
            for index, name in enumerate((source and source.only) or ()):
                yield (field, "only", index), name

    def broken_rules(self) -> Iterable[Broken]:
        yield from credentials_as_text(self.headers, "headers")
        if re.search(r"[{}]", _PLACEHOLDER.sub("", self.url)):
            yield Broken(("url",), "a brace in the URL is not part of a {placeholder}", code="bad-url")
        if self.body is not None and self.method in ("GET", "HEAD"):
            yield Broken(("body",), f"a {self.method} request has no body", "use 'query' instead", at_key=True)


class PythonBackend(Spec):
    """A Python function; its package must be on the allow-list of the process."""

    type: Literal["python"] = Field(description="A Python function.")
    entrypoint: EntryPoint = Field(description="The function, as module:function.")
    run: Literal["loop", "thread", "process"] = Field("thread", description="Where it runs.")

    def mentions(self) -> Iterator[Mention]:
        return iter(())

    picks = mentions


class Exit(Spec):
    """What the exit status of a command means."""

    ok: Some[ExitCode] = Field((0,), description="The call succeeded.")
    failed: Many[ExitCode] = Field((), description="The call failed in an expected way; its output is the error.")

    def broken_rules(self) -> Iterable[Broken]:
        for index, code in enumerate(self.failed):
            if code in self.ok:
                yield Broken(("failed", index), f"exit status {code} cannot be both ok and failed")


class Sandbox(Spec):
    """What a command may use."""

    network: Literal["none", "host"] = Field("none", description="Network it can reach.")
    cpu: Maybe[Duration] = Field(None, description="Processor time.")
    memory: Maybe[Size] = Field(None, description="Memory.")
    readable: Many[AbsolutePath] = Field(
        (), description="Folders and files it may read and run, besides the system's own; [/] is everything."
    )
    writable: Many[AbsolutePath] = Field((), description="Folders it may write to and read; [/] is everything.")


class CommandBackend(Spec):
    """A program on this host, started without a shell."""

    type: Literal["command"] = Field(description="A program on this host.")
    argv: Some[Argument] = Field(description="Program and arguments; an entry that is just {argument} is replaced.")
    env: Env = Field({}, description="The whole environment of the program.")
    workdir: Maybe[AbsolutePath] = Field(None, description="Folder it starts in.")
    output: Literal["text", "json"] = Field("text", description="What it prints.")
    exit: Maybe[Exit] = Field(None, description="What its exit status means.")
    sandbox: Maybe[Sandbox] = Field(None, description="What it may use.")

    def mentions(self) -> Iterator[Mention]:
        for index, argument in enumerate(self.argv):
            if found := _PLACEHOLDER.fullmatch(argument):
                yield ("argv", index), found[1]

    def picks(self) -> Iterator[Mention]:
        return iter(())

    def broken_rules(self) -> Iterable[Broken]:
        yield from program_problems(self.argv)
        for index, argument in enumerate(self.argv):
            if index and _PLACEHOLDER.search(argument) and not _PLACEHOLDER.fullmatch(argument):
                yield Broken(
                    ("argv", index),
                    "a placeholder is a whole argument",
                    "give the option and its value as two entries",
                )


def program_problems(argv: tuple[str, ...]) -> Iterator[Broken]:
    if not argv[0].startswith("/") or ".." in argv[0].split("/") or _PLACEHOLDER.search(argv[0]):
        yield Broken(("argv", 0), "the program is a fixed absolute path", "write it from the root: /usr/bin/git")


class Arguments(Spec):
    """How the arguments of the tool differ from those of the upstream's. Names are the upstream's."""

    fixed: Json = Field({}, description="Values that are always sent; callers can neither see nor give them.")
    hidden: Many[Line] = Field((), description="Arguments that callers can neither see nor give.")
    defaults: Json = Field({}, description="Values of arguments that callers may leave out.")
    renamed: dict[Line, Name] = Field({}, description="The name that callers use instead.")
    described: dict[Line, Prose] = Field({}, description="What callers are told about an argument instead.")

    def broken_rules(self) -> Iterable[Broken]:
        gone = dict.fromkeys(self.fixed, "fixed") | dict.fromkeys(self.hidden, "hidden")
        for field in ("renamed", "described"):
            for name in getattr(self, field):
                if name in gone:
                    yield Broken((field, name), f"{name!r} is {gone[name]}, so callers have no use for this")
        for name in self.defaults:
            if name in self.fixed:
                yield Broken(("defaults", name), f"{name!r} is fixed, so it needs no default")
        for index, name in enumerate(self.hidden):
            if name in self.fixed:
                yield Broken(("hidden", index), f"{name!r} is fixed, and so hidden anyway", "remove it here")


class UpstreamBackend(Spec):
    """What both kinds of upstream have in common."""

    upstream: Name = Field(description="The Upstream.")
    tool: Name = Field(description="Name of the tool over there.")
    arguments: Maybe[Arguments] = Field(None, description="How its arguments differ from those of the upstream's tool.")

    def mentions(self) -> Iterator[Mention]:
        return iter(())

    picks = mentions


class McpBackend(UpstreamBackend):
    """A tool on an upstream server, under our name, description and trust."""

    type: Literal["mcp"] = Field(description="A tool on an upstream server.")


class OpenApiBackend(UpstreamBackend):
    """An operation of an upstream's OpenAPI document, under our name, description and trust."""

    type: Literal["openapi"] = Field(description="An operation of an OpenAPI document.")
    headers: Headers = Field({}, description="Fixed headers, besides those of the Upstream.")
    errors: dict[Status, ErrorWord] = Field({}, description="What a status means, in our words.")

    def broken_rules(self) -> Iterable[Broken]:
        yield from credentials_as_text(self.headers, "headers")


Backend = Annotated[
    HttpBackend | PythonBackend | CommandBackend | McpBackend | OpenApiBackend, Field(discriminator="type")
]
