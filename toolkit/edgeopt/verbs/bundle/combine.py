"""One bundle for several targets, and one target out of it.

Files lie in the folder of the new bundle once, by their content: models are called by their hash. The manifest says for
each target what its own bundle said.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.generation import GENERATION
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.report.result import PlainResult
from edgeopt.runtime.bundle import (
    MOST_TARGETS,
    SCHEMA,
    SEVERAL,
    Bundle,
    manifest_of,
    parse_bundle,
    ranked,
    read_bundle,
    write_manifest,
)
from edgeopt.runtime.bundles.folder import MANIFEST, names_in, remove_stale, require_nothing_else
from edgeopt.runtime.bundles.parts import Artefact, Attachment
from edgeopt.runtime.bundles.targets import (
    ORIGINAL,
    MeasuredOn,
    TargetFit,
    TargetStanding,
    frame_ms,
    measured_on,
    why_one_target,
)
from edgeopt.system.disk.files import require_space, unwritable
from edgeopt.system.text import format_bytes, format_ms

_HASH_DIGITS = 12
_NAMED_BY_HASH = re.compile(rf"-[0-9a-f]{{{_HASH_DIGITS}}}(?=\.)")
"""The part of a name that `combine_bundles` puts in."""
_OTHERWISE = (
    "tokenizer",
    "folder",
    "embedded",
    "input",
    "preprocess",
    "match",
    "description",
    "license",
    "source",
    "check",
    "generation",
)
"""Fields in which recipes of one model may differ: folder and description, parts that a form holds itself, size of its
pictures, guesses of tokens, and fields on which no answer depends. In `preprocess` the crop and the part of its size at
which a JPEG file is decoded may differ."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file that goes into the new folder."""

    source: Path
    name: str
    size_bytes: int


def combine_bundles(bundles: Sequence[str | Path], out: str | Path, *, devices: Sequence[str] = ()) -> Bundle:
    """Write one bundle for the targets of several, of which the runtime picks one on each device.

    Of two that were measured for one target on one kind of processor and system the faster one is kept.

    Args:
        bundles: Their folders, or the output folders that hold them; one for several targets brings all of its own.
        out: Folder to write.
        devices: Names of the devices that they were measured on, as many as bundles; empty: none is told.

    Raises:
        InvalidFileError: If one is damaged, or the folder holds something else or cannot be written.
        EdgeoptError: If they are not of one model and one recipe.
    """
    if devices and len(devices) != len(bundles):
        raise ValueError(f"{len(devices)} devices are named for {len(bundles)} bundles")
    folder, parsed = Path(out), [*_parse_all(bundles, devices)]
    if not parsed:
        raise EdgeoptError("no bundle is named", remedy="name the output folders of edgeopt optimize")
    for other in parsed[1:]:
        _require_alike(parsed[0], other)
    kept = _labelled(_fastest(parsed))
    for path in {each.folder for each in kept}:
        read_bundle(path)  # a fleet brings thousands of which few are kept: only these are hashed
    if len(kept) > MOST_TARGETS:
        raise EdgeoptError(
            f"these are {len(kept)} targets, and a bundle is for {MOST_TARGETS} at most",
            remedy="combine those of fewer kinds of devices",
        )
    common, known = _attachments(kept), dict[tuple[str, str], str]()
    files, recipes, targets = dict[str, _File](), list[dict[str, Any]](), list[dict[str, Any]]()
    for bundle in kept:
        names = _names_by_content(bundle, known)
        own = [replace(file, name=names.get(file.name, file.name)) for file in _files_of(bundle)]
        files |= {file.name: file for file in own if file.name not in common or common[file.name] is not None}
        targets.append(_target_of(_renamed(bundle, names), common, recipes))
    _write(folder, files.values(), {"schema": SEVERAL, "recipes": recipes, "targets": targets})
    return read_bundle(folder)


def size_of(bundle: Bundle) -> int:
    """Return the bytes of all files that a bundle names, for whichever target."""
    return sum({file.name: file.size_bytes for each in (bundle, *bundle.others) for file in _files_of(each)}.values())


