"""A bundle or a language model behind an HTTP port: what is opened, under which limits, until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.graph.model import find_model
from edgeopt.measurement.generation.right_writer import correction_of_decoder
from edgeopt.recipes.recipe import Recipe, read_recipe
from edgeopt.recipes.texts.chat_template import read_chat_template
from edgeopt.running.writing import (
    Prompting,
    find_language_model,
    read_system,
)
from edgeopt.runtime.bundle import Bundle, is_bundle, read_bundle
from edgeopt.runtime.decoding.guessing import notes_of_guesses
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.prefixes import prefix_folder
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.serve.limits import Limits
from edgeopt.system.declared.optional import require
from edgeopt.system.text import plural

if TYPE_CHECKING:
    from edgeopt.runtime.serve.reader import PromptReader
    from edgeopt.runtime.serve.watching.tally import Tally

_GUESSES = 4
"""Where a draft is named and no number."""
_PURPOSE = "serving over HTTP"
_NEEDED = ("uvicorn", "starlette", "python_multipart", "jinja2", "prometheus_client")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a model is served."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: one that is free."""
    name: str = ""
    """Under which clients ask for it; empty: the recipe's."""
    threads: int = 0
    keep_s: float | None = None
    """Idle time after which the model's memory is freed; None: never."""
    key: str = ""
    """Key that each request must carry; empty: none."""
    origins: tuple[str, ...] = ()
    """Pages of elsewhere that may ask; `*`: all."""
    certificate: Path | None = None
    """In PEM: connections are encrypted. None: they are not."""
    certificate_key: Path | None = None
    """None: it lies in the same file."""
    prompting: Prompting = field(default_factory=Prompting)
    """What stands before every prompt, the context, and who guesses."""
    guesses: int | None = None
    """Tokens of one text guessed a run, in one slot; None: as the recipe says."""
    uses_draft: bool = True
    limits: Limits = field(default_factory=Limits)
    access_log: str = ""
    """Path of the file with a line for each request; `-`: standard error; empty: none."""
    exact: bool = False
    """Whether all answers are exact, as `AnswerOptions.exact` has it; else they are where the model is."""


@dataclass(frozen=True, slots=True)
class Served:
    """The work of a server until its end."""

    name: str
    answered: int
    lost: int
    """Answers whose client went away, or that broke."""
    refused: int

    def __str__(self) -> str:
        parts = [plural(self.answered, "answer")]
        parts += [f"{self.lost} lost by their clients or broken"] if self.lost else []
        parts += [f"{self.refused} refused"] if self.refused else []
        return f"{self.name}: {', '.join(parts)}"


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


def serve(
    model: str,
    options: ServeOptions,
    tell: Callable[[str], None],
    open_routes: Callable[[str, ServeOptions], ServedModel],
    begun: Callable[[str, Callable[[], None]], None] = lambda *_: None,
) -> Served:
    """Serve until SIGTERM, Ctrl-C or a call; answers on their way are finished first.

    Args:
        model: A bundle, a shipped language model, its ONNX file or folder, or an encoder with a decoder.
        options: Where, and under which limits.
        tell: Hears one line at the start, and one for each warning.
        open_routes: Opens the model with what answers requests for it.
        begun: Hears the address at which it listens, and gets what ends it, from any thread.

    Raises:
        MissingDependencyError: If the extra `serve` is not installed.
        EdgeoptError: If the model does not open, or the port is taken.
    """
    for name in _NEEDED:
        require(name, extra="serve", purpose=_PURPOSE)
    from edgeopt.runtime.serve.access import Access
    from edgeopt.runtime.serve.server import Certificate, Server, address_of, names_of, open_port
    from edgeopt.runtime.serve.site import make_site
    from edgeopt.runtime.serve.watching.access_log import AccessLog

    certificate = Certificate(options.certificate, options.certificate_key) if options.certificate else None
    if certificate is not None:
        certificate.require()
    log = AccessLog(options.access_log) if options.access_log else None
    listening = open_port(options.host, options.port)  # before the model: what is taken is known at once
    try:
        opened = open_routes(model, options)
        server = Server(options.limits, opened.holder.free_if_idle, certificate)
        address = address_of(listening, is_encrypted=certificate is not None)
        access = Access(names_of(listening, options.host), options.key, options.origins)
        app = make_site(opened.tally, opened.routes, access, server.lifespan, log)
        tell(f"{opened.name}: {address}{opened.told}; Ctrl-C ends it")
        for note in opened.notes:
            tell(str(note))
        if access.hosts is None and (open_to_all := _open_to_all(options)):
            tell(f"warning: {open_to_all}")
        begun(address, server.stop)
        try:
            server.run(app, listening)
        finally:
            opened.close()
            opened.holder.close()
    finally:
        listening.close()
    stats, refused, _ = opened.tally.read()
    return Served(opened.name, stats.served, stats.dropped + stats.failed, sum(refused.values()))


def _open_to_all(options: ServeOptions) -> str:
    """Return what is wrong with a server that others than this machine reach; empty: nothing."""
    missing = [] if options.key else ["no key is asked for"]
    missing += [] if options.certificate else ["nothing is encrypted"]
    remedy = " and ".join([] if options.key else ["--key-from"] + ([] if options.certificate else ["--cert"]))
    return f"whoever reaches {options.host} can use or read it: {', '.join(missing)} ({remedy})" if missing else ""


