"""The folder that is deployed: models and a manifest, every byte of them hashed.

Class names stand in the manifest's recipe. A bundle names files of its own folder only, and nothing else is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, Note, NotFoundError, UnknownEntryError
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.preprocess import Decode
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.chat_template import chat_files
from edgeopt.recipes.texts.encoder_decoder import configurations
from edgeopt.recipes.texts.generation import GENERATION
from edgeopt.runtime.bundles.folder import (
    MANIFEST,
    NEWER,
    PIPELINE,
    REMEDY,
    names_in,
    remove_stale,
    require_content,
    require_inside,
    require_nothing_else,
)
from edgeopt.runtime.bundles.parts import Artefact, Attachment, Port, SelfTest, Weights
from edgeopt.runtime.bundles.targets import (
    ASKED,
    Contender,
    TargetStanding,
    contender_of,
    frame_ms,
    measured_on,
    notes_of_choice,
    rank,
)
from edgeopt.system.declared.target import Target
from edgeopt.system.disk.files import read_file, write_beside
from edgeopt.system.processes.in_background import InBackground
from edgeopt.system.toml import parse_table, read_object

SCHEMA = 3
SEVERAL = 4
"""Schema of a manifest for several targets: each says what a manifest for one does, recipes apart."""
TOKENIZER, DRAFT = "tokenizer.json", "draft.onnx"
_MOST_BYTES_ATTACHED = 128 << 20
_MOST_ARTEFACTS = 16
_MOST_LIGHTER = 2
_MOST_BYTES = 4 << 20
"""Most bytes of a manifest; that of a thousand class names has 60 KiB, and each target of several takes about 8."""
MOST_TARGETS = 256
_LISTS = ("artefacts", "lighter", "parts", "attachments")
"""Lists of files in a manifest."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The bundle that a device app embeds. `artefacts` are in the order in which they are tried."""

    folder: Path
    artefacts: tuple[Artefact, ...]
    target: Target
    recipe: Recipe
    expected: Mapping[str, Any]
    """Accuracy and latency as measured when the bundle was made, and where."""
    tools: Mapping[str, str]
    lighter: tuple[Artefact, ...] = ()
    """Measured faster and less accurate than the first, the fastest first: for an app that must degrade."""
    selftest: SelfTest | None = None
    """None: no numbers are compared when it is loaded."""
    attachments: tuple[Attachment, ...] = ()
    """Files that the recipe reads."""
    parts: tuple[Artefact, ...] = ()
    """Graphs that run beside the first artefact: the encoder of a decoder."""
    sketch: Attachment | None = None
    """Figures of the calibration frames, with which a watch compares those of the field; None: none are kept."""
    device: str = ""
    """Name of the device that it was measured on, where a bundle for several targets tells one."""
    standing: TargetStanding | None = None
    """Why this target of several is picked here, or comes after another; None: the bundle is for one."""
    others: tuple[Bundle, ...] = ()
    """The folder's bundles for other targets, in the order in which this machine tries them."""
    is_asked: bool = False
    """Whether somebody asked for this target: then no other is tried."""
    hashing: InBackground[None] | None = field(default=None, repr=False, compare=False)
    """Raises where a file with weights is damaged, which a thread finds out; None: all files were hashed."""

    @property
    def label(self) -> str:
        """Name of its target, and of the device where one is told."""
        return f"{self.target.name}@{self.device}" if self.device else self.target.name

    @property
    def leads(self) -> bool:
        """Whether its first model is tried here, and not only what it falls back to."""
        return self.standing is None or self.is_asked or self.standing.leads

    def notes_on(self, artefact: Artefact) -> tuple[Note, ...]:
        """Return which of several targets runs with one of its models, and why; nothing where the bundle is for one."""
        if self.standing is None:
            return ()
        others = {other.label: other.standing for other in self.others if other.standing}
        why = ASKED if self.is_asked else "" if artefact is self.artefacts[0] else "what it falls back to"
        return notes_of_choice(self.label, self.standing, others, why)

    def led_by(self, target: Bundle) -> Bundle:
        """Return one of its targets as the first, with the rest beside it."""
        rest = (replace(each, others=()) for each in (self, *self.others) if each is not target)
        return replace(target, others=tuple(rest))

    def mapped(self, change: Callable[[Bundle], Bundle]) -> Bundle:
        """Return it with the same change made for each of its targets."""
        return replace(change(self), others=tuple(map(change, self.others)))

    @property
    def named(self) -> tuple[Artefact | SelfTest | Attachment, ...]:
        """The files that the manifest names, each with its hash."""
        test = (self.selftest,) if self.selftest else ()
        sketch = (self.sketch,) if self.sketch else ()
        return (*self.artefacts, *self.parts, *self.lighter, *test, *sketch, *self.attachments)

    @property
    def files(self) -> frozenset[str]:
        """Names of all files that belong to it."""
        weights = {one.weights.file for one in self.named if isinstance(one, Artefact) and one.weights}
        beside = (name for other in self.others for name in other.files)
        return frozenset({MANIFEST, *(one.file for one in self.named), *weights, *beside})

    @property
    def model(self) -> Path:
        """Path of the first artefact."""
        return self.path_of(self.artefacts[0])

    def path_of(self, artefact: Artefact) -> Path:
        """Return the path of an artefact."""
        return self.folder / artefact.file