def extract_bundle(bundle: str | Path, target: str, out: str | Path) -> Bundle:
    """Write the bundle for one of the targets of a bundle for several, as an app in another language takes it.

    Args:
        bundle: Its folder.
        target: Name of the target, with `@` and the device where there are several.
        out: Folder to write.

    Raises:
        NotFoundError: If it is not for that target.
        InvalidFileError: If it is damaged, or the folder holds something else or cannot be written.
        EdgeoptError: If several are called so.
    """
    whole, folder = read_bundle(Path(bundle), target), Path(out)
    alike = [each.label for each in (whole, *whole.others) if target in (each.label, each.target.name)]
    if len(alike) > 1 and target != whole.label:
        raise EdgeoptError(f"{bundle} is for several called {target}", remedy=f"name one: {', '.join(alike)}")
    files, names = list[_File](), {whole.artefacts[0].file: f"model{whole.model.suffix}"}
    for file in _files_of(whole):
        plain = _NAMED_BY_HASH.sub("", file.name)
        # What one target falls back to may be the model of another, by which the file is called.
        free = [name for name in (plain, f"fallback{Path(plain).suffix}") if name not in names.values()]
        names.setdefault(file.name, free[0] if free else file.name)
        files.append(replace(file, name=names[file.name]))
    _write(folder, files, {"schema": SCHEMA, **manifest_of(_renamed(whole, names))})
    return read_bundle(folder)


def bundle_verb(bundles: Sequence[Path], out: Path | None, target: str) -> tuple[Bundle, str]:
    """Look at a bundle, combine several, or take one target out; return the bundle and what was done, as a sentence.

    Args:
        bundles: One or more.
        out: Folder to write; None: it is looked at.
        target: What is taken out; empty: nothing.

    Raises:
        EdgeoptError: As `combine_bundles` and `extract_bundle`, or if these wishes do not go together.
    """
    if target and (out is None or len(bundles) > 1):
        problem = "--target takes one target out of one bundle, into a folder"
        raise EdgeoptError(problem, remedy="write edgeopt bundle BUNDLE --target NAME --out FOLDER")
    if out is None:
        if len(bundles) > 1:
            raise EdgeoptError("several bundles are combined into a folder", remedy="name it with --out")
        return read_bundle(bundles[0]), ""
    if target:
        return extract_bundle(bundles[0], target, out), f"{target} taken out: "
    return combine_bundles(bundles, out), "combined: "


def _parse_all(bundles: Sequence[str | Path], devices: Sequence[str]) -> Iterator[Bundle]:
    """Yield each target of each bundle, with the device that is told."""
    for path, device in zip(bundles, devices or [""] * len(bundles), strict=True):
        whole = parse_bundle(Path(path))
        if reason := why_one_target(whole.recipe):
            raise UnsupportedError(f"{path} {reason}", remedy="deploy each bundle to its own devices")
        targets = (whole, *whole.others)
        yield from (
            replace(each, device=device or each.device, others=(), standing=None)
            for each in sorted(targets, key=lambda each: each.standing.index if each.standing else 0)
        )


def _require_alike(first: Bundle, other: Bundle) -> None:
    """Raise where two bundles are not of one model, or are not fed and read alike."""
    both = f"{first.folder} and {other.folder}"
    remedy = "combine bundles that edgeopt optimize made of one model with one recipe"
    originals = [bundle.expected.get(ORIGINAL) for bundle in (first, other)]
    if not all(originals):  # older ones tell their float model alone
        originals = [bundle.artefacts[-1].sha256 for bundle in (first, other)]
    if originals[0] != originals[1]:
        hashes = " and ".join(str(digest)[:12] for digest in originals)
        raise EdgeoptError(f"{both} are of two models ({hashes})", remedy=remedy)
    differing = [
        field.name
        for field in dataclasses.fields(Recipe)
        if field.name not in _OTHERWISE and getattr(first.recipe, field.name) != getattr(other.recipe, field.name)
    ]
    if _tokenizer(first) != _tokenizer(other):
        differing.append("tokenizer")
    mine = first.recipe.preprocess
    if mine != replace(other.recipe.preprocess, crop_from=mine.crop_from, decode=mine.decode):
        differing.append("preprocess")
    if differing:
        raise EdgeoptError(f"the recipes of {both} differ in {', '.join(differing)}", remedy=remedy)


def _tokenizer(bundle: Bundle) -> object:
    """Return the tokenizer, whatever texts are filled to: engines differ in that, and each target has its recipe."""
    return replace(bundle.recipe.tokenizer, fill=Fill.USUAL)


