"""Options of `optimize` for a model that writes tokens."""

from __future__ import annotations

from dataclasses import dataclass

from edgeopt.measurement.common_options import MODEL, output_tokens_option, prompt_tokens_option, threads_option
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.options import OUTPUT_TOKENS, PROMPT_TOKENS
from edgeopt.optimization.options import DEMANDS, LENGTH, SAMPLES
from edgeopt.recipes.default_limits import MAX_RISE
from edgeopt.recipes.texts.answer_defaults import MOST_SLOTS
from edgeopt.system.declared.options import FileUse, Syntax, option
from edgeopt.system.machine.threads import DEFAULT_THREADS

LEAST_PROCESSES = 6
"""Fresh processes that prove a choice: fewer give their median no interval of 95 %."""


@dataclass(frozen=True)
class LanguageOptions:
    """Lengths, budget and judge of a language model's forms."""

    prompt_tokens: int = prompt_tokens_option(PROMPT_TOKENS)
    output_tokens: int = output_tokens_option(OUTPUT_TOKENS)
    """Output tokens of the answers for which it is made fast."""
    max_drop: float | None = option(
        None,
        "For a language model: the share by which its perplexity may rise.",
        group=DEMANDS,
        syntax=Syntax.NUMBER,
        least=0,
        most=1,
        shown=f"for a language model {MAX_RISE:g}",
    )
    """Share by which the perplexity may rise; None: `MAX_RISE`."""
    eval: str = option(
        "",
        "For a language model: a text; for an encoder with a decoder: sounds or texts.",
        group=SAMPLES,
        metavar="LABELS",
        file_use=FileUse.READ,
        shown="the recipe's own",
    )
    """File of text that judges; empty: the recipe's own."""
    calib: str = option(
        "",
        "For a language model: a text.",
        group=SAMPLES,
        metavar="TEXT",
        file_use=FileUse.READ,
        shown="the recipe's own",
    )
    """File of text that calibrates roundings; empty: see `read_texts`."""
    pictures: str = option(
        "",
        "For a language model that sees: folder of pictures that calibrate and judge its encoder in INT8.",
        group=SAMPLES,
        metavar="FOLDER",
        file_use=FileUse.READ,
        shown="the encoder stays in float",
    )
    """Folder of pictures for the encoder of a model that sees; empty: its encoder stays as it is."""
    threads: int = threads_option(MODEL, f"for a language model {DEFAULT_THREADS}")
    seconds: float = 20.0
    """Time for the long rounds of the contest."""
    budget: AnswerBudget | None = option(
        None,
        "For a language model: ttft:200ms,tpot:20ms (first token, each next token).",
        group=DEMANDS,
        syntax=Syntax.ANSWER_BUDGET,
        shown="none for a language model",
    )
    """Limits that the chosen form is to keep; None: no gate."""
    memory_bytes: int | None = option(
        None,
        "For a language model: memory that its weights and the cache of one answer may take, such as 300MiB.",
        "--memory",
        group=DEMANDS,
        syntax=Syntax.BYTES,
        shown="no limit",
    )
    """Most bytes that weights and the cache of one answer may take; a form that takes more is out. None: no limit."""
    clients: int = option(
        1,
        "For a language model: answers that are written at once, as by edgeopt serve --slots.",
        group=DEMANDS,
        syntax=Syntax.WHOLE,
        least=1,
        most=MOST_SLOTS,
    )
    """Answers that forms are timed with at once; of several the slowest counts."""
    processes: int = LEAST_PROCESSES
    """Fresh ones that prove the choice; 2 or more."""
    resume: bool = option(
        False, "Take up an interrupted run: its finished candidates are kept.", group=LENGTH, syntax=Syntax.FLAG
    )
    """Take up the forms that an interrupted run made."""
    time_limit_s: float | None = option(
        None, "Time for the whole command, such as 5m.", "--time-limit", group=LENGTH, syntax=Syntax.SECONDS
    )
    """Until forms are made, judged and proven; within 1.1 times this and a few answers all is written."""

    @property
    def max_rise(self) -> float:
        """Share by which the perplexity may rise."""
        return MAX_RISE if self.max_drop is None else self.max_drop
