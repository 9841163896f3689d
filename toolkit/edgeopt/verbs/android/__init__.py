"""Models on an Android phone behind adb.

Android has no Python, so that no command runs there as it does behind ssh: the command runs here, and the phone is the
machine that computes for it (`place.py`). A program in C++ (`examples/cpp/runner`) runs models there, and times them.
No phone was at hand when it was written; what was tried stands in docs/devices.md.
"""

from __future__ import annotations

from edgeopt.errors import EdgeoptError, UnsupportedError

SCHEME = "adb://"
VERBS = ("bench", "compare", "check", "optimize", "run")
"""Commands whose models run on a phone."""


def is_phone(address: str) -> bool:
    """Return whether an address is that of a phone."""
    return address.startswith(SCHEME)


def require_verb(verb: str, address: str) -> None:
    """Raise unless the models of a command run on a phone.

    Raises:
        UnsupportedError: If it needs Python there.
    """
    if verb not in VERBS:
        raise UnsupportedError(
            f"edgeopt {verb} cannot run on {address}: Android has no Python, and edgeopt-runner runs models only",
            remedy=f"name one of edgeopt {', '.join(VERBS)}, or run {verb} here",
        )


def serial_in(address: str) -> str:
    """Return the serial number in an address of a phone; empty: whichever is connected.

    Raises:
        EdgeoptError: If it is none.
    """
    serial = address.removeprefix(SCHEME).removesuffix("/")
    if set(serial) - _OF_SERIALS:
        raise EdgeoptError(f"{address!r} names no phone", remedy="write adb://SERIAL, as `adb devices` shows it")
    return serial


_OF_SERIALS = {*"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:_-[]%()~@+"}
