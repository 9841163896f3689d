"""The folder that is deployed: models and a manifest, every byte of them hashed.

Class names stand in the manifest's recipe. A bundle names files of its own folder only, and nothing else is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.chat_template import chat_files
from edgeopt.recipes.texts.encoder_decoder import configurations
from edgeopt.recipes.texts.generation import GENERATION
from edgeopt.runtime.bundle_folder import (
    FILE_NAME,
    MANIFEST,
    PIPELINE,
    REMEDY,
    names_in,
    remove_stale,
    require_content,
    require_inside,
    require_nothing_else,
)
from edgeopt.system.declared.target import Target
from edgeopt.system.disk.files import read_file, write_beside
from edgeopt.system.machine.affinity import require_cores
from edgeopt.system.toml import Within, parse_table, read_object

SCHEMA = 3
TOKENIZER, DRAFT = "tokenizer.json", "draft.onnx"
_MOST_BYTES_ATTACHED = 128 << 20
_MOST_ARTEFACTS = 16
_MOST_LIGHTER = 2
_MOST_SAMPLES = 64
_MOST_TEST_BYTES = 64 << 20
_MOST_BYTES = 4 << 20
"""Most bytes of a manifest; that of a thousand class names has 60 KiB."""
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model, for apps that read the manifest without opening the model."""

    name: str
    dtype: str
    """NumPy's word, for example `float32`."""
    shape: tuple[int | None, ...]
    """None: free."""

    @classmethod
    def of(cls, spec: TensorSpec) -> Port:
        """Return what the manifest says of a tensor."""
        return cls(spec.name, spec.dtype, tuple(one if isinstance(one, int) else None for one in spec.shape))


@dataclass(frozen=True, slots=True)
class Expected:
    """The figures measured when the bundle was made; None where nothing was."""

    accuracy: float | None = None
    """In the metric of the bundle's `expected`."""
    agreement: float | None = None
    """With the original's answers."""
    frame_p50_ms: float | None = None
    frame_p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class NoiseLimit:
    """How far numbers may be off those of the bundle's maker, relative to how they differ among themselves."""

    rounding: Annotated[float, Within(0, 1)]
    """More is told."""
    wrong: Annotated[float, Within(0, 1)]
    """More is refused."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The file of stored inputs and of the numbers that each model made of them."""

    file: str
    sha256: str
    size_bytes: int
    samples: Annotated[int, Within(1, _MOST_SAMPLES)]

    def __post_init__(self) -> None:
        _require_name(self.file)
        if self.size_bytes > _MOST_TEST_BYTES:
            raise ValueError(f"{self.file} has {self.size_bytes >> 20} MiB")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that the recipe reads, such as its tokenizer."""

    file: str
    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        _require_name(self.file)


@dataclass(frozen=True, slots=True)
class Weights:
    """A file with weights of a model above 2 GB; models of a bundle may share it."""

    file: str
    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        _require_name(self.file)


@dataclass(frozen=True, slots=True)
class Artefact:
    """One model file of a bundle, and how it was opened when it was measured."""

    file: str
    """Its name; it lies in the bundle's folder itself."""
    sha256: str
    precision: str
    """Precision scheme, for example `w8a8`."""
    size_bytes: int
    executor: str
    providers: tuple[str, ...]
    options: Mapping[str, str]
    """The executor's own entries: the profile's, and those with which this model was fastest."""
    threads: Annotated[int, Within(0, _MOST_THREADS)]
    """Measured or asked for; 0: one per fast physical core, where nothing was measured on the device."""
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    noise_limits: Mapping[str, NoiseLimit] = field(default_factory=dict)
    """By output, for its numbers on the stored inputs; an absent output is not compared."""
    expected: Expected = Expected()
    weights: Weights | None = None
    """None: they are in the model's own file."""
    cores: str = ""
    """`fast`: held to cores of the fastest kind, as the device has them; empty: the system places its threads."""

    def __post_init__(self) -> None:
        _require_name(self.file)
        require_cores(self.cores)


