"""`gateway bundle`: a project as one file that can be signed, carried and verified."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.audit.keys import PublicKey, SigningKey
from gateway.bundles.contents import contents_of
from gateway.bundles.manifest import MOST_NUMBER, BundleRefused, Manifest, digests_of
from gateway.bundles.packing import Bundle, packed, unpacked
from gateway.bundles.signing import check, signature_of, signer
from gateway.cli.audit import write_all
from gateway.cli.console import err, fail, note, out, print_json, print_line, print_pairs
from gateway.cli.moments import moment
from gateway.cli.project import (
    DEFAULT_FOLDER,
    Environment,
    Policies,
    ProjectFolder,
    assembled,
    project_at,
    snapshot_of,
    sound,
)
from gateway.cli.served import Output
from gateway.errors import GatewayError
from gateway.runtime.bundled import content_at, taken_from, write_whole

_DAYS: Final = 90
_MOST_KEY: Final = 64 << 10

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Build, sign and verify bundles.")

File = Annotated[Path, typer.Argument(help="The bundle.")]


@app.command("build")
def build(
    file: Annotated[Path, typer.Argument(help="Where to write it.")],
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    number: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_NUMBER, help="Higher than that of every bundle before; without it, the seconds since 1970."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it counts.")] = _DAYS,
    not_before: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="MOMENT", help="When it begins to count.", show_default=False),
    ] = None,
    commit: Annotated[str | None, typer.Option(help="Which commit it was made from, for people.")] = None,
) -> None:
    """Write a project as one file, if it has no errors. Exit codes: 0 written, 1 it has errors, 2 wrong use."""
    project = project_at(folder, policies)
    revision = snapshot_of(sound(assembled(project, environment=environment, today=None), project)).revision
    now = datetime.now(UTC).replace(microsecond=0)
    try:
        contents = contents_of({"configs": project.configs, "policies": project.policies})
        manifest = Manifest(
            number or int(now.timestamp()),
            now,
            now + timedelta(days=days),
            digests_of(contents),
            not_before,
            commit,
            revision,
        )
        content = packed(contents, manifest.encode())
        _check_complete(unpacked(content), revision, environment=environment)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    _write(file, content)
    print_line(out(), f"bundle {manifest.number} with {len(contents)} files of revision {revision[:12]} is in {file}")
    note("it is not signed: gateway bundle sign")


@app.command("sign")
def sign(
    file: File,
    key: Annotated[Path, typer.Option(help="The private key; gateway bundle keygen makes one.")],
) -> None:
    """Sign a bundle; an earlier signature is replaced. Exit codes: 0 signed, 1 it is no bundle, 2 wrong use."""
    try:
        signing = SigningKey.load(_key(key))
        bundle = _read(str(file))
        check(bundle, (), now=bundle.manifest.not_before or bundle.manifest.created)
        signature = signature_of(bundle.manifest_bytes, signing)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    _write(file, packed(bundle.contents, bundle.manifest_bytes, signature=signature))
    print_line(out(), f"bundle {bundle.manifest.number} is signed with key {signing.id}")


@app.command("verify")
def verify(
    where: Annotated[str, typer.Argument(metavar="FILE|URL", help="The bundle.")],
    key: Annotated[
        list[Path] | None, typer.Option(help="A public key that it may be signed with; give it more than once.")
    ] = None,
    at_least: Annotated[int, typer.Option(help="The number that it must have at least.")] = 0,
    output: Output = "text",
) -> None:
    """Tell whether a bundle is whole, signed and counts now. Exit codes: 0 it is, 1 it is not, 2 wrong use."""
    try:
        keys = [PublicKey.load(_key(each)) for each in key or ()]
        bundle = _read(where)
        check(bundle, keys, now=datetime.now(UTC))
        if bundle.manifest.number < at_least:
            raise BundleRefused(f"the bundle has number {bundle.manifest.number}, and {at_least} is asked for")
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    _tell(bundle, keys, is_json=output == "json")


@app.command("keygen")
def keygen(file: Annotated[Path, typer.Argument(help="Where to write the key. Nothing is ever overwritten.")]) -> None:
    """Write a new key for signing bundles, readable for its owner only, and its public half in FILE.pub."""
    key = SigningKey.generate()
    public = file.with_name(f"{file.name}.pub")
    write_all([(file, key.pem(), 0o600), (public, key.public.pem(), 0o644)])
    print_line(out(), f"key {key.id} for bundles is in {file}, its public half in {public}")
    print_line(err(), "Keep it where bundles are signed, and give gateways the public half alone.")


def _tell(bundle: Bundle, keys: Sequence[PublicKey], *, is_json: bool) -> None:
    manifest = bundle.manifest
    signed = signer(bundle)
    told = {
        "number": manifest.number,
        "created": manifest.created.isoformat(),
        "expires": manifest.expires.isoformat(),
        "commit": manifest.commit,
        "revision": manifest.revision,
        "files": len(bundle.contents),
        "signedBy": signed,
        "verified": bool(keys),
    }
    if is_json:
        print_json(told)
        return
    print_pairs(out(), [(name, str(value)) for name, value in told.items() if value is not None])
    if not keys:
        note(
            "whether the signature is good was not asked: name the public key with --key"
            if signed
            else "it is not signed"
        )


def _check_complete(bundle: Bundle, revision: str, *, environment: str | None) -> None:
    """The bundle alone has to mean what the project means: what it names beside its documents is in it, too."""
    taken = taken_from(bundle.contents, {}, content=b"", warning=None)
    try:
        found = assembled(taken.project, environment=environment, today=None)
        problem = next((each for each in found.diagnostics if each.is_error), None)
        if problem is not None:
            raise BundleRefused(
                f"without the project beside it the bundle has an error: {problem.message}", help=problem.help
            )
        if snapshot_of(found).revision != revision:
            raise BundleRefused("the bundle would not be the same revision as the project")
    finally:
        taken.release()


def _read(where: str) -> Bundle:
    return unpacked(content_at(where))


def _key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_KEY)
    except OSError as error:
        fail(f"the key {path} cannot be read ({error.strerror})", "gateway bundle keygen makes one")


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
        with suppress(OSError):
            path.chmod(0o644)
    except OSError as error:
        fail(f"{path} cannot be written ({error.strerror})")
