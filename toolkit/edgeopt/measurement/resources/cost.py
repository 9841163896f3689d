"""The cost of an inference, on a device that is owned or on a machine that is rented.

The rate that divides the cost is the highest one that keeps the budget (open loop), not the closed loop's: a
device that is late earns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

_S_PER_HOUR = 3600.0
_J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class InferenceCost:
    """Cost at the rate that meets the budget; in the currency of the prices."""

    per_inference: float
    rate_per_s: float
    """The highest rate that keeps the budget."""

    @property
    def per_thousand(self) -> float:
        """The cost of 1000 inferences."""
        return self.per_inference * 1000

    def per_stream_hour(self, fps: float) -> float:
        """The cost of one camera for one hour; the device is shared by as many as it can serve."""
        return self.per_inference * fps * _S_PER_HOUR


def device_per_s(price: float, life_h: float, watts: float = 0.0, price_per_kwh: float = 0.0) -> float:
    """Return what a second of a device of one's own costs: price / (life_h * 3600) + watts * price_per_kwh / 3.6e6."""
    return price / (life_h * _S_PER_HOUR) + watts * price_per_kwh / _J_PER_KWH


def cloud_per_s(price_per_h: float) -> float:
    """Return what a second of a rented machine costs."""
    return price_per_h / _S_PER_HOUR


def cost_per_inference(per_s: float, rate_per_s: float) -> InferenceCost:
    """Return what one inference costs on a machine of that cost a second.

    Args:
        per_s: From `device_per_s` or `cloud_per_s`.
        rate_per_s: The highest rate that keeps the budget, all streams together.

    Raises:
        ValueError: If the rate is not above zero: a device that never keeps the budget has no cost per inference.
    """
    if not rate_per_s > 0:
        raise ValueError(f"the rate must be above zero, got {rate_per_s}")
    return InferenceCost(per_s / rate_per_s, rate_per_s)


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Cost of the tokens of a language model, in the currency of the prices; a prompt's are paid with its answer's."""

    per_token: float
    """Nanoseconds a token of an answer."""
    tokens_per_s: float
    """Tokens a second of answers, all clients together, prompts included in the time."""

    @property
    def per_thousand(self) -> float:
        """The cost of 1000 tokens of answers."""
        return self.per_token * 1000


def cost_per_token(per_s: float, tokens_per_s: float) -> TokenCost:
    """Return what a token of an answer costs on a machine of that cost a second.

    Args:
        per_s: From `device_per_s` or `cloud_per_s`.
        tokens_per_s: Of whole answers: tokens over the time of prompts and answers.

    Raises:
        ValueError: If the rate is not above zero.
    """
    if not tokens_per_s > 0:
        raise ValueError(f"the rate must be above zero, got {tokens_per_s}")
    return TokenCost(per_s / tokens_per_s, tokens_per_s)
