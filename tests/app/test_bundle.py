"""Bundles: contents, signatures and validity period; anything that is not a bundle is refused."""

import io
import json
import tarfile
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.app.bundle import (
    LARGEST,
    Bundle,
    BundleManifest,
    InvalidBundle,
    hash_files,
    load_bundle,
    pack_bundle,
    sign_manifest,
    signer_key_id,
    verify_bundle,
    verify_number,
)
from gateway.app.project_files import (
    InvalidProjectFiles,
    change_token,
    hash_folders,
    hash_project_files,
    read_project_files,
)
from gateway.audit.signing_keys import SigningKey, VerifyKey

NOW = datetime(2026, 11, 16, 10, tzinfo=UTC)
KEY = SigningKey.generate()
FILES = {"configs/gateway.yaml": b"kind: Gateway\n", "policies/policy.csv": b"p, a, b, c, d, allow\n"}


def manifest(**changed: object) -> BundleManifest:
    given: dict[str, object] = {
        "number": 7,
        "created": NOW - timedelta(days=1),
        "expires": NOW + timedelta(days=1),
        "files": hash_files(FILES),
        **changed,
    }
    return BundleManifest(**given)  # type: ignore[arg-type] # tests name what they change


def signed(found: BundleManifest | None = None, *, files: dict[str, bytes] = FILES, key: SigningKey = KEY) -> bytes:
    content = (found or manifest()).encode()
    return pack_bundle(files, content, signature=sign_manifest(content, key))


def checked(content: bytes, *keys: VerifyKey) -> Bundle:
    bundle = load_bundle(content)
    verify_bundle(bundle, keys or (KEY.public,), now=NOW)
    return bundle


def test_signed_bundle_is_taken_as_it_was_packed() -> None:
    bundle = checked(signed(manifest(commit="abc", not_before=NOW)))

    assert bundle.contents == FILES
    assert bundle.manifest == manifest(commit="abc", not_before=NOW)
    assert signer_key_id(bundle) == KEY.id


def test_same_content_is_the_same_bytes() -> None:
    assert signed() == signed()


def changed_file() -> bytes:
    return signed(files={**FILES, "policies/policy.csv": b"p, a, b, c, d, deny\n"})


def unlisted_file() -> bytes:
    return signed(files={**FILES, "configs/more.yaml": b""})


def missing_file() -> bytes:
    return signed(files={"configs/gateway.yaml": FILES["configs/gateway.yaml"]})


def changed_manifest() -> bytes:
    content = manifest().encode()
    return pack_bundle(FILES, manifest(number=8).encode(), signature=sign_manifest(content, KEY))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        pytest.param(lambda: pack_bundle(FILES, manifest().encode()), "not signed", id="unsigned"),
        pytest.param(lambda: signed(key=SigningKey.generate()), "signed with an unknown key", id="unknown key"),
        pytest.param(changed_manifest, "does not match the manifest", id="another manifest"),
        pytest.param(changed_file, "does not have the digest", id="tampered file"),
        pytest.param(unlisted_file, "does not list", id="file beside the list"),
        pytest.param(missing_file, "lacks a file", id="file gone"),
        pytest.param(lambda: signed(manifest(expires=NOW)), "expired at", id="expired"),
        pytest.param(lambda: signed(manifest(not_before=NOW + timedelta(hours=1))), "is not valid until", id="early"),
        pytest.param(
            lambda: pack_bundle(FILES, manifest().encode(), signature=b"[]"), "cannot be read", id="no signature at all"
        ),
    ],
)
def test_bundle_that_must_not_be_used_is_refused(made: Callable[[], bytes], words: str) -> None:
    with pytest.raises(InvalidBundle, match=words):
        checked(made())


def test_signature_of_an_anchor_is_none_of_a_bundle() -> None:
    content = manifest().encode()
    signature = sign_manifest(content, KEY)
    data = json.loads(signature)
    data["signature"] = b64encode(KEY.sign(content)).decode()

    with pytest.raises(InvalidBundle, match="does not match the manifest"):
        checked(pack_bundle(FILES, content, signature=json.dumps(data).encode()))


@pytest.mark.parametrize(
    ("number", "digest", "words"),
    [
        pytest.param(6, "x", "7 was already in use", id="older"),
        pytest.param(7, "y", "another bundle with number 7", id="same number, other content"),
    ],
)
def test_earlier_bundle_does_not_come_back(number: int, digest: str, words: str) -> None:
    with pytest.raises(InvalidBundle, match=words):
        verify_number(manifest(number=number), digest, latest=7, latest_digest="x")


def test_same_bundle_and_later_ones_are_taken() -> None:
    verify_number(manifest(number=7), "x", latest=7, latest_digest="x")
    verify_number(manifest(number=8), "y", latest=7, latest_digest="x")


