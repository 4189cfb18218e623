"""The hits that a replay counts and those that the trace's own server counted, of the same requests.

The replay must have caches like that server's; otherwise the difference comes from the caches.
"""

from dataclasses import astuple, dataclass

import numpy as np

from kv_sim.replay.caches.outcome import Outcome
from kv_sim.replay.columns import Columns
from kv_sim.replay.observed import NOT_SAID
from kv_sim.replay.units import counted


@dataclass(frozen=True)
class ObservedRatios:
    """Hit ratios that the trace's server counted, over the requests for which the trace says it."""

    requests: int
    prompt_tokens: int
    token: float
    gpu_token: float | None
    """Found in the GPU's own cache. None, like ``loaded_token``, if not all these requests say what was loaded."""
    loaded_token: float | None

    def __str__(self) -> str:
        by = ""
        if self.gpu_token is not None and self.loaded_token:
            by = f" ({self.gpu_token:.3f} in the GPU's cache, {self.loaded_token:.3f} loaded)"
        requests = counted(self.requests, "request", "requests")
        return f"its own server had {self.token:.3f} of the tokens of {requests}{by}"


@dataclass(frozen=True)
class BesideObserved:
    """The replay's hit ratios over the same tokens."""

    token: float
    gpu_token: float
    loaded_token: float
    apart: float
    """The share of tokens by which the replay and the server differ, summed request by request."""


@dataclass(frozen=True)
class ObservedSums:
    """Sums of tokens over the requests for which the trace says what their server found."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    split: int = 0
    """How many of these requests also say what was loaded."""
    loaded: int = 0

    @classmethod
    def of(cls, columns: Columns) -> "ObservedSums":
        """The sums of a trace, or of a part of one."""
        if columns.observed is None:
            return cls()
        said = columns.observed.said
        seen = columns.observed.of(said)
        split = seen.loaded != NOT_SAID
        return cls(
            len(said),
            int(columns.inputs[said].sum()),
            int(seen.cached.sum()),
            int(np.count_nonzero(split)),
            int(seen.loaded[split].sum()),
        )

    def plus(self, more: "ObservedSums") -> "ObservedSums":
        """The sum of both."""
        return ObservedSums(*map(sum, zip(astuple(self), astuple(more), strict=True)))

    def ratios(self) -> ObservedRatios | None:
        """The sums as ratios; None: the trace says it for no request."""
        if not self.requests:
            return None
        prompt, is_split = max(1, self.prompt), self.split == self.requests
        return ObservedRatios(
            self.requests,
            self.prompt,
            self.cached / prompt,
            (self.cached - self.loaded) / prompt if is_split else None,
            self.loaded / prompt if is_split else None,
        )


@dataclass(frozen=True)
class BesideSums:
    """Sums of tokens that a replay finds, over the same requests."""

    prompt: int = 0
    gpu: int = 0
    loaded: int = 0
    apart: int = 0

    @classmethod
    def of(cls, columns: Columns, outcome: Outcome) -> "BesideSums":
        """The sums of a trace, or of a part of one, over the requests for which it says what was observed."""
        if columns.observed is None:
            return cls()
        said = columns.observed.said
        size, most = columns.block_tokens, columns.block_input_tokens[said]
        gpu = np.minimum(outcome.gpu_hits[said] * size, most)
        hits = np.minimum((outcome.gpu_hits + outcome.loaded)[said] * size, most)
        return cls(
            int(columns.inputs[said].sum()),
            int(gpu.sum()),
            int((hits - gpu).sum()),
            int(np.abs(hits - columns.observed.cached[said]).sum()),
        )

    def plus(self, more: "BesideSums") -> "BesideSums":
        """The sum of both."""
        return BesideSums(*map(sum, zip(astuple(self), astuple(more), strict=True)))

    def ratios(self) -> BesideObserved | None:
        """The sums as ratios; None: the trace says for no request what was observed."""
        if not self.prompt:
            return None
        shares = (tokens / self.prompt for tokens in (self.gpu + self.loaded, self.gpu, self.loaded, self.apart))
        return BesideObserved(*shares)
