"""A signature says who released a bundle: nothing that was changed, signed by another or signed before passes."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from pathlib import Path

import pytest
from fixture_bundles import bundle_with_test, reseal
from fixture_models import model, numbers

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import MANIFEST
from edgeopt.runtime.rollout.signature import (
    Signature,
    make_keys,
    manifest_hash,
    read_signature,
    require_newer,
    require_signed,
    sign_bundle,
    signature_file,
)

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> tuple[Path, Path]:
    private = tmp_path_factory.mktemp("keys") / "release.key"
    return private, make_keys(private)


@pytest.fixture
def bundle(tmp_path) -> Path:
    net = model("net (float[1,3,8,8] x) => (float[1,4,6,6] y) { y = Conv(x, w) }", w=numbers(4, 3, 3, 3))
    samples = [{"x": numbers(1, 3, 8, 8)}]
    return bundle_with_test(
        tmp_path / "out" / "bundle", net, find_recipe("tensors"), samples, {"m.onnx": net.data}
    ).folder


def test_a_signed_bundle_passes_wherever_it_is_named(bundle, keys):
    signature = sign_bundle(bundle, keys[0], 7)
    assert signature.serial == 7
    assert signature_file(bundle) == bundle.parent / "bundle.signature.json"
    assert require_signed(bundle, keys[1]) == require_signed(bundle.parent, keys[1]) == signature
    assert read_signature(bundle) == signature


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_only_the_owner_reads_the_private_key(keys):
    assert stat.S_IMODE(os.stat(keys[0]).st_mode) == 0o600


def test_keys_are_never_written_over(keys):
    with pytest.raises(InvalidFileError, match="is there already"):
        make_keys(keys[0])


def test_an_unsigned_bundle_is_refused(bundle, keys):
    assert read_signature(bundle) is None
    with pytest.raises(InvalidFileError, match="is not signed"):
        require_signed(bundle, keys[1])


def test_a_bundle_that_was_changed_and_sealed_anew_is_refused(bundle, keys):
    sign_bundle(bundle, keys[0], 1)
    reseal(bundle, lambda values: values["tools"].update(evil="1"))
    with pytest.raises(InvalidFileError, match="was changed after it was signed"):
        require_signed(bundle, keys[1])


def test_a_signature_with_another_hash_serial_or_key_is_refused(bundle, keys, tmp_path):
    sign_bundle(bundle, keys[0], 1)
    path = signature_file(bundle)
    signed = json.loads(path.read_text())
    for change in (
        {"serial": 2},
        {"signature": base64.b64encode(bytes(64)).decode()},
        {"signature": "no base64!"},
        {"signature": ""},
    ):
        path.write_text(json.dumps(signed | change))
        with pytest.raises(InvalidFileError, match="is not signed with"):
            require_signed(bundle, keys[1])
    reseal(bundle, lambda values: values["tools"].update(evil="1"))
    path.write_text(json.dumps(signed | {"manifest_sha256": manifest_hash(bundle)}))
    with pytest.raises(InvalidFileError, match="is not signed with"):
        require_signed(bundle, keys[1])
    other = tmp_path / "other.key"
    make_keys(other)
    signature = sign_bundle(bundle, other, 1)
    with pytest.raises(InvalidFileError, match=f"the signature names {signature.key_id}"):
        require_signed(bundle, keys[1])


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1}', '{"schema": 9}', "[1]", '{"schema": 1, "serial": -1}'])
def test_a_damaged_signature_is_one_clear_line(bundle, keys, text):
    signature_file(bundle).write_text(text)
    with pytest.raises(InvalidFileError):
        require_signed(bundle, keys[1])


def test_files_that_hold_no_key_are_refused(bundle, keys, tmp_path):
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no key")
    with pytest.raises(InvalidFileError, match="holds no private key"):
        sign_bundle(bundle, wrong, 1)
    with pytest.raises(InvalidFileError, match="holds no private key"):
        sign_bundle(bundle, keys[1], 1)
    sign_bundle(bundle, keys[0], 1)
    for path in (wrong, keys[0]):
        with pytest.raises(InvalidFileError, match="holds no public key"):
            require_signed(bundle, path)


def test_keys_of_another_kind_are_refused(bundle, keys, tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    path, public = tmp_path / "ec.pem", tmp_path / "ec.pub"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(InvalidFileError, match="another kind"):
        sign_bundle(bundle, path, 1)
    sign_bundle(bundle, keys[0], 1)
    with pytest.raises(InvalidFileError, match="another kind"):
        require_signed(bundle, public)


def test_what_is_no_bundle_is_not_signed(tmp_path, keys):
    with pytest.raises(InvalidFileError, match=MANIFEST):
        sign_bundle(tmp_path, keys[0], 1)


def test_an_old_release_is_refused():
    signature = Signature(5, "", "", "")
    require_newer(signature, None)
    require_newer(signature, 4)
    for highest in (5, 6):
        with pytest.raises(EdgeoptError, match=f"release 5 is not newer than {highest}"):
            require_newer(signature, highest)


def test_a_release_that_a_clock_ahead_numbered_is_told_with_the_way_out():
    with pytest.raises(EdgeoptError, match="is not newer") as refused:
        require_newer(Signature(5, "", "", ""), 4_102_444_800)
    assert "--release 4102444801" in refused.value.remedy
