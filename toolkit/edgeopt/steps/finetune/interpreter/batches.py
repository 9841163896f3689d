"""Many samples in a graph that was made for one, all at once, where it is certain that each gets its own answer.

A tensor of several samples is the samples' tensors, one behind the other along one of its axes (not always the first: a
Transpose moves it, a Reshape folds it into rows or heads). `rules.py` says for each op what becomes of that axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgeopt.executors._torch.plan import ComputationPlan, NodeStep, arguments
from edgeopt.steps.finetune.interpreter.rules import RULES, Case, Ruling, Shape, Unproven

__all__ = ["Unproven", "batched"]


def batched(plan: ComputationPlan, inputs: Mapping[str, int], samples: int) -> ComputationPlan:
    """Return the plan for several samples at once.

    Args:
        plan: For one sample, with its shapes.
        inputs: Axis of the samples in each input that has one.
        samples: How many.

    Raises:
        Unproven: Where a node is met of which that is not certain.
    """
    axes, known, steps = dict(inputs), dict(plan.known), []
    for step in plan.steps:
        held = [axes.get(name) for name in step.inputs]
        if all(one is None for one in held):
            steps.append(step)
            continue
        ruling = _rule(plan, step, held, samples)
        names = list(step.inputs)
        for place, value in ruling.replaced.items():
            names += [""] * (place + 1 - len(names))
            names[place] = f"{step.outputs[0]}\n{place}"  # no name of a model breaks the line
            known[names[place]] = value
        axes |= dict(zip(step.outputs, ruling.axes, strict=False))
        changed = replace(step, inputs=tuple(names), repeats=ruling.repeats)
        steps.append(changed if ruling.shape is None else _reshaped(changed, ruling.shape))
    return ComputationPlan(tuple(steps), known, samples, axes, plan.sizes)


def _reshaped(step: NodeStep, shape: Shape) -> NodeStep:
    return replace(step, compute=lambda _node, x, *_: x.reshape(shape), inputs=step.inputs[:1], repeats={})


def _rule(plan: ComputationPlan, step: NodeStep, held: Sequence[int | None], samples: int) -> Ruling:
    rule = RULES.get(step.node.op)
    shapes = [plan.sizes[name] if name else None for name in step.inputs]
    made = [plan.sizes.get(name, ()) for name in step.outputs]
    if rule is None or any(0 in one for one in made):
        raise Unproven
    case = Case(step.node, shapes, held, made, arguments(plan, step), samples)
    ruling = rule(case)
    for axis, shape in zip(ruling.axes, made, strict=False):
        if not 0 <= axis < len(shape):
            raise Unproven
    return ruling
