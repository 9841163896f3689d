"""The wheel of this installation, which a device gets: also of an editable one, and of one with no index behind it."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import edgeopt
from edgeopt.system.disk import assets

_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""Date of every file in it, so that the same files make the same wheel; a zip knows no earlier one."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """An installable archive of the running edgeopt."""

    name: str
    """File name by the binary distribution format."""
    data: bytes
    extras: frozenset[str]
    """Names of the extras that its metadata knows."""

    @property
    def key(self) -> str:
        """Version and hash: two installations with one key are the same."""
        return f"{self.name.split('-')[1]}-{hashlib.sha256(self.data).hexdigest()[:16]}"


def make_wheel() -> Wheel:
    """Return a wheel of the running edgeopt.

    Source: PyPA, Binary distribution format 1.0.
    """
    metadata = distribution("edgeopt")
    stem = f"edgeopt-{metadata.version}"
    files = dict(_package_files())
    files[f"{stem}.dist-info/METADATA"] = (metadata.read_text("METADATA") or "").encode()
    files[f"{stem}.dist-info/entry_points.txt"] = (metadata.read_text("entry_points.txt") or "").encode()
    wheel = "Wheel-Version: 1.0\nGenerator: edgeopt\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{stem}.dist-info/WHEEL"] = wheel.encode()
    record = f"{stem}.dist-info/RECORD"
    files[record] = "".join(f"{line}\n" for line in (*map(_recorded, files.items()), f"{record},,")).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), data, zipfile.ZIP_DEFLATED)
    extras = frozenset(metadata.metadata.get_all("Provides-Extra") or ())
    return Wheel(f"{stem}-py3-none-any.whl", packed.getvalue(), extras)


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the package and the shipped data, by their names in the wheel."""
    package = Path(edgeopt.__file__).parent
    folders = {"edgeopt": package, **{f"edgeopt/{name}": assets.folder(name) for name in ("models", "targets")}}
    seen: set[str] = set()
    for prefix, folder in folders.items():
        for path in sorted(folder.rglob("*")):
            name = f"{prefix}/{path.relative_to(folder).as_posix()}"
            if path.is_file() and "__pycache__" not in path.parts and name not in seen:
                seen.add(name)
                yield name, path.read_bytes()


def _recorded(file: tuple[str, bytes]) -> str:
    name, data = file
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"
