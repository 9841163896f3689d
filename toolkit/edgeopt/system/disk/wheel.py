"""The wheel of this installation, which a device gets: also of an editable one, and of one with no index behind it."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import edgeopt
from edgeopt.system.disk import assets

_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""Date of every file in it, so that the same files make the same wheel; a zip knows no earlier one."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """An installable archive of the running edgeopt; it is packed only where a device does not have it yet."""

    name: str
    """File name by the binary distribution format."""
    files: Mapping[str, bytes]
    """Contents by their names in it; the record of them is made with the archive."""
    extras: frozenset[str]
    """Names of the extras that its metadata knows."""

    @property
    def key(self) -> str:
        """Version and hash: two installations with one key are the same."""
        digest = hashlib.sha256()
        for name, data in self.files.items():
            digest.update(f"{name}\0{len(data)}\0".encode())
            digest.update(data)
        return f"{self.name.split('-')[1]}-{digest.hexdigest()[:16]}"

    def pack(self) -> bytes:
        """Return the archive, which takes six times as long as reading the files.

        Source: PyPA, Binary distribution format 1.0.
        """
        record = f"{_information(self.name)}/RECORD"
        lines = (*map(_recorded, self.files.items()), f"{record},,")
        files = {**self.files, record: "".join(f"{line}\n" for line in lines).encode()}
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(zipfile.ZipInfo(name, _EARLIEST), data, zipfile.ZIP_DEFLATED)
        return packed.getvalue()


def make_wheel() -> Wheel:
    """Return a wheel of the running edgeopt."""
    metadata = distribution("edgeopt")
    name = f"edgeopt-{metadata.version}-py3-none-any.whl"
    about = {
        "METADATA": metadata.read_text("METADATA") or "",
        "entry_points.txt": metadata.read_text("entry_points.txt") or "",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: edgeopt\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files = dict(_package_files())
    files |= {f"{_information(name)}/{part}": text.encode() for part, text in about.items()}
    return Wheel(name, files, frozenset(metadata.metadata.get_all("Provides-Extra") or ()))


def _information(name: str) -> str:
    """Return the folder in a wheel that tells about it."""
    return f"{'-'.join(name.split('-')[:2])}.dist-info"


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
