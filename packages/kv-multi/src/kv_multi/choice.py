"""Which child loads for a request: the one whose answer to the request's last query was taken.

State: at most one ``Match`` for each request id. Every query replaces it; a query that finds nothing, or that a
child can't answer yet, removes it. It is forgotten when the request ends. It is *not* forgotten when the request
is preempted, because it may be preempted and matched again before the step that reports the preemption is
planned.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kv_multi.options import LoadPolicy


class Match(NamedTuple):
    """The answer that was taken."""

    child: int
    num_tokens: int
    asynchronous: bool
    num_computed_tokens: int
    """Tokens that the GPU had at the query; the tokens of the match follow them."""


class Choices:
    """Which child was chosen for which request."""

    def __init__(self, policy: LoadPolicy) -> None:
        self._policy = policy
        self._matches: dict[str, Match] = {}

    def decide(
        self, request_id: str, num_computed_tokens: int, answers: Iterable[tuple[int | None, bool]]
    ) -> tuple[int | None, bool]:
        """Choose among the children's answers, which come in the children's order.

        ``answers`` is consumed lazily: after the first None the remaining children aren't asked.
        """
        self._matches.pop(request_id, None)
        best: Match | None = None
        for child, (num_tokens, asynchronous) in enumerate(answers):
            if num_tokens is None:
                return None, False
            if num_tokens > 0 and self._is_better(num_tokens, best):
                best = Match(child, num_tokens, asynchronous, num_computed_tokens)
        if best is None:
            return 0, False
        self._matches[request_id] = best
        return best.num_tokens, best.asynchronous

    def get(self, request_id: str) -> Match | None:
        """The match of a request, if its last query found one."""
        return self._matches.get(request_id)

    def forget(self, request_id: str) -> None:
        """The request ended, or a new request has its id."""
        self._matches.pop(request_id, None)

    def check(self, num_children: int) -> None:
        """Recount: every match is of a child, and of something."""
        for request_id, match in self._matches.items():
            assert 0 <= match.child < num_children, f"{request_id}: child {match.child} of {num_children}"
            assert match.num_tokens > 0, f"{request_id}: a match of {match.num_tokens} tokens"

    def _is_better(self, num_tokens: int, best: Match | None) -> bool:
        if best is None:
            return True
        return self._policy is LoadPolicy.LONGEST and num_tokens > best.num_tokens
