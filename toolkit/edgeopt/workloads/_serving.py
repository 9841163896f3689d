"""`serve`: the options of every kind, and how they become those of the server."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.common_options import threads_option
from edgeopt.runtime.serve.limits import Limits
from edgeopt.system.declared.options import Syntax, option

if TYPE_CHECKING:
    from edgeopt.running.serving import ServeOptions

ADDRESS, LIMITS, ACCESS = "Address and name", "Limits", "Who may ask"
"""Headings of the help."""
_MIB = 1 << 20
_STANDARD = Limits()


@dataclass(frozen=True)
class ServeFlags:
    """Options of `serve` for every kind."""

    host: str = option("127.0.0.1", "Address to listen at; others than this machine's.", group=ADDRESS)
    port: int = option(8000, "0: one that is free.", group=ADDRESS, syntax=Syntax.WHOLE, least=0, most=65535)
    name: str = option("", "Under which clients ask for the only model.", group=ADDRESS, shown="the recipe's")
    slots: int = option(_STANDARD.slots, "Answers made at once.", group=LIMITS, syntax=Syntax.WHOLE, least=1, most=256)
    waiting: int = option(
        _STANDARD.waiting, "Requests that may wait; more are refused.", group=LIMITS, syntax=Syntax.WHOLE, least=0
    )
    time_limit_s: float = option(
        _STANDARD.seconds,
        "From a request to the end of its answer, waiting included.",
        "--time-limit",
        group=LIMITS,
        syntax=Syntax.SECONDS,
    )
    output_tokens: int = option(
        _STANDARD.answer_tokens,
        "Most of an answer.",
        group=LIMITS,
        syntax=Syntax.WHOLE,
        least=1,
        shown="what the context holds",
    )
    body_mib: float = option(
        _STANDARD.body_bytes / _MIB,
        "Most of a request.",
        group=LIMITS,
        syntax=Syntax.NUMBER,
        least=0,
        most=1024,
        above=True,
    )
    picture_megapixels: float = option(
        _STANDARD.picture_pixels / 1e6,
        "Most of a picture; large ones are taken one at a time.",
        group=LIMITS,
        syntax=Syntax.NUMBER,
        least=0,
        most=1000,
        above=True,
    )
    stalled_s: float = option(
        _STANDARD.stalled_s,
        "Cut a client off that sends or takes nothing for so long.",
        "--stalled",
        group=LIMITS,
        syntax=Syntax.SECONDS,
    )
    keep_s: float | None = option(
        None,
        "Free the model's memory after so long without a request.",
        "--keep",
        group=LIMITS,
        syntax=Syntax.SECONDS,
        shown="for ever",
    )
    memory_bytes: int | None = option(
        None,
        "Of several models: memory that those that are open may take together, such as 2GiB; the one that was used "
        "least recently is closed for the next.",
        "--memory",
        group=LIMITS,
        syntax=Syntax.BYTES,
        shown="no limit",
    )
    threads: int = threads_option(LIMITS, "as measured; a language model: fast cores")
    access_log: str = option(
        "",
        "Write a line of JSON for each request: time, client, method, path, status, ms; - for standard error.",
        group=ACCESS,
        metavar="FILE",
    )
    key_from: str | None = option(
        None,
        "Variable of the environment with the key that each client must send.",
        group=ACCESS,
        metavar="NAME",
    )
    origins: tuple[str, ...] = option(
        (),
        "Pages from there, such as https://app.example, may ask too; * for all. Repeatable.",
        "--allow-origin",
        group=ACCESS,
        metavar="URL",
        repeatable=True,
    )
    certificate: Path | None = option(
        None,
        "Certificate in PEM: connections are encrypted (https).",
        "--cert",
        group=ACCESS,
        syntax=Syntax.FILE,
    )
    certificate_key: Path | None = option(
        None,
        "Its key, in PEM.",
        "--cert-key",
        group=ACCESS,
        syntax=Syntax.FILE,
        shown="in the file of --cert",
    )


def as_serve_options(asked: ServeFlags) -> ServeOptions:
    """Return what the server takes.

    Raises:
        EdgeoptError: If options contradict each other.
    """
    from edgeopt.running.serving import ServeOptions

    if asked.certificate_key is not None and asked.certificate is None:
        raise EdgeoptError("--cert-key belongs to --cert", remedy="add --cert, or leave it out")
    limits = replace(
        _STANDARD,
        body_bytes=round(asked.body_mib * _MIB),
        picture_pixels=round(asked.picture_megapixels * 1e6),
        answer_tokens=asked.output_tokens,
        seconds=asked.time_limit_s,
        waiting=asked.waiting,
        slots=asked.slots,
        stalled_s=asked.stalled_s,
    )
    return ServeOptions(
        host=asked.host,
        port=asked.port,
        name=asked.name,
        threads=asked.threads,
        keep_s=asked.keep_s,
        memory_bytes=asked.memory_bytes,
        key=read_key(asked.key_from),
        origins=asked.origins,
        certificate=asked.certificate,
        certificate_key=asked.certificate_key,
        limits=limits,
        access_log=asked.access_log,
    )


def read_key(variable: str | None) -> str:
    """Return the key that a variable of the environment holds, where nobody reads it from the list of processes.

    Args:
        variable: Its name; None: there is no key.

    Raises:
        EdgeoptError: If it is not set, or no header of HTTP carries it.
    """
    key = os.environ.get(variable, "").strip() if variable is not None else ""  # files of secrets end in a new line
    if variable is not None and not key:
        raise EdgeoptError(
            f"--key-from {variable}: no such variable is set, or it is empty", remedy=f"export {variable}=KEY first"
        )
    if not all("!" <= letter <= "~" for letter in key):
        raise EdgeoptError(
            f"--key-from {variable}: a key is of letters, digits and signs of ASCII, without spaces",
            remedy="choose another key",
        )
    return key
