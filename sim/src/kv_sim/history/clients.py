"""``Clients``: what they send in ``kv_transfer_params``, which to an engine may be anything.

vLLM hands on what a request brings, so a connector reads what anybody may have written. In the object a value may
be missing, of another kind, or absurd. By ``vllm_xargs`` there may be a text or a list in its place (vLLM 0.32
fails at these in its frontend, unless they are empty). Or a ticket that a router brings has lost a word on the
way, or has another one. None of that may end an engine, and none of it is a wish that a connector could rightly
fulfil, so what a world expects stays the same.

A few requests of any history have such a client. Their own names and sizes decide which, and what it sends, so
that the rest of the history stays the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from kv_sim.engine.request_spec import RequestSpec
from kv_sim.subject import TICKET, WANTED

STRANGE: Final = 1 / 6
"""How often a client sends something of its own."""

NO_OBJECTS: Final[Sequence[Any]] = ("", TICKET, "\u0000", [], [TICKET], [[]], 0, 7, -1.5, True, False)
"""What some send in the place of an object."""

VALUES: Final[Sequence[Any]] = (
    None,
    True,
    False,
    -1,
    1.5,
    10**30,
    "",
    "7",
    "\u0000",
    "x" * 500,
    [],
    [None],
    [[]],
    {},
    {"a": []},
)
"""What a word may have for a value."""

WORDS: Final = (
    TICKET,
    WANTED,
    "remote_engine_id",
    "remote_request_id",
    "remote_block_ids",
    "remote_host",
    "remote_port",
    "remote_num_tokens",
    "tp_size",
    "transfer_id",
    "max_load_tokens",
    "max_offload_tokens",
    "kv_load_tiers",
    "unheard_of",
)
"""Words that vLLM's connectors and routers know, and one that nobody does."""

NOT_SENT: Final[Mapping[str, Callable[[Any], bool]]] = {
    "remote_host": lambda value: isinstance(value, str),  # a connector might look for a machine of that name
    "kv_load_tiers": lambda value: value == [],  # a wish, and a connector may fulfil it
}
"""What is no value of some words here."""


def draw(spec: RequestSpec, words: Iterable[str] = ()) -> RequestSpec:
    """The same request, maybe with what a client sends: of these words, which tickets have, or of ``WORDS``."""
    sizes = (spec.request_id, spec.conversation, spec.shared_tokens, spec.own_tokens, spec.output_tokens)
    random = Random(repr(("client", sizes)))
    if random.random() >= STRANGE:
        return replace(spec, kv_transfer_params=None)
    if random.random() < 1 / 3:
        return replace(spec, kv_transfer_params=random.choice(NO_OBJECTS))
    known = random.choice([WORDS, sorted(words) or WORDS])
    chosen = random.sample(known, min(len(known), random.choice([1, 1, 2, 3])))
    return replace(spec, kv_transfer_params={word: random.choice(_values_of(word)) for word in chosen})


def _values_of(word: str) -> Sequence[Any]:
    is_none = NOT_SENT.get(word)
    return [value for value in VALUES if is_none is None or not is_none(value)]


def over(params: dict[str, Any], sent: dict[str, Any] | None, *, is_fair: bool) -> dict[str, Any]:
    """What an engine gets of what a router says, and of the words that a client sends.

    By a fair router nothing of a client's gets to what it gave a ticket, and nobody is held whom it didn't count.
    """
    if sent is None:
        return params
    if not is_fair:
        return {**params, **sent}
    if params.get(TICKET) or params.get(WANTED):
        return params
    return {**params, **{word: value for word, value in sent.items() if word != WANTED}}
