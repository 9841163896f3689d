"""The signature of a bundle: who released it, and as which release. Ed25519 (RFC 8032), by `cryptography`.

It lies beside the bundle, in `bundle.signature.json`, and covers the manifest, which has the hash of every other file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time
from typing import Annotated, Any, Final

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.runtime.bundles.folder import MANIFEST
from edgeopt.system.declared.optional import require
from edgeopt.system.disk.files import read_file, require_writable, write_beside
from edgeopt.system.toml import Within, parse_table, read_object

SCHEMA: Final = 1
_CONTEXT: Final = b"edgeopt bundle 1\n"
"""Keeps a signature from being one of anything else that the key signs."""
_MOST_BYTES: Final = 64 << 10
_LARGEST_SERIAL: Final = 2**53
_AHEAD_S: Final = 86400.0
"""Clocks of two machines differ by less."""
_NEW_KEY: Final = "make a pair with edgeopt sign --new-key FILE"
_SIGN_AGAIN: Final = "sign the bundle: edgeopt sign BUNDLE --key FILE"


@dataclass(frozen=True, slots=True)
class Signature:
    """A release of a bundle, signed."""

    serial: Annotated[int, Within(0, _LARGEST_SERIAL)]
    """Higher than that of every release before; a device refuses a lower one than it has seen."""
    manifest_sha256: str
    key_id: str
    """First 16 digits of the SHA-256 of the public key, to name it in messages."""
    signature: str
    """Base64 of 64 bytes."""


def signature_file(bundle: Path) -> Path:
    """Return where the signature of a bundle lies: beside its folder."""
    folder = _folder_of(bundle)
    return folder.with_name(f"{folder.name}.signature.json")


def make_keys(path: Path) -> Path:
    """Write a new private key, which only its owner reads, and beside it the public one; return the latter's path.

    Raises:
        MissingDependencyError: If cryptography is not installed.
        InvalidFileError: If one of the files is there already, or cannot be written.
    """
    serialization, ed25519 = _modules()
    public_path = path.with_name(f"{path.name}.pub")
    for each in (path, public_path):
        if each.exists():
            raise InvalidFileError(f"{each} is there already", remedy="name another file: a key is never written over")
        require_writable(each)
    private = ed25519.Ed25519PrivateKey.generate()
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
    except OSError as error:
        raise InvalidFileError(f"{path} cannot be written: {error.strerror}", remedy="name another file") from error
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_beside(public_path, public)
    return public_path


def sign_bundle(bundle: Path, key: Path, serial: int | None = None) -> Signature:
    """Sign a bundle, and write the signature beside it.

    Args:
        bundle: Its folder.
        key: File of the private key.
        serial: Number of the release; None: the seconds since 1970.

    Raises:
        MissingDependencyError: If cryptography is not installed.
        InvalidFileError: If the file holds no Ed25519 key, or the signature cannot be written.
    """
    serialization, ed25519 = _modules()
    remedy = f"pass a private key of Ed25519 without a password; {_NEW_KEY}"
    try:
        private = serialization.load_pem_private_key(read_file(key, remedy=remedy, most_bytes=_MOST_BYTES), None)
    except (ValueError, TypeError) as error:
        raise InvalidFileError(f"{key} holds no private key that can be used", remedy=remedy) from error
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise InvalidFileError(f"{key} holds a key of another kind", remedy=remedy)
    serial, digest = int(time()) if serial is None else serial, manifest_hash(bundle)
    signed = base64.b64encode(private.sign(_message(serial, digest))).decode()
    signature = Signature(serial, digest, _key_id(private.public_key()), signed)
    write_beside(signature_file(bundle), json.dumps({"schema": SCHEMA, **asdict(signature)}, indent=2) + "\n")
    return signature


def read_signature(bundle: Path) -> Signature | None:
    """Return what lies beside a bundle as its signature, unchecked; None where nothing does.

    Raises:
        InvalidFileError: If it is damaged.
    """
    path = signature_file(bundle)
    if not path.is_file():
        return None
    values: dict[str, Any] = read_object(path, schema=SCHEMA, remedy=_SIGN_AGAIN, most_bytes=_MOST_BYTES)
    return parse_table(Signature, {key: value for key, value in values.items() if key != "schema"}, str(path))


def require_signed(bundle: Path, public_key: Path) -> Signature:
    """Return the signature of a bundle, checked with a public key.

    Raises:
        MissingDependencyError: If cryptography is not installed.
        InvalidFileError: If the file holds no public key, or the bundle is not signed with it.
    """
    public = read_public_key(public_key)
    signature, folder = read_signature(bundle), _folder_of(bundle)
    if signature is None:
        raise InvalidFileError(f"{folder} is not signed, and {public_key} says who may release", remedy=_SIGN_AGAIN)
    if signature.manifest_sha256 != manifest_hash(bundle):
        raise InvalidFileError(f"{folder} was changed after it was signed", remedy=_SIGN_AGAIN)
    try:
        public.verify(
            base64.b64decode(signature.signature, validate=True), _message(signature.serial, signature.manifest_sha256)
        )
    except (_invalid_signature(), binascii.Error, ValueError) as error:
        known = _key_id(public)
        problem = f"{folder} is not signed with {public_key} (key {known}, the signature names {signature.key_id})"
        raise InvalidFileError(problem, remedy="sign it with the private key of this pair") from error
    return signature


def read_public_key(path: Path) -> Any:
    """Return a public key.

    Raises:
        MissingDependencyError: If cryptography is not installed.
        InvalidFileError: If the file holds none of Ed25519.
    """
    serialization, ed25519 = _modules()
    remedy = "pass the public key, as edgeopt sign --new-key FILE writes it"
    try:
        public = serialization.load_pem_public_key(read_file(path, remedy=remedy, most_bytes=_MOST_BYTES))
    except ValueError as error:
        raise InvalidFileError(f"{path} holds no public key", remedy=remedy) from error
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise InvalidFileError(f"{path} holds a key of another kind", remedy=remedy)
    return public


def manifest_hash(bundle: Path) -> str:
    """Return the SHA-256 of a bundle's manifest.

    Raises:
        InvalidFileError: If it has none.
    """
    path = _folder_of(bundle) / MANIFEST
    return hashlib.sha256(read_file(path, remedy="name the folder of a bundle")).hexdigest()


def _folder_of(bundle: Path) -> Path:
    """Return the folder that holds the manifest: itself, or `bundle` in the output of `optimize`."""
    return bundle if (bundle / MANIFEST).is_file() or not (bundle / "bundle").is_dir() else bundle / "bundle"


def _message(serial: int, digest: str) -> bytes:
    return _CONTEXT + f"{serial}\n{digest}\n".encode()


def _key_id(public: Any) -> str:
    serialization, _ = _modules()
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def _modules() -> tuple[Any, Any]:
    ask = {"extra": "sign", "purpose": "signing bundles"}
    return (
        require("cryptography.hazmat.primitives.serialization", **ask),
        require("cryptography.hazmat.primitives.asymmetric.ed25519", **ask),
    )


def _invalid_signature() -> type[Exception]:
    kind: type[Exception] = require("cryptography.exceptions", extra="sign", purpose="signing bundles").InvalidSignature
    return kind


def require_newer(signature: Signature, highest: int | None) -> None:
    """Raise where a release is not newer than those that were here: an old one may hold what a newer one mended.

    Raises:
        EdgeoptError: If so.
    """
    if highest is not None and signature.serial <= highest:
        remedy = "sign the bundle anew: releases are numbered by the clock; edgeopt push --back returns to the last"
        if highest > time() + _AHEAD_S:
            remedy = (
                f"{highest} is ahead of the clock: sign the bundle with --release {highest + 1}, and each one later"
            )
        raise EdgeoptError(f"release {signature.serial} is not newer than {highest}, which was here", remedy=remedy)
