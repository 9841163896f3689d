"""The bundle of a language model: the chosen form, its tokenizer, its recipe, and what was measured of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeopt.executors._prompt_graph import OPENVINO
from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.executors.openvino.pages import options_on_openvino
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.model import load_model
from edgeopt.optimization.generation.forms.image_encoder import ChosenEncoder, file_of_encoder
from edgeopt.optimization.generation.forms.prompts_elsewhere import scheme_of
from edgeopt.optimization.generation.forms.split import PREFILL, models_in_bundle
from edgeopt.optimization.generation.guessing import with_guesses
from edgeopt.optimization.generation.result import BASELINE, ORIGINALS, LanguageForm, LanguageReport
from edgeopt.recipes.drafting.image_drafting import IMAGE_ENCODER
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.bundle import Bundle, make_artefact, write_bundle
from edgeopt.runtime.bundles.models import in_bundle
from edgeopt.runtime.bundles.parts import Artefact, Expected
from edgeopt.runtime.bundles.targets import MEASURED_ON, ORIGINAL, this_machine
from edgeopt.runtime.decoding.binding import open_image_reader
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.selftest import record_logits
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.environment import package_versions, read_environment

FOLDER, MODEL = "bundle", "model.onnx"


def deploy_language_model(
    report: LanguageReport, target: Target, recipe: Recipe, encoder: ChosenEncoder | None = None
) -> Bundle:
    """Write the bundle of the chosen form into the output folder.

    Args:
        report: Whose choice it is.
        target: Whose engine opens it, with the entries with which forms were measured.
        recipe: Of the model, with the folder in which its tokenizer lies.
        encoder: Form of the encoder of pictures that takes the place of the given one; None: none does.

    Raises:
        InvalidFileError: If the disk is full.
    """
    best, weights = report.best, dict[str, PieceLayout]()
    baseline = next(form for form in report.candidates if form.name in ORIGINALS)
    made, *beside = _stored(best, target, report.threads, weights)
    artefact, data = made
    with open_language_model(Path(best.file), report.threads)[0] as judged:
        graphs = (artefact, *(graph for graph, _ in beside))
        precision = next((graph.precision for graph in graphs if graph.precision.startswith("w")), artefact.precision)
        if recipe.image.sees:
            if judged.images is not None:  # of the original, where it was chosen
                judged.images.close()
            file = file_of_encoder(recipe, encoder)
            judged.images = open_image_reader(file, recipe, judged.tokenizer, report.threads)
            precision = encoder.precision if encoder and not precision.startswith("w") else precision
        test, numbers, limit = record_logits(judged, precision)
    artefact = replace(artefact, expected=Expected(agreement=best.agreement), noise_limits={LOGITS: limit})
    parts = [_image_encoder(recipe, encoder, target, report.threads, weights)] if recipe.image.sees else []
    if parts:
        recipe = replace(recipe, image=replace(recipe.image, encoder=IMAGE_ENCODER))
    return write_bundle(
        report.folder / FOLDER,
        [(artefact, data)],
        target,
        with_guesses(recipe, report.guessing),
        {**told_of(report, best), ORIGINAL: load_model(Path(baseline.file), in_place=True).fingerprint},
        package_versions(),
        weights=weights,
        selftest=(test, numbers),
        parts=[*beside, *parts],
    )


def _stored(
    form: LanguageForm, target: Target, threads: int, weights: dict[str, PieceLayout]
) -> list[tuple[Artefact, bytes]]:
    """Return the graphs of a form as the bundle stores them: the model, and that of prompts where it is another."""
    file = Path(form.file)
    if form.prompts_by:
        stored = models_in_bundle(file, weights)
    else:
        model = load_model(file, in_place=True)
        stored = [(model, *in_bundle(model, weights))]
    scheme = form.tokens_by.partition("+")[0] or form.precision
    opened, elsewhere = options_on_openvino(threads), scheme_of(form.prompts_by)
    on_openvino = replace(target, executor=OPENVINO, providers=opened.providers, options=opened.entries)
    of_tokens, of_prompts = on_openvino if form.engine else target, on_openvino if elsewhere else target
    ways = (MODEL, scheme, of_tokens), (PREFILL, elsewhere or form.prompts_by.partition("+")[0], of_prompts)
    return [
        (
            replace(make_artefact(name, data, precision, how, threads, model.inputs, model.outputs), weights=beside),
            data,
        )
        for (model, data, beside), (name, precision, how) in zip(stored, ways, strict=False)
    ]


def _image_encoder(
    recipe: Recipe, chosen: ChosenEncoder | None, target: Target, threads: int, weights: dict[str, PieceLayout]
) -> tuple[Artefact, bytes]:
    """Return the encoder of pictures as it lies in the bundle: the form that was chosen, or the one that was given."""
    model = load_model(file_of_encoder(recipe, chosen))
    data, beside = in_bundle(model, weights)
    precision = BASELINE if chosen is None else chosen.precision
    made = make_artefact(IMAGE_ENCODER, data, precision, target, threads, model.inputs, model.outputs)
    return replace(made, weights=beside), data


def told_of(report: LanguageReport, best: LanguageForm) -> dict[str, Any]:
    """Return what a manifest tells of the chosen form."""
    return {
        "form": best.name,
        "perplexity": best.perplexity,
        "agreement": best.agreement,
        "proof": _proof(report, best),
        "prompt_tokens": report.prompt_tokens,
        "output_tokens": report.output_tokens,
        "ttft_p50_ms": best.times_ms.get("TTFT"),
        "tpot_p50_ms": best.times_ms.get("TPOT"),
        "machine": read_environment().hash,
        MEASURED_ON: this_machine().to_json(),
    }


def _proof(report: LanguageReport, best: LanguageForm) -> dict[str, Any] | None:
    """Return the word of the chosen form's accuracy and the bound that it rests on; None: it is the original."""
    if best.rise is None:
        return None
    windows = best.windows or report.windows
    words = {"words_most": best.words.high} if best.words else {}
    return {
        "word": best.word,
        "samples": windows,
        "window_tokens": report.window_tokens,
        "allowed": report.max_drop,
        "rise_most": best.rise.high,
        **words,
    }