def _fastest(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return of each target the bundle that was fastest on each kind of machine, in the order in which they came.

    Where nothing tells on which machine, one of those with the same model.
    """
    best: dict[tuple[str, MeasuredOn | str], Bundle] = {}
    for bundle in bundles:
        key = bundle.target.name, measured_on(bundle.expected) or bundle.artefacts[0].sha256
        if key not in best or _ms(bundle) < _ms(best[key]):
            best[key] = bundle
    return [bundle for bundle in bundles if any(bundle is each for each in best.values())]


def _ms(bundle: Bundle) -> float:
    return frame_ms(bundle.expected) or float("inf")


def _labelled(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return bundles whose labels differ: where two are called alike, by processor, else by number."""
    used, labelled = set[str](), list[Bundle]()
    for bundle in bundles:
        others = [other for other in bundles if other.label == bundle.label]
        if len(others) > 1:
            there = measured_on(bundle.expected)
            name = re.sub(r"[^A-Za-z0-9]+", "-", there.processor if there else "").strip("-").lower()[:40]
            bundle = replace(bundle, device="-".join(filter(None, (bundle.device, name))))
        base, number = bundle.device, 2
        while bundle.label in used:
            bundle, number = replace(bundle, device="-".join(filter(None, (base, str(number))))), number + 1
        used.add(bundle.label)
        labelled.append(bundle)
    return labelled


def _files_of(bundle: Bundle) -> Iterator[_File]:
    """Yield each file of one target once."""
    weights = (each.weights for each in bundle.named if isinstance(each, Artefact) and each.weights)
    for name, size_bytes in {each.file: each.size_bytes for each in (*bundle.named, *weights)}.items():
        yield _File(bundle.folder / name, name, size_bytes)


def _names_by_content(bundle: Bundle, known: dict[tuple[str, str], str]) -> dict[str, str]:
    """Return new names of models and tests, with their hashes, by which equal ones of several targets are one file.

    Weights are called so already, and a model names them; what a recipe reads and other tools look for keeps its name.

    Args:
        bundle: For one target.
        known: Hash and suffix to the new name; those that are new are put in.
    """
    names = dict[str, str]()
    for each in bundle.named:
        if isinstance(each, Attachment) and each is not bundle.sketch:
            continue
        suffix = Path(each.file).suffix
        stem = _NAMED_BY_HASH.sub("", each.file).removesuffix(suffix)
        names[each.file] = known.setdefault((each.sha256, suffix), f"{stem}-{each.sha256[:_HASH_DIGITS]}{suffix}")
    return names


def _renamed(bundle: Bundle, names: dict[str, str]) -> Bundle:
    """Return a bundle with other names of its files."""

    def renamed(each: Any) -> Any:
        return replace(each, file=names.get(each.file, each.file))

    return replace(
        bundle,
        artefacts=tuple(map(renamed, bundle.artefacts)),
        lighter=tuple(map(renamed, bundle.lighter)),
        parts=tuple(map(renamed, bundle.parts)),
        attachments=tuple(map(renamed, bundle.attachments)),
        selftest=renamed(bundle.selftest) if bundle.selftest else None,
        sketch=renamed(bundle.sketch) if bundle.sketch else None,
    )


def _attachments(bundles: Iterable[Bundle]) -> dict[str, Attachment | None]:
    """Return what lies beside the models by its name; None: two targets have other files of that name.

    Raises:
        EdgeoptError: If a recipe reads such a file.
    """
    common = dict[str, Attachment | None]()
    for bundle in bundles:
        for each in bundle.attachments:
            if common.setdefault(each.file, each) == each:
                continue
            if each.file in bundle.recipe.files or bundle.recipe.task == GENERATION:
                raise EdgeoptError(
                    f"{each.file} of {bundle.folder} is another than that of the bundle before",
                    remedy="combine bundles that edgeopt optimize made of one model with one recipe",
                )
            common[each.file] = None
    return common


def _target_of(bundle: Bundle, common: dict[str, Attachment | None], recipes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the manifest says of one target; a recipe that is new is put behind the others."""
    whole = replace(bundle, attachments=tuple(each for each in bundle.attachments if common[each.file] is not None))
    manifest = manifest_of(whole)
    recipe = manifest.pop("recipe")
    if recipe not in recipes:
        recipes.append(recipe)
    return {"device": bundle.device, "recipe": recipes.index(recipe), **manifest}


def _write(folder: Path, files: Iterable[_File], manifest: dict[str, Any]) -> None:
    """Write a bundle's files into a folder, the manifest last: a torn bundle is none."""
    files = [*files]
    if any(folder.resolve() == file.source.parent.resolve() for file in files):
        raise EdgeoptError(f"{folder} is one of the bundles themselves", remedy="name another folder with -o")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise InvalidFileError(f"{folder} holds something else", remedy="name a new folder with -o")
    before = names_in(folder / MANIFEST) if (folder / MANIFEST).is_file() else []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if before:
            require_nothing_else(folder, [MANIFEST, *(name for name in before if isinstance(name, str))], MANIFEST)
        (folder / MANIFEST).unlink(missing_ok=True)
        require_space(folder, sum(file.size_bytes for file in files))
        for file in files:
            _place(file.source, folder / file.name)
        remove_stale(folder, before, {file.name for file in files})
    except OSError as error:
        raise unwritable(folder, error) from error
    write_manifest(folder, manifest)


def _place(source: Path, path: Path) -> None:
    """Put a file where it belongs: as a second name of the same bytes where the disk has that."""
    path.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), path)
    except OSError:  # another disk, or a system without links
        shutil.copyfile(source, path)


