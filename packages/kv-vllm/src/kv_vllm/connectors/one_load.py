"""``OneLoad``: after an asynchronous load has failed, it offers the request no other one before it was computed.

vLLM's scheduler (0.32, 0.33) matches such a request again. But it still counts the request as one in its prefill,
and reserves blocks for that, which its own next load then lacks: the request could wait for ever. So the answer to
this match is that no tokens can be loaded, unless they can be loaded within the step.
"""

from collections.abc import Iterable
from typing import TypeAlias

Match: TypeAlias = tuple[int | None, bool]
"""Tokens that can be loaded (None: not known yet), and whether the load is asynchronous."""


class OneLoad:
    """Remembers the requests whose last allocation was for an asynchronous load.

    An engine matches a request, and allocates its blocks, before it matches the next one.
    """

    def __init__(self) -> None:
        self._is_between = False
        """Whether the last answer was an asynchronous load."""
        self._requests: set[str] = set()

    def answer(self, request_id: str, match: Match) -> Match:
        """The answer to the engine, given the connector's own answer."""
        tokens, is_between = match
        if request_id in self._requests and (tokens is None or is_between):
            tokens, is_between = 0, False
        self._is_between = is_between
        return tokens, is_between

    def give(self, request_id: str, num_loaded_tokens: int) -> None:
        """The request got blocks; ``num_loaded_tokens`` of its tokens are loaded."""
        if num_loaded_tokens and self._is_between:
            self._requests.add(request_id)
        else:
            self._requests.discard(request_id)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests have ended."""
        self._requests.difference_update(request_ids)
