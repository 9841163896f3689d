"""How places of this machine are called on a device, and what the device says of them, as it would be said here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlacesThere:
    """The folder of a device that mirrors this machine, and the places in it that were typed in another way."""

    mirror: str
    """Empty: nothing is mirrored there."""
    typed: Mapping[str, str] = field(default_factory=dict)
    """Places as they were typed, by their names in the mirror; all others are whole paths of this machine."""

    def named_here(self, text: bytes) -> bytes:
        """Return a text of the device in which places are called as on this machine."""
        if not self.mirror:
            return text
        names = sorted(self.typed, key=len, reverse=True)
        known = "|".join(re.escape(name) for name in names)
        typed = rf"(?:({known})(?![\w.-]))?" if known else "()"
        pattern = re.compile(f"{re.escape(self.mirror)}/{typed}".encode())
        here = {name.encode(): text.encode() for name, text in self.typed.items()}
        return pattern.sub(lambda match: here.get(match[1] or b"", b"/"), text)
