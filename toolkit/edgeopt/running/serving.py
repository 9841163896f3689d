"""Models behind an HTTP port: what is opened and when, under which limits, until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeopt.errors import Note
from edgeopt.running.writing import Prompting
from edgeopt.runtime.serve.limits import Limits
from edgeopt.system.declared.optional import require
from edgeopt.system.text import format_bytes, plural

if TYPE_CHECKING:
    from edgeopt.runtime.serve.model_memory import MemoryNeeds, MemoryPlace, ModelMemory
    from edgeopt.runtime.serve.several import LazyModel
    from edgeopt.runtime.serve.site import Watched
    from edgeopt.runtime.serve.watching.tally import Tally

_PURPOSE = "serving over HTTP"
_NEEDED = ("uvicorn", "starlette", "python_multipart", "jinja2", "prometheus_client")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a model is served."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: one that is free."""
    name: str = ""
    """Name under which clients ask for it; empty: the recipe's."""
    threads: int = 0
    keep_s: float | None = None
    """Idle time after which the model's memory is freed; None: never."""
    memory_bytes: int | None = None
    """Memory that all models may take together; None: no limit."""
    key: str = ""
    """Key that each request must carry; empty: none."""
    origins: tuple[str, ...] = ()
    """Pages of elsewhere that may ask; `*`: all."""
    certificate: Path | None = None
    """Certificate in PEM, with which connections are encrypted; None: they are not."""
    certificate_key: Path | None = None
    """None: it lies in the same file."""
    prompting: Prompting = field(default_factory=Prompting)
    """Text before every prompt, length of the context, and the draft that guesses."""
    guesses: int | None = None
    """Tokens of one text guessed a run, in one slot; None: as the recipe says."""
    uses_draft: bool = True
    limits: Limits = field(default_factory=Limits)
    access_log: str = ""
    """Path of the file with a line for each request; `-`: standard error; empty: none."""
    voice: str = ""
    """A model of voice activity in front of models that hear, by its bundle or ONNX file; empty: all is heard."""
    exact: bool = False
    """Whether all answers are exact, as `AnswerOptions.exact` has it; else they are where the model is."""


@dataclass(frozen=True, slots=True)
class Served:
    """The work of a server until its end."""

    name: str
    """Name of the model; of several, their names."""
    answered: int
    """Answers that were whole."""
    lost: int
    """Answers whose client went away, or that broke."""
    refused: int
    """Requests that got no answer, by their own fault or by a limit."""

    def __str__(self) -> str:
        parts = [plural(self.answered, "answer")]
        parts += [f"{self.lost} lost by their clients or broken"] if self.lost else []
        parts += [f"{self.refused} refused"] if self.refused else []
        return f"{self.name}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Begun:
    """A server that listens."""

    address: str
    """How a client calls it."""
    names: tuple[str, ...]
    """Names of its models."""
    stop: Callable[[], None]
    """Ends it, from any thread; a second call ends answers that are on their way."""


@dataclass(slots=True)
class ServedModel:
    """A model with its routes."""

    name: str
    tally: Tally
    holder: Any
    routes: Any
    close: Callable[[], None]
    told: str
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Hosted:
    """A model that can be served, and is not open yet."""

    source: str
    """As the user named it."""
    name: str
    """The name in its recipe."""
    paths: tuple[str, ...]
    """The paths that it answers."""
    needs: MemoryNeeds
    """Least memory that it takes, as far as its files tell: weights, the cache of its slots, and a draft."""
    options: ServeOptions
    open_routes: Callable[[str, ServeOptions, MemoryPlace | None], ServedModel]
    """Opens it with what answers requests for it."""

    def open(self, name: str, place: MemoryPlace | None) -> ServedModel:
        """Return it open, under a name."""
        return self.open_routes(self.source, replace(self.options, name=name), place)


def bytes_beside(file: Path) -> int:
    """Return the size of an ONNX file with the files of weights beside it."""
    return sum(other.stat().st_size for other in file.parent.glob(f"{file.name}*") if other.is_file())


def serve(
    models: Sequence[Hosted],
    tell: Callable[[str], None],
    begun: Callable[[Begun], None] = lambda _: None,
) -> Served:
    """Serve until SIGTERM, Ctrl-C or a call; answers on their way are finished first.

    A single model is opened at once; of several each when it is first asked for.

    Args:
        models: One or more, with the same options for the server itself.
        tell: Hears one line at the start, and one for each warning.
        begun: Hears where it listens, and gets what ends it.

    Raises:
        MissingDependencyError: If the extra `serve` is not installed.
        EdgeoptError: If the only model does not open, one does not fit into the memory, or the port is taken.
    """
    for name in _NEEDED:
        require(name, extra="serve", purpose=_PURPOSE)
    from edgeopt.runtime.serve.access import Access
    from edgeopt.runtime.serve.model_memory import ModelMemory
    from edgeopt.runtime.serve.server import Certificate, Server, address_of, names_of, open_port
    from edgeopt.runtime.serve.site import make_site
    from edgeopt.runtime.serve.watching.access_log import AccessLog

    options = models[0].options
    certificate = Certificate(options.certificate, options.certificate_key) if options.certificate else None
    if certificate is not None:
        certificate.require()
    log = AccessLog(options.access_log) if options.access_log else None
    room = ModelMemory(options.memory_bytes, options.limits.seconds)
    listening = open_port(options.host, options.port)  # before the model: what is taken is known at once
    try:
        hosting: _Single | _Several
        hosting = _Single(models[0], room) if len(models) == 1 else _Several(models, room, tell)
        try:
            server = Server(options.limits, hosting.free_if_idle, certificate)
            address = address_of(listening, is_encrypted=certificate is not None)
            access = Access(names_of(listening, options.host), options.key, options.origins)
            app = make_site(hosting.watched, hosting.routes, access, server.lifespan, log)
            for line in hosting.told(address):
                tell(line)
            if access.hosts is None and (open_to_all := _open_to_all(options)):
                tell(f"warning: {open_to_all}")
            begun(Begun(address, hosting.watched.names, server.stop))
            server.run(app, listening)
        finally:
            room.close()
            hosting.close()
    finally:
        listening.close()
    return _served(hosting.watched)