def tar_of(*members: tarfile.TarInfo) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        content = manifest().encode()
        about = tarfile.TarInfo("manifest.json")
        about.size = len(content)
        tar.addfile(about, io.BytesIO(content))
        for member in members:
            tar.addfile(member, io.BytesIO(b""))
    return written.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type = kind
    found.linkname = "/etc/passwd"
    return found


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([member("configs/../../etc/cron.d/x")], id="way out"),
        pytest.param([member("/etc/passwd")], id="absolute"),
        pytest.param([member("elsewhere/a.yaml")], id="another folder"),
        pytest.param([member("configs")], id="a folder's name"),
        pytest.param([member("configs//a.yaml")], id="two slashes"),
        pytest.param([member("configs/.hidden.yaml")], id="hidden"),
        pytest.param([member("configs/a\\b.yaml")], id="backslash"),
        pytest.param([member("configs/a.yaml", tarfile.SYMTYPE)], id="link"),
        pytest.param([member("configs/a.yaml", tarfile.LNKTYPE)], id="hard link"),
        pytest.param([member("configs/a", tarfile.DIRTYPE)], id="folder"),
        pytest.param([member("configs/a", tarfile.FIFOTYPE)], id="pipe"),
        pytest.param([member("configs/a.yaml"), member("configs/a.yaml")], id="twice"),
        pytest.param([member("manifest.json")], id="second manifest"),
    ],
)
def test_hostile_archives_are_refused(members: list[tarfile.TarInfo]) -> None:
    with pytest.raises(InvalidBundle):
        load_bundle(tar_of(*members))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{}", id="empty"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b"nonsense", id="no JSON"),
        pytest.param(manifest().encode().replace(b"gateway-bundle/1", b"gateway-bundle/2"), id="another format"),
        pytest.param(manifest().encode().replace(b'"number": 7', b'"number": -7'), id="negative"),
        pytest.param(manifest().encode().replace(b'"number": 7', b'"number": true'), id="no number"),
        pytest.param(manifest().encode().replace(b'"number": 7', b'"number": 7, "more": 1'), id="another field"),
        pytest.param(manifest(files={}).encode(), id="no files"),
        pytest.param(manifest(files={"configs/a.yaml": "short"}).encode(), id="no digest"),
        pytest.param(manifest(commit="x" * 201).encode(), id="long text"),
        pytest.param(manifest().encode().replace(b"2026-11-17T10:00:00Z", b"2026-11-17T10:00:00"), id="no zone"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidBundle, match="manifest"):
        load_bundle(pack_bundle(FILES, content))


def test_bundle_beyond_all_bounds_is_refused() -> None:
    large = pack_bundle({f"configs/{number}.yaml": bytes(17 << 20) for number in range(4)}, manifest().encode())

    with pytest.raises(InvalidBundle, match="too many files, or too large"):
        load_bundle(large)
    with pytest.raises(InvalidBundle, match="the bundle is too large"):
        load_bundle(bytes(LARGEST + 1))
    with pytest.raises(InvalidBundle, match="signature of the bundle is too large"):
        load_bundle(pack_bundle(FILES, manifest().encode(), signature=bytes(5000)))


def test_bundle_without_keys_is_checked_for_damage_alone() -> None:
    verify_bundle(load_bundle(pack_bundle(FILES, manifest().encode())), (), now=NOW)


def test_archive_without_a_manifest_is_none() -> None:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w"):
        pass

    with pytest.raises(InvalidBundle, match="no manifest"):
        load_bundle(written.getvalue())


@given(st.binary(max_size=2000), st.integers(0, 4000))
def test_damaged_bundle_is_refused_or_the_same(noise: bytes, at: int) -> None:
    content = signed()
    damaged = content[:at] + noise + content[at + len(noise) :]
    try:
        bundle = checked(damaged)
    except InvalidBundle:
        return

    assert bundle.contents == FILES


def test_contents_are_what_a_project_is_made_of(tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    (configs / "..data").mkdir(parents=True)
    (configs / "..data" / "a.yaml").write_bytes(b"a")
    (configs / "a.yaml").symlink_to("..data/a.yaml")
    (configs / "deep").mkdir()
    (configs / "deep" / "b.yml").write_bytes(b"b")
    (configs / "token.txt").write_bytes(b"a secret")
    (configs / ".hidden.yaml").write_bytes(b"h")
    (tmp_path / "outside.yaml").write_bytes(b"o")
    (configs / "out.yaml").symlink_to("../outside.yaml")
    folders = {"configs": configs, "policies": tmp_path / "policies"}

    found = read_project_files(folders)

    assert found == {"configs/a.yaml": b"a", "configs/deep/b.yml": b"b"}


def test_other_contents_are_another_digest_and_sign(tmp_path: Path) -> None:
    folders = {"configs": tmp_path}
    (tmp_path / "a.yaml").write_bytes(b"a")
    before = change_token(folders), hash_project_files(read_project_files(folders))
    (tmp_path / "a.new").write_bytes(b"b")
    (tmp_path / "a.new").rename(tmp_path / "a.yaml")
    after = change_token(folders), hash_project_files(read_project_files(folders))

    assert before[0] != after[0]
    assert before[1] != after[1]
    assert hash_folders(folders) == after[1]
    assert change_token(folders) == after[0]


def test_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("b.yaml")
    (tmp_path / "b.yaml").write_bytes(b"x" * (1 << 20))
    for number in range(65):
        (tmp_path / f"{number}.yaml").hardlink_to(tmp_path / "b.yaml")

    with pytest.raises(InvalidProjectFiles, match="64 MiB"):
        read_project_files({"configs": tmp_path})
