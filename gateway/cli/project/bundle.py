"""`gateway bundle`: pack a project into one file, sign it and verify it."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.app import (
    MOST_NUMBER,
    Bundle,
    BundleManifest,
    InvalidBundle,
    hash_files,
    load_bundle,
    pack_bundle,
    read_bundle,
    read_project_files,
    sign_manifest,
    signer_key_id,
    unpack_bundle,
    verify_bundle,
    write_atomic,
)
from gateway.audit import SigningKey, VerifyKey
from gateway.cli.operations.audit import write_all
from gateway.cli.options import (
    DEFAULT_FOLDER,
    BundleKeysOption,
    EnvironmentOption,
    KeyFileArgument,
    OutputOption,
    PoliciesOption,
    ProjectOption,
)
from gateway.cli.output import fail, parse_time, print_json, print_line, print_note, print_pairs, stderr, stdout
from gateway.cli.project_loader import find_project, load_with_environ, require_snapshot, require_valid
from gateway.errors import GatewayError

_DAYS: Final = 90
_MOST_KEY: Final = 64 << 10

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Build, sign and verify bundles.")

File = Annotated[Path, typer.Argument(help="The bundle.")]


@app.command("build")
def build(
    file: Annotated[Path, typer.Argument(help="Where to write it.")],
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    number: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_NUMBER,
            help="Must be higher than that of earlier bundles; without it, the seconds since 1970.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="For how many days it is valid.")] = _DAYS,
    not_before: Annotated[
        datetime | None,
        typer.Option(parser=parse_time, metavar="MOMENT", help="When it becomes valid.", show_default=False),
    ] = None,
    commit: Annotated[str | None, typer.Option(help="The commit that it was made from, for information.")] = None,
) -> None:
    """Write a valid project as one file. Exit codes: 0 written, 1 the project has errors, 2 wrong use."""
    project = find_project(folder, policies)
    revision = require_snapshot(
        require_valid(load_with_environ(project, environment=environment, today=None), project)
    ).revision
    now = datetime.now(UTC).replace(microsecond=0)
    try:
        contents = read_project_files({"configs": project.configs, "policies": project.policies})
        manifest = BundleManifest(
            number or int(now.timestamp()),
            now,
            now + timedelta(days=days),
            hash_files(contents),
            not_before,
            commit,
            revision,
        )
        content = pack_bundle(contents, manifest.encode())
        _check_complete(load_bundle(content), revision, environment=environment)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    _write(file, content)
    print_line(
        stdout(), f"bundle {manifest.number} with {len(contents)} files of revision {revision[:12]} is in {file}"
    )
    print_note("it is not signed; run gateway bundle sign")


@app.command("sign")
def sign(
    file: File,
    key: Annotated[Path, typer.Option(help="The private key; gateway bundle keygen creates one.")],
) -> None:
    """Sign a bundle; an earlier signature is replaced. Exit codes: 0 signed, 1 it is not a bundle, 2 wrong use."""
    try:
        signing = SigningKey.load(_read_key(key))
        bundle = _read(str(file))
        verify_bundle(bundle, (), now=bundle.manifest.not_before or bundle.manifest.created)
        signature = sign_manifest(bundle.manifest_bytes, signing)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    _write(file, pack_bundle(bundle.contents, bundle.manifest_bytes, signature=signature))
    print_line(stdout(), f"bundle {bundle.manifest.number} is signed with key {signing.id}")


@app.command("verify")
def verify(
    where: Annotated[str, typer.Argument(metavar="FILE|URL", help="The bundle.")],
    key: BundleKeysOption = None,
    at_least: Annotated[int, typer.Option(help="The lowest number that is accepted.")] = 0,
    output: OutputOption = "text",
) -> None:
    """Check that a bundle is complete, signed and valid now. Exit codes: 0 it is, 1 it is not, 2 wrong use."""
    try:
        keys = [VerifyKey.load(_read_key(each)) for each in key or ()]
        bundle = _read(where)
        verify_bundle(bundle, keys, now=datetime.now(UTC))
        if bundle.manifest.number < at_least:
            raise InvalidBundle(f"the bundle has number {bundle.manifest.number}, but at least {at_least} is required")
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    _print_manifest(bundle, keys, is_json=output == "json")


@app.command("keygen")
def keygen(file: KeyFileArgument) -> None:
    """Write a new key for bundles that only its owner can read, and its public half to FILE.pub."""
    key = SigningKey.generate()
    public = file.with_name(f"{file.name}.pub")
    write_all([(file, key.pem(), 0o600), (public, key.public.pem(), 0o644)])
    print_line(stdout(), f"key {key.id} for bundles is in {file}, its public half in {public}")
    print_line(stderr(), "Store it where bundles are signed, and give gateways only the public half.")


def _print_manifest(bundle: Bundle, keys: Sequence[VerifyKey], *, is_json: bool) -> None:
    manifest = bundle.manifest
    signed = signer_key_id(bundle)
    data = {
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
        print_json(data)
        return
    print_pairs(stdout(), [(name, str(value)) for name, value in data.items() if value is not None])
    if not keys:
        print_note("the signature was not verified: name the public key with --key" if signed else "it is not signed")


def _check_complete(bundle: Bundle, revision: str, *, environment: str | None) -> None:
    """Raise `InvalidBundle` unless the unpacked bundle is valid and has the same revision as the project."""
    taken = unpack_bundle(bundle.contents, {}, content=b"", warning=None)
    try:
        found = load_with_environ(taken.project, environment=environment, today=None)
        problem = next((each for each in found.diagnostics if each.is_error), None)
        if problem is not None:
            raise InvalidBundle(f"the bundle alone has an error: {problem.message}", help=problem.help)
        if require_snapshot(found).revision != revision:
            raise InvalidBundle("the bundle would not be the same revision as the project")
    finally:
        taken.release()


def _read(where: str) -> Bundle:
    return load_bundle(read_bundle(where))


def _read_key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_KEY)
    except OSError as error:
        fail(f"the key {path} cannot be read ({error.strerror})", "gateway bundle keygen creates one")


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomic(path, content)
        with suppress(OSError):
            path.chmod(0o644)
    except OSError as error:
        fail(f"{path} cannot be written ({error.strerror})")
