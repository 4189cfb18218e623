"""``Account``: counts what happened to the records of a trace. Everything that is left out is reported."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from kv_sim.replay.units import counted

_REASONS_SHOWN: Final = 3

_BLOCK_SIZE: Final = " (is the block size right? --block-size)"

_FEWEST: Final = 100
_FASTEST: Final = 2_000
_MOST_TOKENS: Final = 2_000_000
"""A trace with more requests or prompt tokens a second than these limits probably has a wrong unit of time."""

_YEAR: Final = 366 * 86_400
"""Seconds. A trace of several years probably has a wrong unit of time, too."""


@dataclass
class Account:
    """Counts of one trace's records."""

    skipped: int = 0
    reasons: list[str] = field(default_factory=list)
    surplus_ids: int = 0
    surplus_requests: int = 0
    short_requests: int = 0
    dropped_blocks: int = 0
    delayed: int = 0
    moved: int = 0
    failed: int = 0
    copies: int = 0
    unbelieved: int = 0
    """Requests for which the server reports more cached tokens than the prompt has."""
    answers_within: int = 0
    ended: int = 0
    beside: dict[str, int] = field(default_factory=dict)
    """Field -> how many prompts have that field beside them, which may belong to the prompt."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason -> how many requests were left out because no model had to generate for them."""
    arrived: int = 0
    tokens: int = 0
    first_arrival: float = inf
    last_arrival: float = -inf

    def skip(self, reason: str) -> None:
        """Count a malformed record that was left out."""
        self.skipped += 1
        if len(self.reasons) < _REASONS_SHOWN:
            self.reasons.append(reason)

    def leave_out(self, why: str) -> None:
        """Count a request that is left out because its log says that no model generated for it."""
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def arrive(self, seconds: float, tokens: int) -> float:
        """Note an arrival. Returns by how many seconds it is before the latest arrival above it in the file."""
        early_by = max(0.0, self.last_arrival - seconds)
        self.arrived += 1
        self.tokens += tokens
        self.first_arrival = min(self.first_arrival, seconds)
        self.last_arrival = max(self.last_arrival, seconds)
        return early_by

    def notes(self) -> Iterator[str]:
        """Notes for the report."""
        if self.skipped:
            records = counted(self.skipped, "malformed record was", "malformed records were")
            yield f"{records} skipped, first: {'; '.join(self.reasons)}"
        if self.surplus_ids:
            requests = counted(
                self.surplus_requests,
                "request has more ids than its length has blocks",
                "requests have more ids than their length has blocks",
            )
            yield f"{requests}: {counted(self.surplus_ids, 'id', 'ids')} dropped{_BLOCK_SIZE}"
        if self.short_requests:
            requests = counted(self.short_requests, "request has", "requests have")
            hint = _BLOCK_SIZE if 2 * self.short_requests > self.arrived else ""
            yield f"{requests} fewer ids than full blocks: the rest is never a hit{hint}"
        if self.dropped_blocks:
            yield f"{counted(self.dropped_blocks, 'partial last block was', 'partial last blocks were')} dropped"
        if self.failed:
            requests = counted(self.failed, "request", "requests")
            yield f"{requests} failed, according to a status or an error; each counts like any other request"
        yield from self._doubts()
        for why, count in self.left_out.items():
            yield f"{counted(count, 'request was', 'requests were')} left out: {why}"
        if self.unbelieved:
            requests = counted(self.unbelieved, "request says", "requests say")
            yield f"{requests} that more tokens were cached than the prompt has: these counts are ignored"
        if self.copies:
            requests = counted(self.copies, "request is repeated", "requests are repeated")
            yield f"{requests}, in another file of its session: each counts once"
        odd = self._odd_times()
        if odd is not None:
            yield f"{odd}: is the unit of its times the right one? (--time-unit)"
        if self.moved:
            early = counted(
                self.moved, "request arrives before one above it", "requests arrive before one above them"
            )
            yield f"{early}: sorted (--unsorted sort)"
        if self.delayed:
            turns = counted(self.delayed, "later turn has a delay", "later turns have a delay")
            yield f"{turns}: taken from the arrival of the turn before"

    def _doubts(self) -> Iterator[str]:
        """Notes on signs that a prompt isn't exactly what a model was asked."""
        if self.answers_within:
            answers = counted(self.answers_within, "answer", "answers")
            yield f"prompts have {answers} within: if each is a whole conversation, use --format conversations"
        if self.ended:
            prompts = counted(self.ended, "prompt ends", "prompts end")
            yield f"{prompts} with an answer: if each is a whole conversation, use --format conversations-dated"
        for name, count in self.beside.items():
            prompts = counted(count, "prompt has", "prompts have")
            yield f"{prompts} a {name} beside, which isn't counted: a prompt must have all that a model was asked"

    def _odd_times(self) -> str | None:
        """A rate or duration that no server's trace can have, as text; None: times are plausible."""
        duration = self.last_arrival - self.first_arrival
        if self.arrived >= _FEWEST and 0 < duration * _FASTEST < self.arrived:
            return f"{self.arrived / duration:,.0f} requests a second"
        if self.arrived >= _FEWEST and 0 < duration * _MOST_TOKENS < self.tokens:
            return f"{self.tokens / duration:,.0f} prompt tokens a second"
        if duration > _YEAR:
            return f"{self.arrived:,} requests in {duration / _YEAR:,.1f} years"
        return None
