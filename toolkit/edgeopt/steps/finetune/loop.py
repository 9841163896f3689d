"""The loop of a training: batches, steps, held-out pictures, the best weights, and where it stands at any time.

What a step does follows from the seed and its number alone, so that a training that was interrupted goes on to the
same bytes. The clock decides two things: how many steps fit, once, after the first few; and the end, if it comes early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Tensors
from edgeopt.steps.finetune.checkpoint import Checkpoint
from edgeopt.steps.finetune.optimizer import Optimizer
from edgeopt.steps.finetune.standing import HeldOutCheck, Standing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from edgeopt.steps.finetune.losses import OutputLoss

BATCH = 4
"""Pictures a step: features hold many values a picture, so that more steps teach more than larger ones."""
RATES = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
"""Largest shares by which a step changes what a layer makes: see `Optimizer`."""
_WARM_UP = 8
"""Steps with smaller rates, at first."""
_TRIAL = 12
"""Steps that each rate is tried for, or a tenth of all, if they are fewer."""
_TRIALS_SHARE = 0.25
"""Most of the time that trials may take."""
_CHECKS = 20
"""Times that held-out pictures are asked, evenly spread."""
_AVERAGED = 0.02
"""Share of all steps over which weights are averaged."""
_CHECK_SHARE = 0.15
"""Most of the time that held-out pictures may take."""
_MOST_LOST = 4.0
"""A larger loss, or none that is a number, counts as this: 1 is all that a task has to lose (`Task.loss`), and a few
pictures with 50 times that would hide from the mean, and from its interval, what became of the others."""
_CHECKED = 8
"""Held-out pictures that are asked at once."""
MOST_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Networks:
    """A student that learns, its teacher, and what is compared of them."""

    student: torch.nn.Module
    teacher: torch.nn.Module
    outputs: OutputLoss
    features: OutputLoss | None
    watched: tuple[str, ...]
    """Tensors that `features` compares."""
    lost: Callable[[Sequence[Tensors], Sequence[Tensors]], float]
    """The loss of the task, on arrays: what held-out pictures are judged by."""
    device: Any
    is_batched: bool
    """Whether several pictures go through at once."""
    outputs_weigh: float = 1.0
    """Weight of the outputs in the loss, beside features."""

    def to_device(self, samples: Sequence[Tensors]) -> Iterator[dict[str, Tensor]]:
        """Yield samples as inputs: all at once, or one by one where the graphs take no more."""
        import torch

        for part in [samples] if self.is_batched else [[sample] for sample in samples]:
            joined = {name: np.concatenate([arrays[name] for arrays in part]) for name in part[0]}
            yield {name: _arranged(torch.from_numpy(array), self.device) for name, array in joined.items()}


def _arranged(tensor: Tensor, device: Any) -> Tensor:
    import torch

    return tensor.to(device, memory_format=torch.channels_last) if tensor.ndim == 4 else tensor.to(device)


class Training:
    """One training on its way."""

    def __init__(
        self,
        networks: Networks,
        sample: Callable[[int], Tensors],
        held_out: Sequence[Tensors],
        *,
        seconds: float,
        ends_at: float = math.inf,
        most_steps: int = 0,
        rates: Sequence[float] = (),
        batch: int = BATCH,
    ) -> None:
        """Prepare a training.

        Args:
            networks: Student and teacher; the student's weights change.
            sample: Gives the model's inputs of a position of an endless row.
            held_out: Inputs that decide when training ends, and which weights are best.
            seconds: Time limit, over all runs of the training.
            ends_at: On the monotonic clock: this run trains no longer.
            most_steps: 0: as many as fit into the time limit.
            rates: The largest first; none: `RATES`.
            batch: Pictures a step.
        """
        self._networks, self._sample, self._held_out = networks, sample, held_out
        self._targets = answers(networks.teacher, networks, held_out)
        self._seconds, self._ends_at = seconds, ends_at
        self._most_steps, self._batch = most_steps, batch
        self._weights = [parameter for parameter in networks.student.parameters() if parameter.requires_grad]
        self._rates = tuple(rates) or RATES
        self._optimizer = Optimizer(self._weights)
        self._averaged = [weight.detach().clone() for weight in self._weights]
        self._best = [weight.detach().clone() for weight in self._weights]
        self.standing = Standing()
        self._trial_steps = min(_TRIAL, max(most_steps // 10, 4)) if most_steps else _TRIAL
        self._learned = list[float]()
        self._a_step_s = self._a_check_s = 0.0
        self._begun_s = monotonic()
        self._before_s = 0.0

    # The loop

    def run(
        self,
        *,
        on_trial: Callable[[int, int], None],
        on_check: Callable[[Standing], None],
        on_step: Callable[[Standing], None],
    ) -> None:
        """Train to the end; afterwards the student has the best weights.

        Args:
            on_trial: Hears how many trials of how many are done, after each of their steps; may raise.
            on_check: Hears of each check.
            on_step: Called before the trials and after each step, where all is whole; what it raises ends the training.
        """
        self._begun_s, self._before_s = monotonic(), self.standing.seconds
        if not self.standing.curve:
            self._check(on_check)
        if not self.standing.rate:
            on_step(self.standing)
            rate = self._find_rate(on_trial)
            self.standing = replace(self.standing, rate=rate, seconds=self._spent())
        if not self.standing.steps:
            self._plan()
        while not self.standing.is_over:
            self._step()
            standing = self.standing
            is_late = standing.seconds >= self._limit() and not self._most_steps
            if standing.step % standing.every == 0 or standing.step == standing.steps or is_late:
                self._check(on_check)
                if self.standing.is_stuck and not self.standing.is_over:
                    self._return()
            on_step(self.standing)
            if is_late:
                break
        self._take(self._best)

    def _find_rate(self, on_trial: Callable[[int, int], None]) -> float:
        """Return the rate whose trial ends with the least held-out loss, from the largest down to the first worse."""
        steps = self._trial_steps
        tried, first = list[tuple[float, float]](), self.standing
        for i, rate in enumerate(self._rates):
            self.standing = replace(first, rate=rate)
            for step in range(steps):
                began_s = monotonic()
                self._step()
                if step:  # the first one prepares
                    self._a_step_s = monotonic() - began_s if step == 1 else self._a_step_s
                    self._a_step_s += (monotonic() - began_s - self._a_step_s) / step
                on_trial(i * steps + step + 1, len(self._rates) * steps)
            loss = float(losses(self._networks, self._held_out, self._targets).mean())
            self._begin_again(first)
            is_worse = bool(tried) and loss >= tried[-1][0]
            tried.append((loss, rate))
            if is_worse or (not self._most_steps and self._spent() > _TRIALS_SHARE * self._limit()):
                break
        return min(tried)[1]

    def _begin_again(self, standing: Standing) -> None:
        """Take the best weights, at first those that were given, and forget what was learned since."""
        self._take(self._best)
        self._averaged = [value.clone() for value in self._best]
        self._optimizer.begin_again()
        self._learned = []
        self.standing = standing

    def _return(self) -> None:
        """Go back to the best weights, with half the rate: what did not get better was thrown about by its steps."""
        now = self.standing
        self._begin_again(replace(now, since_best=0, returns=now.returns + 1, share=now.share / 2))

    def _plan(self) -> None:
        """Decide how many steps there are, and how often held-out pictures are asked."""
        steps, checks = self._most_steps, _CHECKS
        if not steps:
            left = max(self._limit() - self.standing.seconds, 0.0)
            checks = min(_CHECKS, int(_CHECK_SHARE * left / max(self._a_check_s, 1e-6)) + 1)
            steps = max(int((left - checks * self._a_check_s) / max(self._a_step_s, 1e-6)), 1)
            steps = min(steps, MOST_STEPS)
        self.standing = replace(self.standing, steps=steps, every=max(math.ceil(steps / checks), 1))

    def _step(self) -> None:
        import torch

        standing, networks = self.standing, self._networks
        samples = [self._sample(standing.step * self._batch + i) for i in range(self._batch)]
        learned = 0.0
        for inputs in networks.to_device(samples):
            with torch.no_grad():
                theirs = networks.teacher(inputs, networks.watched)
            mine = networks.student(inputs, networks.watched)
            loss = networks.outputs_weigh * networks.outputs(mine, theirs).sum()
            if networks.features is not None:
                loss = loss + networks.features(mine, theirs).sum()
            loss = loss / self._batch
            loss.backward()
            learned += float(loss.detach())
        self._optimizer.step(standing.step + 1, standing.rate * standing.share * self._share_at(standing.step))
        keep = self._kept_share()
        with torch.no_grad():
            for average, weight in zip(self._averaged, self._weights, strict=True):
                average.lerp_(weight, 1 - keep)
        self._learned.append(learned)
        self.standing = replace(standing, step=standing.step + 1, seconds=self._spent())

    def _share_at(self, step: int) -> float:
        """Return the share of the full rate: a warm-up, then half a cosine to zero; a trial is the same in small."""
        steps = self.standing.steps or self._trial_steps
        warm_up = min(_WARM_UP, steps // 4)
        if step < warm_up:
            return (step + 1) / (warm_up + 1)
        return 0.5 * (1 + math.cos(math.pi * min((step - warm_up) / max(steps - warm_up, 1), 1.0)))

    def _kept_share(self) -> float:
        """Return what of the average stays in a step: it reaches back over `_AVERAGED` of all steps."""
        span = max(_AVERAGED * self.standing.steps, 1.0)
        return min(1 - 1 / span, self.standing.step / (self.standing.step + 1)) if self.standing.steps else 0.0

    def _limit(self) -> float:
        """Return how many seconds there are in all: those asked for, or until this run must end."""
        return min(self._seconds, self._spent() + self._ends_at - monotonic())

    def _spent(self) -> float:
        return self._before_s + monotonic() - self._begun_s

    # Held-out pictures

    def _check(self, on_check: Callable[[Standing], None]) -> None:
        """Ask held-out pictures for the averaged weights, and keep them where they are the best so far."""
        current, began_s = [weight.detach().clone() for weight in self._weights], monotonic()
        self._take(self._averaged)
        loss = float(losses(self._networks, self._held_out, self._targets).mean())
        self._take(current)
        self._a_check_s = monotonic() - began_s
        standing = self.standing
        is_best = loss < standing.best
        if is_best:
            self._best = [value.clone() for value in self._averaged]
        learned = float(np.mean(self._learned)) if self._learned else math.nan
        self._learned = []
        check = HeldOutCheck(standing.step, self._spent(), loss, learned)
        self.standing = replace(
            standing,
            seconds=self._spent(),
            best=min(loss, standing.best),
            since_best=0 if is_best else standing.since_best + 1,
            returns=0 if is_best else standing.returns,
            curve=(*standing.curve, check),
        )
        on_check(self.standing)

    def _take(self, values: Sequence[Tensor]) -> None:
        import torch

        with torch.no_grad():
            for weight, value in zip(self._weights, values, strict=True):
                weight.copy_(value)

    # Where it stands

    def checkpoint(self, key: str) -> Checkpoint:
        """Return where the training stands."""
        arrays: dict[str, NDArray[Any]] = {}
        for i, weight in enumerate(self._weights):
            parts = {"weight": weight, "averaged": self._averaged[i], "best": self._best[i], **self._optimizer.state(i)}
            arrays |= {f"{i}.{name}": value.detach().cpu().numpy() for name, value in parts.items()}
        arrays["learned"] = np.array(self._learned)
        facts = asdict(self.standing)
        facts["best"] = facts["best"] if math.isfinite(facts["best"]) else None
        facts["curve"] = [
            [check.step, check.seconds, check.loss, _or_none(check.learned)] for check in self.standing.curve
        ]
        return Checkpoint(key, facts, arrays)

    def take_up(self, checkpoint: Checkpoint) -> None:
        """Go on where an earlier training stood.

        Raises:
            KeyError, ValueError, TypeError: If it is not of this training.
        """
        import torch

        def stored(name: str, like: Tensor) -> Tensor:
            array = torch.from_numpy(np.array(checkpoint.arrays[name])).to(like.device)
            return array.reshape(like.shape).clone(memory_format=torch.preserve_format)

        for i, weight in enumerate(self._weights):
            with torch.no_grad():
                weight.copy_(stored(f"{i}.weight", weight))
                self._averaged[i].copy_(stored(f"{i}.averaged", weight))
                self._best[i].copy_(stored(f"{i}.best", weight))
                for name, value in self._optimizer.state(i).items():
                    value.copy_(stored(f"{i}.{name}", weight))
        self._learned = checkpoint.arrays["learned"].tolist()
        facts = dict(checkpoint.facts)
        curve = tuple(
            HeldOutCheck(n, s, loss, math.nan if mean is None else mean) for n, s, loss, mean in facts.pop("curve")
        )
        best = facts.pop("best")
        self.standing = Standing(**facts, best=math.inf if best is None else best, curve=curve)


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def answers(network: torch.nn.Module, networks: Networks, samples: Sequence[Tensors]) -> list[Tensors]:
    """Return the outputs for each sample, as arrays.

    Args:
        network: The student or the teacher.
        networks: It is one of them.
        samples: Inputs.
    """
    import torch

    result = list[Tensors]()
    with torch.no_grad():
        for start in range(0, len(samples), _CHECKED):
            part = samples[start : start + _CHECKED]
            for inputs in networks.to_device(part):
                outputs = {name: value.float().cpu().numpy() for name, value in network(inputs).items()}
                if not networks.is_batched:
                    result.append(outputs)
                    continue
                result += [{name: value[i : i + 1] for name, value in outputs.items()} for i in range(len(part))]
    return result


def losses(networks: Networks, samples: Sequence[Tensors], targets: Sequence[Tensors]) -> NDArray[np.float64]:
    """Return (samples,) how far the student's outputs are from the teacher's, as the task sees it.

    Args:
        networks: As they are.
        samples: Inputs.
        targets: The teacher's `answers` to them.
    """
    mine = answers(networks.student, networks, samples)
    result = [networks.lost([a], [b]) for a, b in zip(mine, targets, strict=True)]
    return np.minimum(np.nan_to_num(result, nan=_MOST_LOST), _MOST_LOST)


@contextmanager
def repeatable(threads: int, seed: int) -> Iterator[None]:
    """Let torch compute the same numbers each time, with so many threads; afterwards it is as it was."""
    import torch

    before, was = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(state)
        torch.use_deterministic_algorithms(was, warn_only=True)
        torch.set_num_threads(before)
