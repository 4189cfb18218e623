"""``Clients``: the ``kv_transfer_params`` that clients send, which may be anything.

vLLM passes a request's params to the connector, so a connector reads what any client may have written. In the
object a value may be missing, of another type, or absurd. With ``vllm_xargs`` there may be a text or a list
instead of the object (vLLM 0.32 fails at these in its frontend, unless they are empty). Or a router's ticket lacks
a key, or has a wrong value. None of that may end an engine. None of it is a valid wish either, so what a world
expects stays the same.

A few requests of any history have such a client. Their ids and sizes decide which, and what the client sends, so
that the rest of the history stays the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from kv_sim.engine.request_spec import RequestSpec
from kv_sim.subject import TICKET, WANTED

STRANGE: Final = 1 / 6
"""How often a client sends strange params."""

NO_OBJECTS: Final[Sequence[Any]] = ("", TICKET, "\u0000", [], [TICKET], [[]], 0, 7, -1.5, True, False)
"""Values that some clients send instead of an object."""

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
"""Strange values of a key."""

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
"""Keys that vLLM's connectors and routers use, and an unknown one."""

NOT_SENT: Final[Mapping[str, Callable[[Any], bool]]] = {
    "remote_host": lambda value: isinstance(value, str),  # a connector might look for a machine of that name
    "kv_load_tiers": lambda value: value == [],  # a valid wish, which a connector may fulfil
}
"""Values that are never sent for some keys."""


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
    """The params that an engine gets, from the router's and the client's.

    A fair router doesn't let a client's keys change a request with a ticket, nor ask for a hold that it didn't
    count.
    """
    if sent is None:
        return params
    if not is_fair:
        return {**params, **sent}
    if params.get(TICKET) or params.get(WANTED):
        return params
    return {**params, **{word: value for word, value in sent.items() if word != WANTED}}