# The lines of `edgeopt bundle`.

_HERE = {
    TargetFit.MEASURED: "measured here",
    TargetFit.SAME_INSTRUCTIONS: "same instructions",
    TargetFit.MADE_FOR: "fits",
    TargetFit.BY_NUMBERS: "by its numbers",
    TargetFit.NOT_HERE: "falls back",
}


def summarize(bundle: Bundle, wrote: str = "") -> Document:
    """Return what is shown of a bundle: its targets, and which of them runs here.

    Args:
        bundle: As it was read.
        wrote: What a command did, as a sentence; empty: it was looked at.
    """
    targets = [bundle, *bundle.others] if bundle.standing else ranked([bundle])
    size, alone = size_of(bundle), sum(size_of(replace(each, others=())) for each in targets)
    columns: dict[str, Callable[[Bundle], str]] = {
        "target": lambda each: each.label,
        "engine": lambda each: each.artefacts[0].executor,
        "precision": lambda each: each.artefacts[0].precision,
        "p50 ms": lambda each: format_ms(ms * 1e6) if (ms := frame_ms(each.expected)) else "",
        "measured on": lambda each: there.processor if (there := measured_on(each.expected)) else "",
        "here": lambda each: _HERE[_standing(each).fit],
    }
    table = make_table(targets, columns, words=["engine", "precision", "measured on", "here"], less=["measured on"])
    reasons = tuple(Value(each.label, _standing(each).reason) for each in targets)
    saved = f", {format_bytes(alone)} as bundles for one target each" if len(targets) > 1 else ""
    facts = (Value("size", f"{format_bytes(size)}{saved}"),)
    first = targets[0]
    which = f"{first.label} first" if len(targets) > 1 else first.label
    picks = f"this machine tries {which}" if first.leads else "this machine runs what it falls back to alone"
    verdict = VerdictLines(
        CommandOutcome.DONE,
        f"{wrote}{picks}" + (f", of {len(targets)} targets" if len(targets) > 1 else ""),
        facts,
        bundle=str(bundle.folder) if wrote else "",
        next_command=f"edgeopt bench {shlex.quote(str(bundle.folder))}",
    )
    sections = (Section(table=table), Section("Why", values=reasons))
    result = PlainResult(command="bundle", figures=_figures(targets, size))
    return Document(result, str(bundle.folder), f"Bundle {bundle.folder}", sections, verdict=verdict)


def _figures(targets: list[Bundle], size_bytes: int) -> dict[str, Any]:
    """Return plain values."""
    return {
        "folder": str(targets[0].folder),
        "size_bytes": size_bytes,
        "targets": [
            {
                "name": each.label,
                "target": each.target.name,
                "device": each.device,
                "model": each.artefacts[0].file,
                "executor": each.artefacts[0].executor,
                "precision": each.artefacts[0].precision,
                "measured_on": there.to_json() if (there := measured_on(each.expected)) else None,
                "p50_ms": frame_ms(each.expected),
                "fit": _HERE[_standing(each).fit],
                "reason": _standing(each).reason,
            }
            for each in targets
        ],
    }


def _standing(bundle: Bundle) -> TargetStanding:
    assert bundle.standing
    return bundle.standing
