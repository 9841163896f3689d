"""The place of a bundle on a device: its versions, and the link `current` that an app follows.

    PLACE/current -> versions/3f9c...      Runtime.load("PLACE/current")
    PLACE/versions/3f9c.../bundle          and bundle.signature.json beside it
    PLACE/trusted.pub                      says who may release; absent: everybody who can write here
    PLACE/state.json                       what was pushed, and what became of it

The link is replaced in one step of the file system: an app that opens it gets the old bundle or the new one, whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.rollout.current import CURRENT, TRUSTED, VERSIONS
from edgeopt.runtime.rollout.signature import (
    Signature,
    manifest_hash,
    read_public_key,
    read_signature,
    require_newer,
    require_signed,
    signature_file,
)
from edgeopt.system.disk.files import require_space, write_beside
from edgeopt.system.disk.locks import lock_folder
from edgeopt.system.toml import parse_table, read_object

SCHEMA: Final = 1
_STATE = "state.json"
_PARTIAL = ".partial"
_KEPT: Final = 2
"""Versions that stay: the running one, and the one before it."""
_MOST_LISTED: Final = 100
_REMEDY: Final = "push into another folder, or mend it there"


class Fate(StrEnum):
    """The fate of a version."""

    RUNNING = "running"
    LEFT = "left"
    """Another took its place."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Version:
    """One version that was pushed."""

    name: str
    """First 12 digits of the SHA-256 of its manifest."""
    fate: Fate
    serial: int | None = None
    """Number of the signed release; None: it is not signed."""
    reason: str = ""
    """Why it was refused."""


@dataclass(frozen=True, slots=True)
class PlaceState:
    """The memory of a place."""

    versions: tuple[Version, ...] = ()
    """Versions in the order in which they were pushed, the last hundred."""
    highest_serial: int | None = None
    """Highest number of the releases that ran here; None: none was signed."""
    history: tuple[str, ...] = ()
    """Names of the versions that ran, the newest last: the way back."""


