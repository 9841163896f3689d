"""The address of a device, as `--on` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from edgeopt.errors import EdgeoptError
from edgeopt.system.text import short

_FORM = "write ssh://USER@HOST:PORT; user and port may be left out, HOST may be a name of ~/.ssh/config"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a device is reached."""

    host: str
    user: str = ""
    """Empty: as ssh is configured."""
    port: int | None = None
    """None: as ssh is configured."""

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"ssh://{user}{self.host}{port}"


def read_address(text: str) -> Address:
    """Return an address.

    Raises:
        EdgeoptError: If it is none, or is reached by something else than ssh.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise EdgeoptError(f"{short(text)} is no address: {error}", remedy=_FORM) from error
    if parts.scheme == "adb":
        raise EdgeoptError("a phone behind adb cannot be reached yet", remedy=_FORM)
    if parts.scheme != "ssh" or not _is_plain(parts):
        raise EdgeoptError(f"{short(text)} is no address of a device", remedy=_FORM)
    return Address(parts.hostname or "", parts.username or "", port)


def _is_plain(parts: SplitResult) -> bool:
    """Whether there are a host, perhaps a user and a port, and nothing that ssh would take for an option."""
    names = (parts.hostname or "", parts.username or "")
    has_more = parts.path.strip("/") or parts.query or parts.fragment or parts.password
    return bool(names[0]) and not has_more and not any(name.startswith("-") for name in names)