def is_bundle(path: Path) -> bool:
    """Return whether a folder is a bundle, or the output folder that holds one."""
    return (path / MANIFEST).is_file() or (path / "bundle" / MANIFEST).is_file()


def told_task(path: Path) -> str:
    """Return the task that a bundle's manifest names, which is not checked; empty where it names none.

    Raises:
        InvalidFileError: If it cannot be read.
    """
    folder = path if (path / MANIFEST).is_file() else path / "bundle"
    values = _read(folder / MANIFEST)
    recipe = values.get("recipe")
    if values["schema"] == SEVERAL and isinstance(recipes := values.get("recipes"), list) and recipes:
        recipe = recipes[0]
    return str(recipe.get("task", "")) if isinstance(recipe, dict) else ""


def make_artefact(
    file: str,
    data: bytes,
    precision: str,
    target: Target,
    threads: int,
    inputs: Sequence[TensorSpec] = (),
    outputs: Sequence[TensorSpec] = (),
) -> Artefact:
    """Return what a manifest says of a model.

    Args:
        file: Its name.
        data: The serialized model.
        precision: Precision scheme.
        target: Whose engine opens it, with which options.
        threads: As measured or asked for; 0: one per fast physical core of the device.
        inputs: Of the model, for apps in other languages.
        outputs: Of the model.
    """
    how = target.executor, target.providers, target.options, threads
    ports = tuple(map(Port.of, inputs)), tuple(map(Port.of, outputs))
    return Artefact(file, hashlib.sha256(data).hexdigest(), precision, len(data), *how, *ports, cores=target.cores)


