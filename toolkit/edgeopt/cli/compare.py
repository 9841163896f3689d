"""`edgeopt compare`."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._options import (
    TERMINAL,
    eval_option,
    format_option,
    output_tokens_option,
    prompt_tokens_option,
    recipe_option,
    refuse_lengths,
    require_only,
    seed_option,
    shape_option,
    source_option,
    target_option,
    threads_option,
)
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Duration, ModelName, Share


@click.command()
@click.argument("subjects", nargs=-1, type=ModelName(), metavar="A B [C]...")
@target_option
@recipe_option
@shape_option
@source_option("those of the first recipe")
@eval_option("Compare the accuracy too, by labels", name="eval")
@prompt_tokens_option
@output_tokens_option
@threads_option()
@click.option(
    "--seconds", type=Duration("s"), default="20s", show_default=True, help="How long all together are measured."
)
@click.option("--margin", type=Share(), default="2%", show_default=True, help="Speeds as near as this are equal.")
@seed_option
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), help="Folder for compare.json, .md, .html and the raw samples."
)
@format_option
@click.pass_context
def compare(
    ctx: click.Context,
    *,
    subjects: tuple[str, ...],
    target: str,
    recipe: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    source: str | None,
    eval: str | None,  # noqa: A002  (the option's name)
    prompt_tokens: int | None,
    output_tokens: int | None,
    threads: int | None,
    seconds: float,
    margin: float,
    seed: int,
    out: Path | None,
    form: str,
) -> None:
    """Compare the speed of B, C and more with that of A.

    They are ONNX files, names of shipped models and bundles, which run in turns; or results of `edgeopt bench -o`.
    Says FASTER, SLOWER, EQUIVALENT or INCONCLUSIVE of the whole frame and of each stage. Exit code 0, or 1 on an
    error: the gate is `edgeopt check`. Of language models: whole answers, first and next tokens, and the perplexity on
    the text of --eval. Of encoders with decoders too: --eval is a folder of .wav files, or a file with a text in each
    line.
    """
    from edgeopt.measurement.compare.run import compare as run
    from edgeopt.measurement.compare.summary import summarize
    from edgeopt.measurement.generation.compare import compare_language_models
    from edgeopt.measurement.generation.compare_summary import summarize_comparison
    from edgeopt.measurement.generation.side_by_side import SideOptions, labels_for
    from edgeopt.pipeline.answering import is_encoder_decoder
    from edgeopt.pipeline.writing import find_language_model, is_language_model

    writers = [one for one in subjects if is_encoder_decoder(one) or is_language_model(one)]
    if writers and len(writers) < len(subjects):
        other = next(one for one in subjects if one not in writers)
        find_language_model(other)  # which says what is wrong with it, or that it is to be exported
        raise click.UsageError(f"{writers[0]} is a language model, and {other} is none")
    if writers:
        require_only(ctx, "eval", "prompt_tokens", "output_tokens", "threads", "seconds", "margin", "form")
        if len(writers) < 2:
            raise click.UsageError("name two or more models to compare")
        labels = labels_for(subjects)
        asked = SideOptions(prompt_tokens or 128, output_tokens or 64, eval or "", threads or 0, seconds)
        models = {label: find_language_model(one) for label, one in zip(labels, subjects, strict=True)}
        with Progress(quiet=form != TERMINAL) as progress:
            compared = compare_language_models(models, asked, margin=margin, tell=progress.progress)
        show(summarize_comparison(compared), form)
        ctx.exit(compared.exit_code)
    refuse_lengths(prompt_tokens, output_tokens)
    with Progress(quiet=form != TERMINAL) as progress:
        result = run(
            *subjects,
            target=target,
            recipe=recipe,
            shapes=dict(shapes),
            source=source,
            eval=eval,
            threads=threads or 0,
            seconds=seconds,
            margin=margin,
            seed=seed,
            out=out,
            tell=progress.progress,
        )
    show(summarize(result), form)
    ctx.exit(result.exit_code)


COMMAND = compare
