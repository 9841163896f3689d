"""The bundle of an encoder with a decoder: the chosen graphs, all that is read beside them, and what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.model import load_model
from edgeopt.optimization.generation.deploy import FOLDER, told_of
from edgeopt.optimization.generation.result import LanguageReport
from edgeopt.recipes.texts.encoder_decoder import read_encoder_decoder, recipe_of
from edgeopt.runtime.bundle import Artefact, Bundle, Expected, make_artefact, write_bundle
from edgeopt.runtime.bundle_models import in_bundle
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.selftest_pair import record_pair
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.environment import package_versions


def deploy_encoder_decoder(report: LanguageReport, target: Target) -> Bundle:
    """Write the bundle of the chosen form into the output folder.

    Args:
        report: Whose choice it is.
        target: Whose engine opens it, with the entries with which forms were measured.

    Raises:
        InvalidFileError: If the disk is full.
    """
    best, weights = report.best, dict[str, PieceLayout]()
    files = read_encoder_decoder(Path(best.file))
    heard, _, written = best.precision.partition("-")
    made = list[tuple[Artefact, bytes]]()
    for file in files.files:
        model = load_model(file)
        data, beside = in_bundle(model, weights)
        precision = heard if file == files.encoder else (written or heard).partition("+")[0]
        other = make_artefact(file.name, data, precision, target, report.threads, model.inputs, model.outputs)
        made.append((replace(other, weights=beside, expected=Expected(agreement=best.agreement)), data))
    with open_encoder_decoder(Path(best.file), report.threads) as judged:
        test, numbers, limit = record_pair(judged, best.precision)
    named = {artefact.file: (artefact, data) for artefact, data in made}
    decoder, decoder_data = named.pop(files.following.name)
    return write_bundle(
        report.folder / FOLDER,
        [(replace(decoder, noise_limits={LOGITS: limit}), decoder_data)],
        target,
        replace(recipe_of(files), name=report.model),
        told_of(report, best),
        package_versions(),
        weights=weights,
        parts=list(named.values()),
        selftest=(test, numbers),
    )