def write_bundle(
    folder: Path,
    models: Sequence[tuple[Artefact, bytes]],
    target: Target,
    recipe: Recipe,
    expected: Mapping[str, Any],
    tools: Mapping[str, str],
    *,
    lighter: Sequence[tuple[Artefact, bytes]] = (),
    weights: Mapping[str, PieceLayout] | None = None,
    selftest: tuple[SelfTest, bytes] | None = None,
    parts: Sequence[tuple[Artefact, bytes]] = (),
    companions: Mapping[str, bytes] | None = None,
    sketch: tuple[str, bytes] | None = None,
) -> Bundle:
    """Write a bundle; the manifest comes last, so that a torn bundle is none.

    Args:
        folder: Created when absent.
        models: What the manifest says of each, and the serialized model; the preferred one first.
        target: The device profile.
        recipe: Bound to the model.
        expected: Accuracy and latency, as JSON.
        tools: Versions of the packages that made it.
        weights: By name, what the files with weights hold that the artefacts name.
        lighter: As `models`; they run only where an app asks for them.
        selftest: Stored inputs and numbers.
        parts: As `models`; they run beside the first of those.
        companions: By name, files that other tools read.
        sketch: Name and content of the file with figures of the calibration frames.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    files = {artefact.file: data for artefact, data in (*models, *lighter, *parts)}
    files |= {selftest[0].file: selftest[1]} if selftest else {}
    for name, layout in (weights or {}).items():
        layout.write(folder / name)
    attached = _attached(recipe)
    tokenizer_file = next(iter(attached), "")
    attached = {**(companions or {}), **attached}
    files |= attached
    files |= dict([sketch]) if sketch else {}
    remove_stale(folder, names_in(folder / MANIFEST), {*files, *(weights or {})})
    for name, data in files.items():
        write_beside(folder / name, data)
    scoring = dataclasses.replace(recipe.evaluation, labels="", calib="")  # the data of a recipe is not deployed
    tokenizer = dataclasses.replace(recipe.tokenizer, file=tokenizer_file)
    writing = dataclasses.replace(recipe.generation, draft=DRAFT if recipe.generation.draft else "")
    deployed = dataclasses.replace(
        recipe,
        folder=folder,
        labels="",
        model="",
        match=(),
        evaluation=scoring,
        tokenizer=tokenizer,
        generation=writing,
    )
    attachments = tuple(_attachment(name, data) for name, data in attached.items())
    kept = _attachment(*sketch) if sketch else None
    artefacts, others = (tuple(artefact for artefact, _ in each) for each in (models, lighter))
    test = selftest[0] if selftest else None
    beside = tuple(other for other, _ in parts)
    known = dict(expected), dict(tools), others, test, attachments, beside, kept
    bundle = Bundle(folder, artefacts, target, deployed, *known)
    write_manifest(folder, {"schema": SCHEMA, **manifest_of(bundle)})
    return bundle


def manifest_of(bundle: Bundle) -> dict[str, Any]:
    """Return what a manifest says of one target, without the schema and the hash."""
    recipe = dataclasses.asdict(bundle.recipe)
    if bundle.recipe.preprocess.decode is Decode.FULL:
        del recipe["preprocess"]["decode"]  # an older edgeopt refuses a key that it does not know, and needs none here
    return {
        **{key: [dataclasses.asdict(each) for each in getattr(bundle, key)] for key in _LISTS},
        "selftest": dataclasses.asdict(bundle.selftest) if bundle.selftest else None,
        "sketch": dataclasses.asdict(bundle.sketch) if bundle.sketch else None,
        "target": dataclasses.asdict(bundle.target.profile),
        "recipe": {key: value for key, value in recipe.items() if key != "folder"},
        "expected": dict(bundle.expected),
        "tools": dict(bundle.tools),
    }


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest with its hash.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    sealed = {**manifest, "sha256": seal(manifest)}
    write_beside(folder / MANIFEST, json.dumps(sealed, indent=2, allow_nan=False) + "\n")


def _attachment(name: str, data: bytes) -> Attachment:
    return Attachment(name, hashlib.sha256(data).hexdigest(), len(data))


def _attached(recipe: Recipe) -> dict[str, bytes]:
    """Return what the recipe reads besides its own values, by its name in a bundle."""
    path = recipe.path_of(recipe.tokenizer.file)
    if path is None:
        return {}
    named = {TOKENIZER: path} | {other.name: other for other in (chat_files(path) if recipe.task == GENERATION else ())}
    if recipe.generation.encoder:
        named |= {configuration.name: configuration for configuration in configurations(path.parent)}
    draft = recipe.path_of(recipe.generation.draft)
    named |= {DRAFT: draft} if draft else {}
    remedy = "put it back beside the recipe"
    return {name: read_file(other, remedy=remedy, most_bytes=_MOST_BYTES_ATTACHED) for name, other in named.items()}


def make_selftest(file: str, data: bytes, samples: int) -> SelfTest:
    """Return what a manifest says of a file of stored inputs."""
    return SelfTest(file, hashlib.sha256(data).hexdigest(), len(data), samples)


@dataclass(frozen=True, slots=True)
class _Manifest:
    schema: int
    sha256: str
    """SHA-256 of everything else in it."""
    artefacts: tuple[Artefact, ...]
    target: Target
    recipe: Recipe
    expected: Mapping[str, Any]
    tools: Mapping[str, str]
    lighter: tuple[Artefact, ...]
    selftest: SelfTest | None
    attachments: tuple[Attachment, ...] = ()
    parts: tuple[Artefact, ...] = ()
    sketch: Attachment | None = None

    def __post_init__(self) -> None:
        generation, known = self.recipe.generation, {"", *(part.file for part in self.parts)}
        graphs = {
            generation.encoder: "the encoder",
            generation.prefill: "the graph of prompts",
            self.recipe.image.encoder: "the encoder of pictures",
        }
        for graph, word in graphs.items():
            if graph not in known:
                raise ValueError(f"it does not name {word}, which its recipe reads")
        for read in self.recipe.files:
            if read not in (*graphs, *(attachment.file for attachment in self.attachments)):
                raise ValueError(f"it does not name {read!r}, which its recipe reads")
        if len(self.lighter) > _MOST_LIGHTER:
            raise ValueError(f"it names {len(self.lighter)} lighter models, more than {_MOST_LIGHTER}")
        if not 1 <= len(self.artefacts) <= _MOST_ARTEFACTS:
            raise ValueError(f"it names {len(self.artefacts)} models, not 1 to {_MOST_ARTEFACTS}")


@dataclass(frozen=True, slots=True)
class _Several:
    """A manifest for several targets."""

    schema: int
    sha256: str
    recipes: tuple[Mapping[str, Any], ...]
    """Those that differ; a target names one by its place."""
    targets: tuple[Mapping[str, Any], ...]
    """Manifests of single targets, with `device`; their `recipe` is a place in `recipes`."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.targets) <= MOST_TARGETS:
            raise ValueError(f"it is for {len(self.targets)} targets, not 1 to {MOST_TARGETS}")

    def manifests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the device and the manifest of each target."""
        for said in self.targets:
            number, device = said.get("recipe"), said.get("device")
            if type(number) is not int or not 0 <= number < len(self.recipes) or not isinstance(device, str):
                raise ValueError("a target names no recipe or no device")
            own = {key: value for key, value in said.items() if key != "device"}
            yield device, {**own, "recipe": self.recipes[number], "schema": SCHEMA, "sha256": self.sha256}


def read_bundle(path: Path, target: str = "", *, hashes_weights: bool = True) -> Bundle:
    """Read a bundle and check the hash of its manifest and of every file that it names.

    Args:
        path: Its folder, or the output folder that holds it.
        target: Of a bundle for several: the one that is wanted; empty: the best here.
        hashes_weights: Whether the files with weights of a language model are hashed before it returns; otherwise a
            thread hashes them, and who opens the bundle asks `hashing` before anything runs.

    Raises:
        InvalidFileError: If it is no bundle, of another schema, names a file outside its folder, is damaged, or if its
            folder holds a file that the manifest does not name.
        NotFoundError: If it is not for that target.
    """
    bundle = parse_bundle(path, target)
    checked = set[tuple[str, str, int]]()
    weights = {each.weights for each in bundle.named if isinstance(each, Artefact) and each.weights}
    is_later = not hashes_weights and bundle.recipe.task == GENERATION and not bundle.others and bool(weights)
    checked |= {(file.file, file.sha256, file.size_bytes) for file in weights} if is_later else set()
    for each in (bundle, *bundle.others):
        for one in each.named:
            require_whole(each, one, checked)
    require_nothing_else(bundle.folder, bundle.files, MANIFEST)
    if not is_later:
        return bundle

    def hashed() -> None:
        for file in weights:
            require_whole(bundle, file)

    return replace(bundle, hashing=InBackground(hashed))


def parse_bundle(path: Path, target: str = "") -> Bundle:
    """Read a bundle's manifest and check its hash; no other file is looked at. Takes and raises as `read_bundle`."""
    folder = path if (path / MANIFEST).is_file() else path / "bundle"
    file = folder / MANIFEST
    if not file.is_file():
        if (folder / PIPELINE).is_file() or (path / PIPELINE).is_file():
            raise InvalidFileError(
                f"{path} is the bundle of a pipeline, not of one model",
                remedy="load it with edgeopt.Pipeline.load; edgeopt bench measures it",
            )
        raise InvalidFileError(f"{path} is no bundle: it holds no {MANIFEST}", remedy="make one with edgeopt optimize")
    require_inside(folder, file)
    values = _read(file)
    if values.get("sha256") != seal(values):
        raise InvalidFileError(f"{file} differs from its own hash", remedy=REMEDY)
    if values["schema"] == SCHEMA:
        return _wanted([_bundle_of(folder, values, str(file))], target, folder)
    with _known_here():
        said = parse_table(_Several, values, str(file))
    try:
        manifests = [*said.manifests()]
    except ValueError as error:
        raise InvalidFileError(f"{file}: {error}", remedy=REMEDY) from error
    bundles = [dataclasses.replace(_bundle_of(folder, each, str(file)), device=device) for device, each in manifests]
    return _wanted(ranked(bundles), target, folder)


