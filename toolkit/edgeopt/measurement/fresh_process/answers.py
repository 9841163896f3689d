"""Two forms of a language model in turns in a fresh process: where a session lies in memory moves it by 10 to 20 %.

Run by itself as a module with a folder; request and answer are files of that folder.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.fresh_process.process import run_child
from edgeopt.measurement.generation.sides.at_once import for_clients
from edgeopt.measurement.generation.sides.turns import PARTS, FormTurns, Prompt, logs_between, measure_in_turns
from edgeopt.measurement.statistics.ratio import Ratio, centre_of_rounds, ratio_of_rounds
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_writer
from edgeopt.system.disk.links import pinned
from edgeopt.system.processes.time_limit import require_time, time_left_s

_LONGEST_S = 3600.0
_REQUEST, _ANSWER = "request.pickle", "answer.pickle"
"""Both are written and read by this very program, in a folder that only this user opens."""


def answer_fresh(
    original: Path,
    other: Path,
    prompts: Sequence[Prompt],
    asked: AnswerOptions,
    threads: int,
    rounds: int,
    number: int,
    entries: Mapping[str, str],
    clients: int = 1,
) -> tuple[FormTurns, FormTurns]:
    """Return the times of the original and of another form, in turns in one fresh process.

    Args:
        original: Its file.
        other: The form's file; both have recipe and tokenizer beside them.
        prompts: Tokens, or what an encoder hears or reads; one a round.
        asked: Of each answer.
        threads: Of the engine.
        rounds: How many.
        number: Of the process: every other one opens the form first.
        entries: Of both sessions.
        clients: Answers at once; of several the models are language models.

    Raises:
        EdgeoptError: If the process fails.
        OutOfTime: If it does not end before a time limit does.
    """
    with tempfile.TemporaryDirectory(prefix="edgeopt-fresh-") as folder:
        files = [str(pinned(original)), str(pinned(other))]
        request = files, list(prompts), asked, threads, rounds, number, dict(entries), clients
        (Path(folder) / _REQUEST).write_bytes(pickle.dumps(request))
        longest_s = min(_LONGEST_S, max(time_left_s(), 0.0))
        try:
            run_child("fresh_process.answers", folder, longest_s=longest_s, remedy="run edgeopt doctor")
        except EdgeoptError:
            require_time()
            raise
        first, second = pickle.loads((Path(folder) / _ANSWER).read_bytes())
    return FormTurns(first), FormTurns(second)


def ratios_over(processes: Sequence[tuple[FormTurns, FormTurns]]) -> Mapping[str, Ratio]:
    """Return the ratio of each part over two or more processes; what one of them gives is one value."""
    ratios = dict[str, Ratio]()
    for part in PARTS:
        centres = np.array([centre_of_rounds(logs_between(*both, part)) for both in processes])
        ratios[part] = replace(ratio_of_rounds(centres, pairs=len(centres)), processes=len(centres))
    return ratios


def main() -> int:
    """Do what the request in the folder says; return the exit code."""
    folder = Path(sys.argv[1])
    files, prompts, asked, threads, rounds, number, entries, clients = pickle.loads((folder / _REQUEST).read_bytes())
    with ExitStack() as stack:
        models = dict[str, LanguageModel | EncoderDecoder]()
        for i in ((1, 0), (0, 1))[number % 2]:
            opened = open_writer(Path(files[i]), threads, entries)
            stack.callback(opened.close)
            models[str(i)] = opened
        sides = stack.enter_context(for_clients(models, clients))
        turns = measure_in_turns(
            sides, dict.fromkeys(sides, prompts), asked, 0.0, least=rounds, most=rounds, first=number
        )
    (folder / _ANSWER).write_bytes(pickle.dumps((turns["0"].times_ns, turns["1"].times_ns)))
    sys.stdout.write("{}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
