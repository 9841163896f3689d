"""`serve`: the options of every kind, and how they become those of the server."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.common_options import threads_option
from edgeopt.recipes.texts.answer_defaults import MOST_SLOTS
from edgeopt.runtime.serve.limits import Limits
from edgeopt.system.declared.options import OptionGroup, Syntax, option

if TYPE_CHECKING:
    from edgeopt.running.serving import ServeOptions

ADDRESS = OptionGroup("address", "Address and name", "where it listens, and for which name")
LIMITS = OptionGroup("limits", "Limits", "requests, answers, time, memory, threads")
ACCESS = OptionGroup("access", "Who may ask", "keys, encryption, web pages, the log")
_MIB = 1 << 20
_STANDARD = Limits()


@dataclass(frozen=True)
class ServeFlags:
    """Options of `serve` for every kind."""

    host: str = option(
        "127.0.0.1", "Address to listen at; 0.0.0.0 lets other machines ask.", group=ADDRESS, common=True
    )
    port: int = option(
        8000,
        "Port to listen at; 0 takes a free one.",
        group=ADDRESS,
        common=True,
        syntax=Syntax.WHOLE,
        least=0,
        most=65535,
    )
    name: str = option(
        "", "Name by which clients ask for the model, if there is only one.", group=ADDRESS, shown="the recipe's"
    )
    slots: int = option(
        _STANDARD.slots,
        "Answers that are made at the same time.",
        group=LIMITS,
        common=True,
        syntax=Syntax.WHOLE,
        least=1,
        most=MOST_SLOTS,
    )
    waiting: int = option(
        _STANDARD.waiting,
        "Requests that may wait; further ones are refused.",
        group=LIMITS,
        syntax=Syntax.WHOLE,
        least=0,
    )
    time_limit_s: float = option(
        _STANDARD.seconds,
        "Most time from a request to the end of its answer; waiting counts.",
        "--time-limit",
        group=LIMITS,
        common=True,
        syntax=Syntax.SECONDS,
    )
    output_tokens: int = option(
        _STANDARD.answer_tokens,
        "Most tokens of an answer.",
        group=LIMITS,
        syntax=Syntax.WHOLE,
        least=1,
        shown="what the context holds",
    )
    body_mib: float = option(
        _STANDARD.body_bytes / _MIB,
        "Largest request in MiB.",
        group=LIMITS,
        syntax=Syntax.NUMBER,
        least=0,
        most=1024,
        above=True,
    )
    picture_megapixels: float = option(
        _STANDARD.picture_pixels / 1e6,
        "Largest picture in megapixels; large pictures are decoded one at a time.",
        group=LIMITS,
        syntax=Syntax.NUMBER,
        least=0,
        most=1000,
        above=True,
    )
    stalled_s: float = option(
        _STANDARD.stalled_s,
        "Cut off a client that sends or takes nothing for this long.",
        "--stalled",
        group=LIMITS,
        syntax=Syntax.SECONDS,
    )
    keep_s: float | None = option(
        None,
        "Free the model's memory after this long without a request.",
        "--keep",
        group=LIMITS,
        syntax=Syntax.SECONDS,
        shown="never",
    )
    memory_bytes: int | None = option(
        None,
        "Memory that several open models may take together, such as 2GiB; the model that was used least recently is "
        "closed to make room.",
        "--memory",
        group=LIMITS,
        syntax=Syntax.BYTES,
        shown="no limit",
    )
    threads: int = threads_option(LIMITS, "as measured; for a language model the fast cores")
    access_log: str = option(
        "",
        "File for a line of JSON for each request (time, client, method, path, status, ms); - is the standard error.",
        group=ACCESS,
        metavar="FILE",
    )
    key_from: str | None = option(
        None,
        "Environment variable with the key of the clients; each must send it.",
        group=ACCESS,
        common=True,
        metavar="NAME",
    )
    origins: tuple[str, ...] = option(
        (),
        "Origin whose web pages may ask, such as https://app.example; * for all. Repeatable.",
        "--allow-origin",
        group=ACCESS,
        metavar="URL",
        repeatable=True,
    )
    certificate: Path | None = option(
        None,
        "Certificate in PEM, with which connections are encrypted (https).",
        "--cert",
        group=ACCESS,
        syntax=Syntax.FILE,
    )
    certificate_key: Path | None = option(
        None,
        "Key of the certificate, in PEM.",
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