def _served(watched: Watched) -> Served:
    tallies = watched.tallies()
    counted = [tally.read() for tally in (*tallies, *([] if watched.own in tallies else [watched.own]))]
    stats = [each for each, _, _ in counted]
    lost = sum(each.dropped + each.failed for each in stats)
    refused = sum(sum(refused.values()) for _, refused, _ in counted)
    return Served(", ".join(watched.names), sum(each.served for each in stats), lost, refused)


def _open_to_all(options: ServeOptions) -> str:
    """Return what is wrong with a server that others than this machine reach; empty: nothing."""
    missing = [] if options.key else ["no key is asked for"]
    missing += [] if options.certificate else ["nothing is encrypted"]
    remedy = " and ".join([] if options.key else ["--key-from"] + ([] if options.certificate else ["--cert"]))
    return f"whoever reaches {options.host} can use or read it: {', '.join(missing)} ({remedy})" if missing else ""


class _Single:
    """The only model of a server, open from the beginning."""

    def __init__(self, model: Hosted, room: ModelMemory) -> None:
        from edgeopt.runtime.serve.site import Watched

        place = room.place(model.options.name or model.name, model.needs) if room.limit_bytes else None
        self._opened = opened = model.open(model.options.name, place)
        self.watched = Watched((opened.name,), lambda: [opened.tally], opened.tally)
        self.routes = opened.routes
        self.free_if_idle = opened.holder.free_if_idle

    def told(self, address: str) -> list[str]:
        """Return what a user reads at the start."""
        opened = self._opened
        return [f"{opened.name}: {address}{opened.told}; Ctrl-C ends it", *map(str, opened.notes)]

    def close(self) -> None:
        """End its answers, and free it."""
        self._opened.close()
        self._opened.holder.close()


class _Several:
    """Several models of a server, opened when they are asked for, in memory as far as they fit."""

    def __init__(self, models: Sequence[Hosted], room: ModelMemory, tell: Callable[[str], None]) -> None:
        from edgeopt.runtime.serve.several import LazyModel, ServableModel, SeveralModels
        from edgeopt.runtime.serve.site import Watched
        from edgeopt.runtime.serve.watching.tally import Tally

        self._hosted, self._tell, self._room = dict(zip(unique_names(models), models, strict=True)), tell, room
        self._opened = dict[str, ServedModel]()
        limits = models[0].options.limits
        self._lazy: list[LazyModel] = []
        for name, model in self._hosted.items():
            servable = ServableModel(name, model.paths, self._opener(name, model, room.place(name, model.needs)))
            self._lazy.append(LazyModel(servable, limits))
        own = Tally("", ("queue",), _Nothing())
        self.watched = Watched(tuple(self._hosted), lambda: [each.tally for each in self._opened.values()], own)
        self.routes = SeveralModels(self._lazy, limits, own).routes()

    def _opener(self, name: str, model: Hosted, place: MemoryPlace) -> Callable[[], ServedModel]:
        def opened() -> ServedModel:
            made = model.open(name, place)
            self._opened[name] = made
            for note in made.notes:
                self._tell(f"{name}: {note}")
            return made

        return opened

    def free_if_idle(self) -> None:
        """Free the models that nobody used for long enough."""
        for each in list(self._opened.values()):
            each.holder.free_if_idle()

    def told(self, address: str) -> list[str]:
        """Return what a user reads at the start."""
        limit = self._room.limit_bytes
        within = "" if limit is None else f", {format_bytes(limit)} of memory at most"
        lines = [f"{name}: {' '.join(model.paths)} of {model.source}" for name, model in self._hosted.items()]
        first = f"{plural(len(lines), 'model')}: {address}/v1, opened when they are asked for{within}; Ctrl-C ends it"
        return [first, *lines]

    def close(self) -> None:
        """End all answers, and free the models."""
        for lazy in self._lazy:
            lazy.close()
        for each in self._opened.values():
            each.close()
            each.holder.close()


class _Nothing:
    """No model at all: requests that were refused before one was known."""

    is_loaded, loads = False, 0


def unique_names(models: Sequence[Hosted]) -> list[str]:
    """Return a name for each model, that of its recipe; of those alike the second is `NAME-2`."""
    names = list[str]()
    for model in models:
        taken = {*names, *(other.name for other in models)} if model.name in names else set[str]()
        numbered = (f"{model.name}-{number}" for number in range(2, len(models) + 2))
        names.append(next(name for name in numbered if name not in taken) if taken else model.name)
    return names