def ranked(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return what several targets have, in the order in which this machine tries them, each with its standing."""
    return [replace(bundles[each.index], standing=each) for each in rank([_contender(bundle) for bundle in bundles])]


def _read(file: Path) -> dict[str, Any]:
    """Return what a manifest says, of whatever number of targets.

    Raises:
        InvalidFileError: If it cannot be read, or is of another schema.
    """
    with _known_here():
        return read_object(file, schema=(SCHEMA, SEVERAL), remedy=REMEDY, most_bytes=_MOST_BYTES)


@contextmanager
def _known_here() -> Iterator[None]:
    """Say who wrote what is unknown in a manifest: its own hash is right, so that an edgeopt did that knows more.

    Raises:
        InvalidFileError: If something is.
    """
    try:
        yield
    except UnknownEntryError as error:
        raise InvalidFileError(f"{error.problem}: it was made by a newer edgeopt", remedy=NEWER) from error


def _bundle_of(folder: Path, manifest: Mapping[str, Any], where: str) -> Bundle:
    with _known_here():
        said = parse_table(_Manifest, manifest, where)
    tools, lighter, selftest = said.tools, said.lighter, said.selftest
    recipe, attachments = dataclasses.replace(said.recipe, folder=folder), said.attachments
    known = tools, lighter, selftest, attachments, said.parts, said.sketch
    return Bundle(folder, said.artefacts, said.target, recipe, said.expected, *known)


def _contender(bundle: Bundle) -> Contender:
    first = bundle.artefacts[0]
    return contender_of(
        bundle.target,
        first.executor,
        first.providers,
        first.precision,
        measured_on=measured_on(bundle.expected),
        frame_ms=frame_ms(bundle.expected),
        is_tested=bundle.selftest is not None and bool(first.noise_limits),
    )


def _wanted(bundles: Sequence[Bundle], target: str, folder: Path) -> Bundle:
    """Return the first of the targets of a bundle, or the first of those with a name, with the others beside it."""
    fitting = [bundle for bundle in bundles if not target or target in (bundle.label, bundle.target.name)]
    if not fitting:
        raise NotFoundError(f"target in the bundle {folder}", target, [bundle.label for bundle in bundles])
    others = tuple(bundle for bundle in bundles if bundle is not fitting[0])
    return replace(fitting[0], others=others, is_asked=bool(target))


def seal(manifest: Mapping[str, Any]) -> str:
    """Return the hash of what a manifest says, however it is laid out."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def require_whole(
    bundle: Bundle,
    named: Artefact | Weights | SelfTest | Attachment,
    checked: set[tuple[str, str, int]] | None = None,
) -> None:
    """Raise InvalidFileError unless a file is in the folder, as long as the manifest says, and has its hash.

    Of a model the file with its weights too, where it has one.

    Args:
        bundle: It is of.
        named: In the manifest.
        checked: Name, hash and length of the files that were looked at; this one is put in.
    """
    if isinstance(named, Artefact) and named.weights:
        require_whole(bundle, named.weights, checked)
    key = named.file, named.sha256, named.size_bytes
    if checked is not None and key in checked:
        return
    require_content(bundle.folder, named.file, named.size_bytes, named.sha256)
    if checked is not None:
        checked.add(key)
