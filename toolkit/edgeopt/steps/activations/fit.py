"""Fit a form to each activation, on what calibration saw of its input, and write it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from edgeopt.graph.facts.scaled import SCALED, scaled_tensors
from edgeopt.graph.graph import Graph, Value
from edgeopt.graph.model import Model
from edgeopt.steps.activations.forms import ActivationForm, Fit, Numbers
from edgeopt.steps.activations.readers import ChannelReach, absorb_gain, absorb_offset, reaches
from edgeopt.steps.activations.sites import Site, find_sites, scale_maker
from edgeopt.steps.quantize.calibration.calibrate import Observation
from edgeopt.steps.quantize.patterns import name_of

_GAINS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4)
"""Tried for activations that are added to each other and must have one gain."""
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Fitted:
    """An activation and what stands for it."""

    name: str
    """Name of the tensor that the activation makes."""
    fit: Fit
    noise: float
    """Mean over channels of the error's power over the variance of the channel."""
    elements: int
    tied: tuple[str, ...]
    """The activations that have the same gain, its own name among them: replaced together or not at all."""

    @property
    def is_plain(self) -> bool:
        """Whether the form makes what the activation made, as near as it can, and not that up to gain and offset."""
        return bool((self.fit.gain == 1).all() and not self.fit.offset.any())


def fit_all(graph: Graph, seen: Mapping[str, Observation], form: ActivationForm) -> tuple[Fitted, ...]:
    """Return a fit for each activation that calibration saw, in the order of the graph.

    Args:
        graph: The float model, with shapes; it is not edited.
        seen: What calibration saw of the activations' inputs, by name.
        form: What replaces them.
    """
    sites = [site for site in find_sites(graph).sites if name_of(site.x) in seen]
    reach = reaches(graph, sites)
    samples = {site.name: _samples(seen[name_of(site.x)], site) for site in sites}
    done: dict[str, Fit] = {}
    for site in sites:
        other = reach[site.name]
        if site.name not in done and len(other.tied) > 1:
            done |= _tied_fits({name: samples[name] for name in other.tied}, reach, form)
        elif site.name not in done:
            gain = None if other.takes_gain else np.ones(site.channels)
            x, wanted = samples[site.name]
            done[site.name] = form.fit(x, wanted, gain=gain, has_offset=other.takes_offset)
    made = []
    for site in sites:
        fit, wanted = done[site.name], samples[site.name][1]
        spread = np.maximum(wanted.var(axis=1), _ROUNDING * np.square(wanted).mean(axis=1) + np.finfo(np.float32).tiny)
        noise = float(np.mean(np.minimum(fit.error / spread, 1.0)))
        made.append(Fitted(site.name, fit, noise, site.elements, reach[site.name].tied))
    return tuple(made)


def keep_worst(fitted: Iterable[Fitted], share: float) -> tuple[Fitted, ...]:
    """Return the fits without those that lose most for what they save, at most `share` of all numbers.

    A larger share keeps what a smaller one does, and more; activations of one gain stay or go together.
    """
    fitted = tuple(fitted)
    groups = {one.tied: [other for other in fitted if other.name in one.tied] for one in fitted}
    left = share * sum(one.elements for one in fitted)
    kept = set[str]()
    cost = {tied: sum(one.elements for one in group) for tied, group in groups.items()}
    lost = {tied: max(one.noise for one in group) / cost[tied] for tied, group in groups.items()}
    for tied in sorted(groups, key=lambda tied: (-lost[tied], tied)):
        left -= cost[tied]
        if left < 0:
            break
        kept.update(tied)
    return tuple(one for one in fitted if one.name not in kept)


def place(model: Model, fitted: Sequence[Fitted], form: ActivationForm) -> Model:
    """Return the model with a form in the place of some activations.

    Args:
        model: The model that was fitted.
        fitted: Of its activations.
        form: What they were fitted with.
    """
    graph = Graph.from_model(model)
    sites = {site.name: site for site in find_sites(graph).sites}
    reach = reaches(graph, list(sites.values()))
    gained = set[tuple[str, ...]]()
    leaves = {other.name: reach[other.name].leaves for other in fitted}
    for one in fitted:
        scale_maker(graph, sites[one.name], one.fit.slope, one.fit.shift)
        if one.fit.offset.any():
            absorb_offset(graph, leaves[one.name], one.fit.offset)
    for one in fitted:
        if one.tied in gained:
            continue
        gained.add(one.tied)
        once = dict.fromkeys(leaf for name in one.tied for leaf in leaves.get(name, ()))
        absorb_gain(graph, once, one.fit.gain)
    for one in fitted:
        site = sites[one.name]
        z = form.insert(graph, _shifted(graph, site), one.fit, site.node, one.name)
        graph.replace(site.y, z, keep_name=True)  # training finds what it stands for by its name
    graph.remove_unused()
    return _with_scaled(graph.to_model(), [other.name for other in fitted if not other.is_plain])


def _shifted(graph: Graph, site: Site) -> Value:
    """Return what the layer before makes, its shift included."""
    added = next((node for node in graph.consumers(site.x) if node.name == f"{site.name}_shifted"), None)
    return site.x if added is None else added.outputs[0]


def _with_scaled(model: Model, names: Sequence[str]) -> Model:
    """Return the model with a word on which tensors are other ones than their names say, up to gain and offset."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    before = sorted(scaled_tensors(model))
    onnx.helper.set_model_props(proto, {**model.metadata, SCALED: "\n".join(dict.fromkeys((*before, *names)))})
    return Model(proto, model.name)


def _samples(seen: Observation, site: Site) -> tuple[Numbers, Numbers]:
    """Return samples and extremes of each channel, and what the activation makes of them."""
    x = np.concatenate([seen.low[None], seen.high[None], seen.samples]).T.astype(np.float64)
    return x, np.asarray(site.function(x))


def _tied_fits(
    samples: Mapping[str, tuple[Numbers, Numbers]], reach: Mapping[str, ChannelReach], form: ActivationForm
) -> dict[str, Fit]:
    """Return fits with one gain for each channel, the one with which all together are closest."""
    best: dict[str, Fit] = {}
    least = np.inf
    for gain in _GAINS:
        its = {
            name: form.fit(x, wanted, gain=np.full(len(x), gain), has_offset=reach[name].takes_offset)
            for name, (x, wanted) in samples.items()
        }
        total = float(np.sum([fit.error.mean() / max(samples[name][1].var(), _ROUNDING) for name, fit in its.items()]))
        if total < least:
            best, least = its, total
    return best
