"""Secrets of documents. A secret is read when it is needed, and never shown."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gateway.config import CheckedDocument, SecretSpec, SecretUse, ToolDocument, UpstreamDocument, find_secret_uses
from gateway.errors import ProgramError

MAX_SECRET: Final = 64 << 10


class SecretMissing(ProgramError):
    code = "E_SECRET_MISSING"
    default_message = "a secret is missing"


class Secrets:
    """Reads secrets of documents. Files are relative to the folder of the documents."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._environ = environ
        self._folder = folder

    def reader(self, secret: SecretSpec) -> Callable[[], str]:
        """Return a function that reads the secret each time: a file may be rotated."""
        return lambda: self.read(secret)

    def exists(self, secret: SecretSpec) -> bool:
        try:
            self.read(secret)
        except SecretMissing:
            return False
        return True

    def read(self, secret: SecretSpec) -> str:
        """Read a secret. Raises `SecretMissing`, which names the place but never the value."""
        if secret.from_env is not None:
            value = self._environ.get(secret.from_env)
            if not value:
                raise SecretMissing(
                    f"the environment variable {secret.from_env} is not set", help="set it for the gateway's process"
                )
            return value
        path = self._folder / (secret.from_file or "")
        try:
            with path.open("rb") as file:
                text = file.read(MAX_SECRET + 1)
        except OSError as error:
            raise SecretMissing(
                f"the secret file {path} cannot be read ({type(error).__name__})", help="check its path and permissions"
            ) from None
        if not text.strip() or len(text) > MAX_SECRET:
            raise SecretMissing(f"the secret file {path} is empty or too large", help="put only the secret into it")
        return text.decode("utf-8", "replace").rstrip("\r\n")


def find_missing_secrets(documents: Iterable[CheckedDocument], secrets: Secrets) -> Iterator[str]:
    """Yield a line for each missing secret. Its calls fail; the gateway starts, since it may be set later."""
    using = [each.source for each in documents if _is_called(each.spec)]
    uses = {(each.name, each.is_file): each for each in sorted(find_secret_uses(using), key=_place, reverse=True)}
    for (name, is_file), first in sorted(uses.items()):
        secret = SecretSpec.model_construct(from_env=None if is_file else name, from_file=name if is_file else None)
        try:
            secrets.read(secret)
        except SecretMissing as error:
            yield f"{first.position}: {error.message}: calls that need it fail"


def _is_called(spec: object) -> bool:
    if isinstance(spec, ToolDocument):
        return spec.spec.lifecycle in ("active", "deprecated")
    return isinstance(spec, UpstreamDocument)


def _place(use: SecretUse) -> tuple[str, int, int]:
    return use.position.file, use.position.line, use.position.column
