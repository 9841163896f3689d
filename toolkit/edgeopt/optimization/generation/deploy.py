"""The bundle of a language model: the chosen form, its tokenizer, its recipe, and what was measured of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.model import load_model
from edgeopt.optimization.generation.guessing import with_guesses
from edgeopt.optimization.generation.result import BASELINE, LanguageForm, LanguageReport
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.bundle import Bundle, Expected, make_artefact, write_bundle
from edgeopt.runtime.bundle_models import in_bundle
from edgeopt.runtime.bundle_targets import MEASURED_ON, ORIGINAL, this_machine
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.selftest import record_logits
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.environment import package_versions, read_environment

FOLDER, MODEL = "bundle", "model.onnx"


def deploy_language_model(report: LanguageReport, target: Target, recipe: Recipe) -> Bundle:
    """Write the bundle of the chosen form into the output folder.

    Args:
        report: Whose choice it is.
        target: Whose engine opens it, with the entries with which forms were measured.
        recipe: Of the model, with the folder in which its tokenizer lies.

    Raises:
        InvalidFileError: If the disk is full.
    """
    best, weights = report.best, dict[str, PieceLayout]()
    baseline = next(form for form in report.forms if form.name == BASELINE)
    model = load_model(Path(best.file), in_place=True)
    data, beside = in_bundle(model, weights)
    made = make_artefact(MODEL, data, best.precision, target, report.threads, model.inputs, model.outputs)
    with open_language_model(Path(best.file), report.threads)[0] as judged:
        test, numbers, limit = record_logits(judged, best.precision)
    made = replace(made, weights=beside, expected=Expected(agreement=best.agreement), noise_limits={LOGITS: limit})
    return write_bundle(
        report.folder / FOLDER,
        [(made, data)],
        target,
        with_guesses(recipe, report.guessing),
        {**told_of(report, best), ORIGINAL: load_model(Path(baseline.file), in_place=True).fingerprint},
        package_versions(),
        weights=weights,
        selftest=(test, numbers),
    )


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
    return {"word": best.word, "samples": windows, "allowed": report.max_rise, "rise_most": best.rise.high}
