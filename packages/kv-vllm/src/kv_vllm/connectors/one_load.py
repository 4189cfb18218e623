"""``OneLoad``: after a load between steps has failed, a request is offered no other one before it was computed.

vLLM's scheduler (0.32, 0.33) asks about such a request again, but counts it among those that are still in their
prefill, and reserves its blocks against its own next load: it could wait for ever. So the answer then is that
nothing is there, unless it can be loaded within the step.
"""

from collections.abc import Iterable
from typing import TypeAlias

Match: TypeAlias = tuple[int | None, bool]
"""Tokens that can be loaded (None: not known yet), and whether that goes on between steps."""


class OneLoad:
    """Knows which requests were given blocks for a load between steps, and none since.

    An engine asks about a request, and gives it blocks, before it asks about the next one.
    """

    def __init__(self) -> None:
        self._is_between = False
        """Whether the last answer was a load between steps."""
        self._requests: set[str] = set()

    def answer(self, request_id: str, match: Match) -> Match:
        """What to offer of what there is."""
        tokens, is_between = match
        if request_id in self._requests and (tokens is None or is_between):
            tokens, is_between = 0, False
        self._is_between = is_between
        return tokens, is_between

    def give(self, request_id: str, num_loaded_tokens: int) -> None:
        """It was given blocks, of which so many tokens are loaded."""
        if num_loaded_tokens and self._is_between:
            self._requests.add(request_id)
        else:
            self._requests.discard(request_id)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests have ended."""
        self._requests.difference_update(request_ids)