def _require_name(file: str) -> None:
    if not FILE_NAME.fullmatch(file) or file == MANIFEST:
        raise ValueError(f"{file!r} is no name of a file in the bundle's folder")


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
    """What the recipe reads."""
    parts: tuple[Artefact, ...] = ()
    """Graphs that run beside the first artefact: the encoder of a decoder."""
    sketch: Attachment | None = None
    """Figures of the calibration frames, with which a watch compares those of the field; None: none are kept."""

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
        return frozenset({MANIFEST, *(one.file for one in self.named), *weights})

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
    recipe = read_object(folder / MANIFEST, schema=SCHEMA, remedy=REMEDY, most_bytes=_MOST_BYTES).get("recipe")
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
    manifest = {
        "schema": SCHEMA,
        "artefacts": [dataclasses.asdict(other) for other in artefacts],
        "lighter": [dataclasses.asdict(other) for other in others],
        "parts": [dataclasses.asdict(other) for other, _ in parts],
        "selftest": dataclasses.asdict(test) if test else None,
        "sketch": dataclasses.asdict(kept) if kept else None,
        "attachments": [dataclasses.asdict(attachment) for attachment in attachments],
        "target": dataclasses.asdict(target.profile),
        "recipe": {key: value for key, value in dataclasses.asdict(deployed).items() if key != "folder"},
        "expected": dict(expected),
        "tools": dict(tools),
    }
    sealed = {**manifest, "sha256": seal(manifest)}
    write_beside(folder / MANIFEST, json.dumps(sealed, indent=2, allow_nan=False) + "\n")
    beside = tuple(other for other, _ in parts)
    known = dict(expected), dict(tools), others, test, attachments, beside, kept
    return Bundle(folder, artefacts, target, deployed, *known)


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
        if self.recipe.generation.encoder not in ("", *(part.file for part in self.parts)):
            raise ValueError("it does not name the encoder, which its recipe reads")
        for read in self.recipe.files:
            if read not in (self.recipe.generation.encoder, *(attachment.file for attachment in self.attachments)):
                raise ValueError(f"it does not name {read!r}, which its recipe reads")
        if len(self.lighter) > _MOST_LIGHTER:
            raise ValueError(f"it names {len(self.lighter)} lighter models, more than {_MOST_LIGHTER}")
        if not 1 <= len(self.artefacts) <= _MOST_ARTEFACTS:
            raise ValueError(f"it names {len(self.artefacts)} models, not 1 to {_MOST_ARTEFACTS}")


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and check the hash of its manifest and of every file that it names.

    Raises:
        InvalidFileError: If it is no bundle, of another schema, names a file outside its folder, is damaged, or if its
            folder holds a file that the manifest does not name.
    """
    bundle = parse_bundle(path)
    for one in bundle.named:
        require_whole(bundle, one)
    require_nothing_else(bundle.folder, bundle.files, MANIFEST)
    return bundle


def parse_bundle(path: Path) -> Bundle:
    """Read a bundle's manifest and check its hash; no other file is looked at. Raises as `read_bundle`."""
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
    values = read_object(file, schema=SCHEMA, remedy=REMEDY, most_bytes=_MOST_BYTES)
    if values.get("sha256") != seal(values):
        raise InvalidFileError(f"{file} differs from its own hash", remedy=REMEDY)
    said = parse_table(_Manifest, values, str(file))
    tools, lighter, selftest = said.tools, said.lighter, said.selftest
    recipe, attachments = dataclasses.replace(said.recipe, folder=folder), said.attachments
    known = tools, lighter, selftest, attachments, said.parts, said.sketch
    return Bundle(folder, said.artefacts, said.target, recipe, said.expected, *known)


def seal(manifest: Mapping[str, Any]) -> str:
    """Return the hash of what a manifest says, however it is laid out."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def require_whole(bundle: Bundle, named: Artefact | Weights | SelfTest | Attachment) -> None:
    """Raise InvalidFileError unless a file is in the folder, as long as the manifest says, and has its hash.

    Of a model the file with its weights too, where it has one.
    """
    if isinstance(named, Artefact) and named.weights:
        require_whole(bundle, named.weights)
    require_content(bundle.folder, named.file, named.size_bytes, named.sha256)