def open_texts(model: str, options: ServeOptions) -> ServedModel:
    """Open a language model with its routes: `/v1/completions` and `/v1/chat/completions`."""
    from edgeopt.runtime.serve.holder import Holder
    from edgeopt.runtime.serve.reader import PromptReader
    from edgeopt.runtime.serve.routes.texts import STAGES, TextRoutes
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer
    from edgeopt.runtime.serve.writers import OneByOne, ServedWriter, Together

    file, prompting, limits = find_language_model(model), options.prompting, options.limits
    if (options.guesses or prompting.draft) and limits.slots > 1:
        raise EdgeoptError(
            f"guesses are made for one text at a time, and --slots is {limits.slots}", remedy="add --slots 1"
        )
    system = read_system(prompting.system) if prompting.system else ""
    draft = find_language_model(prompting.draft) if prompting.draft else None
    correction = correction_of_decoder(file)
    read, notes = list[PromptReader](), list(correction.notes)

    def open_model() -> ServedWriter:
        opened, recipe = open_language_model(file, options.threads, prompting.context, draft, correction.entries)
        try:
            is_first = not read
            if is_first:
                read.append(_reader_of(opened, recipe, file, system))
            if options.guesses is not None or draft is not None:
                opened.guesses = _GUESSES if options.guesses is None else options.guesses
            if options.exact:
                opened.require_exact()
                opened.is_exact = True
            for start in read[0].starts:
                kept = opened.keep_prefix(start, prompting.prefixes or prefix_folder())
                notes.extend([Note(NoteKind.INFO, kept.note)] if is_first and kept.note else [])
        except ValueError as error:
            opened.close()
            raise EdgeoptError(str(error), remedy="shorten the text of --system") from error
        except BaseException:
            opened.close()
            raise
        guesses = bool(opened.guesses) and limits.slots == 1
        if is_first:
            notes.extend((*opened.origin.notes, *_told_of_guesses(opened, guesses=guesses)))
            names.append(recipe.name)
        if guesses:
            return OneByOne(opened, uses_draft=options.uses_draft)
        slots = Together(opened, limits)
        if is_first and slots.turns_told:
            notes.append(Note(NoteKind.INFO, f"texts take turns, one run a token: {slots.turns_told}"))
        return slots

    names = list[str]()
    holder = Holder(open_model, options.keep_s)
    name, reader = options.name or names[0], read[0]
    tally, tracer = Tally(name, STAGES, holder, writes=True), SpanTracer(name)
    texts = TextRoutes(name, holder, reader, limits, tally, tracer)
    text = "/v1, completions and chat " + ("in a plain form" if reader.stop else "by the model's own template")
    return ServedModel(name, tally, holder, texts.routes(), texts.close, text, tuple(notes))


def _reader_of(opened: LanguageModel, recipe: Recipe, file: Path, system: str) -> PromptReader:
    from edgeopt.runtime.serve.reader import PromptReader

    template = read_chat_template((recipe.path_of(recipe.tokenizer.file) or file).parent)
    return PromptReader(opened.tokenizer, opened.context, recipe.generation.begin, template, system)


def _told_of_guesses(opened: LanguageModel, *, guesses: bool) -> Iterator[Note]:
    """Yield what a user should know of guesses."""
    if guesses:
        yield from notes_of_guesses(opened.sums)
    if opened.guesses and not guesses:
        yield Note(NoteKind.INFO, "its guesses are left out: several texts are written at once", "--slots 1 has them")


def open_frames(model: str, options: ServeOptions) -> ServedModel:
    """Open the bundle of a model of pictures with its route, `/v1/frames`, or of one that embeds texts."""
    from edgeopt.runtime.serve.holder import Holder
    from edgeopt.runtime.serve.routes.embeddings import EmbeddingRoute
    from edgeopt.runtime.serve.routes.frames import PictureRoute
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer

    bundle = _bundle_of_frames(model)
    recipe = bundle.recipe
    sees = recipe.kind == "picture" and recipe.input.size and not recipe.input.states
    embeds = recipe.kind == "text" and recipe.task == "embedding"
    if not sees and not embeds:
        raise UnsupportedError(
            f"{model} takes no pictures: a server takes language models, models of single pictures, and embeddings of "
            "texts",
            remedy="call edgeopt.Runtime.load(...).predict(...) in the app",
        )
    holder = Holder(lambda: Runtime.load(bundle, threads=options.threads or None), options.keep_s)
    with holder.held() as runtime:
        stages = ("queue", "decode", *runtime.stages) if sees else ("queue", *runtime.stages)
    name = options.name or recipe.name
    tally = Tally(name, stages, holder)
    parts = (name, holder, options.limits, tally, SpanTracer(name))
    route: PictureRoute | EmbeddingRoute = PictureRoute(*parts) if sees else EmbeddingRoute(*parts)
    shown = "/v1/frames, a picture in, JSON out" if sees else "/v1/embeddings, texts in, vectors out"
    return ServedModel(name, tally, holder, route.routes(), route.close, shown)


def _bundle_of_frames(model: str) -> Bundle:
    """Return the bundle of a name.

    Raises:
        EdgeoptError: If it is none: what is served is what `optimize` wrote, not a model as it was brought.
    """
    path = Path(model)
    if path.is_dir():
        if not is_bundle(path) and (told := path / "recipe.toml").is_file():
            read_recipe(told)  # of a language model perhaps, with a fault that this says
        return read_bundle(path)
    find_model(model)  # a name that is none is told as such
    raise EdgeoptError(
        f"{model} is no bundle: of such a model a server takes what optimize wrote",
        remedy=f"edgeopt optimize {model} --target cpu -o out, then edgeopt serve out",
    )
