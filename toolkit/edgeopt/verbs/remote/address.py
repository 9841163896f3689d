"""The address of a device, as `--on` takes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeopt.errors import EdgeoptError
from edgeopt.system.text import short

_FORM = "write ssh://USER@HOST:PORT; user and port may be left out, HOST may be a name of ~/.ssh/config"
_SSH = re.compile(
    r"ssh://(?:(?P<user>\w[\w.+-]*)@)?(?:(?P<host>\w[\w.-]*)|\[(?P<number>[0-9A-Fa-f:.]+(?:%\w+)?)\])(?::(?P<port>\d+))?/?",
    re.ASCII,
)
"""Nothing that ssh takes for an option, or a shell behind a ProxyCommand for anything else than a name."""
_PORTS = range(1, 65536)


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
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port else ""
        return f"ssh://{user}{host}{port}"


def read_address(text: str) -> Address:
    """Return an address.

    Raises:
        EdgeoptError: If it is none, or is reached by something else than ssh.
    """
    if text.startswith("adb://"):
        raise EdgeoptError(f"{short(text)} is a phone, which has no Python", remedy=_FORM)
    match = _SSH.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or (port is not None and port not in _PORTS):
        raise EdgeoptError(f"{short(text)} is no address of a device", remedy=_FORM)
    return Address(match["host"] or match["number"], match["user"] or "", port)