class BundlePlace:
    """A place that this process holds; others wait."""

    def __init__(self, folder: Path) -> None:
        """Take a folder as it is; see `open_place`."""
        self.folder = folder
        self.state = self._read()
        self._offered: Path | None = None
        """Key that is kept once a version runs that it signed: an app that restarts before must load what runs."""

    @property
    def current(self) -> Path:
        """The link that apps follow."""
        return self.folder / CURRENT

    @property
    def running(self) -> str:
        """Name of the version that runs; empty: none does."""
        return Path(os.readlink(self.current)).name if self.current.is_symlink() else ""

    @property
    def trusted(self) -> Path | None:
        """The public key that releases are signed with; None: none is needed."""
        path = self.folder / TRUSTED
        return path if path.is_file() else None

    def bundle_of(self, name: str) -> Path:
        """Return the folder of a version's bundle."""
        return self.folder / VERSIONS / name / "bundle"

    def trust(self, public_key: Path) -> None:
        """Take a public key, with which every release must be signed from now on.

        It is kept at once, unless a version runs that it did not sign: then only with the one that takes its place.

        Raises:
            InvalidFileError: If the file holds no public key.
            EdgeoptError: If another one is kept.
        """
        read_public_key(public_key)
        key = public_key.read_bytes()
        if self.trusted is not None and self.trusted.read_bytes() != key:
            raise EdgeoptError(
                f"{self.trusted} is another key",
                remedy="remove that file on the device to trust another one: whoever pushes must not be able to",
            )
        self._offered = public_key
        if not self.running or self._is_signed(self.running):
            self._keep_key()

    def _is_signed(self, name: str) -> bool:
        with suppress(EdgeoptError):
            return self._offered is not None and bool(require_signed(self.bundle_of(name), self._offered))
        return False

    def _keep_key(self) -> None:
        if self._offered is not None:
            write_beside(self.folder / TRUSTED, self._offered.read_bytes())

    def take_in(self, source: Path) -> Version:
        """Copy a bundle in, checked: its hashes, its signature where one is needed, and that it is no old release.

        Returns:
            The version; it does not run yet.

        Raises:
            InvalidFileError: If the bundle is damaged or not signed, or the disk is full.
            EdgeoptError: If a newer release was here.
        """
        bundle = read_bundle(source)
        signature = self._require_release(bundle.folder)
        name = manifest_hash(bundle.folder)[:12]
        # without a key nobody vouches for the number: it would keep all releases out once there is one
        is_vouched = (self.trusted or self._offered) is not None
        version = Version(name, Fate.LEFT, signature.serial if signature and is_vouched else None)
        if name == self.running:
            if self._offered and not self.trusted:
                shutil.copy(signature_file(bundle.folder), signature_file(self.bundle_of(name)))
                self._keep_key()
            return replace(version, fate=Fate.RUNNING)
        target = self.folder / VERSIONS / name
        partial = target.with_name(f"{name}{_PARTIAL}")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.parent.mkdir(parents=True, exist_ok=True)
            require_space(partial.parent, sum((bundle.folder / file).stat().st_size for file in bundle.files))
            shutil.copytree(bundle.folder, partial / "bundle")
            if signature:
                shutil.copy(signature_file(bundle.folder), signature_file(partial / "bundle"))
            read_bundle(partial / "bundle")  # what was copied is what counts
            self._require_release(partial / "bundle")
            shutil.rmtree(target, ignore_errors=True)  # it may be the way back: it goes when the same is there again
            partial.rename(target)
        except OSError as error:
            problem = f"{self.folder} cannot take the bundle in: {error.strerror or error}"
            raise InvalidFileError(problem, remedy="free disk space or correct the permissions") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return version

    def _require_release(self, bundle: Path) -> Signature | None:
        key = self.trusted or self._offered
        if key is None:
            return read_signature(bundle)
        signature = require_signed(bundle, key)
        is_running = manifest_hash(bundle)[:12] == self.running
        require_newer(signature, None if is_running else self.state.highest_serial)
        return signature

    def switch(self, version: Version) -> None:
        """Let a version run, in one step, and let older ones go but the one before it."""
        self._link(version.name)
        self._keep_key()
        highest = [number for number in (self.state.highest_serial, version.serial) if number is not None]
        history = (*(name for name in self.state.history if name != version.name), version.name)[-_KEPT:]
        self._store(replace(version, fate=Fate.RUNNING), max(highest, default=None), history)
        self._remove_others(history)

    def refuse(self, version: Version, reason: str) -> None:
        """Let a version go that was not proven."""
        self._store(replace(version, fate=Fate.REFUSED, reason=reason), self.state.highest_serial, self.state.history)
        self._remove_others(self.state.history)

    def go_back(self) -> Version:
        """Let the version run that ran before, in one step; return it.

        Raises:
            EdgeoptError: If there is none.
        """
        before = [name for name in self.state.history if name != self.running and self.bundle_of(name).is_dir()]
        if not before:
            raise EdgeoptError(f"{self.folder} holds no version to go back to", remedy="push the one that should run")
        name = before[-1]
        if self.trusted is not None:
            require_signed(self.bundle_of(name), self.trusted)
        read_bundle(self.bundle_of(name))
        self._link(name)
        known = next((version for version in self.state.versions if version.name == name), Version(name, Fate.LEFT))
        history = (*(other for other in self.state.history if other != name), name)
        self._store(replace(known, fate=Fate.RUNNING), self.state.highest_serial, history)
        return replace(known, fate=Fate.RUNNING)

    def _link(self, name: str) -> None:
        new = self.folder / f"{CURRENT}{_PARTIAL}"
        new.unlink(missing_ok=True)
        try:
            new.symlink_to(Path(VERSIONS, name), target_is_directory=True)
            new.replace(self.current)
        except OSError as error:
            problem = f"{self.current} cannot be set: {error.strerror or error}"
            raise InvalidFileError(
                problem, remedy="the file system must have links, and the folder be writable"
            ) from error

    def _store(self, version: Version, highest: int | None, history: tuple[str, ...]) -> None:
        others = [
            replace(other, fate=Fate.LEFT) if other.fate is version.fate is Fate.RUNNING else other
            for other in self.state.versions
            if other.name != version.name
        ]
        self.state = PlaceState((*others, version)[-_MOST_LISTED:], highest, history)
        write_beside(self.folder / _STATE, json.dumps({"schema": SCHEMA, **asdict(self.state)}, indent=2) + "\n")

    def _remove_others(self, kept: tuple[str, ...]) -> None:
        for path in (self.folder / VERSIONS).iterdir():
            if path.name not in (*kept, self.running):
                shutil.rmtree(path, ignore_errors=True)

    def _read(self) -> PlaceState:
        path = self.folder / _STATE
        if not path.is_file():
            return PlaceState()
        values = read_object(path, schema=SCHEMA, remedy=_REMEDY)
        return parse_table(PlaceState, {key: value for key, value in values.items() if key != "schema"}, str(path))


def whole_place(text: str) -> Path:
    """Return the folder that a text names, the same wherever a command runs.

    Raises:
        EdgeoptError: If it depends on that.
    """
    folder = Path(text).expanduser()
    if not folder.is_absolute():
        raise EdgeoptError(f"{text} depends on where the command runs", remedy="write a whole path, such as /opt/door")
    return folder


@contextmanager
def open_place(folder: Path) -> Iterator[BundlePlace]:
    """Hold a place, new or old, until the end of the block.

    Raises:
        InvalidFileError: If the folder holds something else, is damaged or cannot be written.
        EdgeoptError: If another push works there.
    """
    others = {CURRENT, VERSIONS, TRUSTED, _STATE, ".lock", f"{CURRENT}{_PARTIAL}"}
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    if (foreign := sorted(present - others)) and not (folder / _STATE).is_file():
        raise InvalidFileError(
            f"{folder} holds something else: {', '.join(foreign[:3])}", remedy="name an empty folder"
        )
    lock = lock_folder(folder, held="another push works in", remedy="push into another folder")
    try:
        yield BundlePlace(folder)
    finally:
        with suppress(OSError):
            lock.close()
