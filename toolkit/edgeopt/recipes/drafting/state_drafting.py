"""States of a model for which a recipe is drafted: read where names tell, asked where shapes alone do."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.graph.facts.states import find_states, possible_states
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.questions import Ask, RecipeQuestion
from edgeopt.recipes.drafting.text_drafting import NOT_KNOWN


def draft_states(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], ask: Ask
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the output that feeds each state, by the input's name, and the comment of `input.states`.

    Args:
        inputs: Of the model.
        outputs: Of the model.
        ask: Answers what names do not tell.
    """
    states = find_states(inputs, outputs)
    parts = ["by names, shapes and types"] if states else []
    is_guess = False
    for name, fitting in possible_states(inputs, outputs, states).items():
        left = [output for output in fitting if output not in states.values()]
        if not left or len(states) + 1 >= min(len(inputs), len(outputs)):
            continue
        options = {"no: it is fed anew each time": "", **{f"yes, from output {output}": output for output in left}}
        answer = ask(RecipeQuestion(f"Does input {name} take an output of the sample before?", options))
        if answer is None:
            is_guess = True
            parts.append(f"{name} may take {' or '.join(left)} of the sample before")
        elif answer:
            states[name] = answer
            parts.append(f"{name} as answered")
    return states, {"input.states": f"{NOT_KNOWN if is_guess else ''}{'; '.join(parts)}"} if parts else {}
