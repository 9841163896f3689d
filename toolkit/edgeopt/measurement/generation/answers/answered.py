"""One answer of a model here, and its times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeopt.runtime.decoding.generation import Account


@dataclass(frozen=True, slots=True)
class Answered:
    """One request and what became of it; instants are since the run began."""

    prompt_tokens: int
    intended_ns: int
    """When it should have been asked."""
    late_ns: int
    """How much later it was asked: times count from the intended instant."""
    account: Account

    @property
    def is_whole(self) -> bool:
        """Whether it was answered to its end."""
        return self.account.reason not in ("", "cancelled")

    @property
    def output_tokens(self) -> int:
        """Tokens so far."""
        return len(self.account.token_at_ns)

    @property
    def queue_ns(self) -> int:
        """Until it had a slot."""
        return self.late_ns + self.account.queue_ns

    @property
    def ttft_ns(self) -> int:
        """Until the first token."""
        return self.late_ns + self.account.token_at_ns[0]

    @property
    def end_ns(self) -> int:
        """Until the last token: end to end."""
        return self.late_ns + (self.account.token_at_ns or (0,))[-1]

    @property
    def tpot_ns(self) -> int:
        """Mean time of each token after the first."""
        times = self.account.token_at_ns
        return (times[-1] - times[0]) // max(len(times) - 1, 1)

    @property
    def gaps_ns(self) -> list[int]:
        """Times between its tokens."""
        gaps: list[int] = np.diff(self.account.token_at_ns).tolist()
        return gaps
