"""PROTOCOL: the shape of a connector's answers, checked before the engine unpacks them.

``SHAPES`` has the methods whose answers the engine unpacks. ``protocol`` judges the contents of well-shaped
answers, and also the shape of answers to a match.
"""

import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, NamedTuple, SupportsIndex, TypeGuard

_SHORT: Final = reprlib.Repr()
_SHORT.maxother = 100


class Shape(NamedTuple):
    """What an answer must look like."""

    words: str
    holds: Callable[[Any], bool]


def shown(answer: Any) -> str:
    """An answer as text for a message: not too long, and the same in every run."""
    return without_addresses(_SHORT.repr(answer))


def without_addresses(text: str) -> str:
    """A text without the places in memory that Python gives as part of an object's name."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def complaint(name: str, answer: Any) -> str:
    """The message about an answer of a wrong shape."""
    return f"{name} answered {shown(answer)}, expected {SHAPES[name].words}"


NOT_RUN: Final = frozenset({CoroutineType, AsyncGeneratorType, GeneratorType})
"""The types of what such a method answers; none of them can have a subclass."""


def not_run(name: str, answer: Any) -> str | None:
    """The message about a method that didn't run, since it is a coroutine or a generator."""
    if isinstance(answer, (CoroutineType, AsyncGeneratorType)):
        return f"{name} answered a coroutine, which isn't awaited: write it without async"
    if isinstance(answer, GeneratorType) and name != "take_events":
        return f"{name} answered a generator, and nothing of it has run: write it without yield"
    return None


def _is_end(answer: Any) -> bool:
    return (
        isinstance(answer, tuple)
        and len(answer) == 2
        and isinstance(answer[0], bool)
        and (answer[1] is None or isinstance(answer[1], dict))
    )


def _is_sources(answer: Any) -> bool:
    return isinstance(answer, dict) and all(isinstance(count, int) for count in answer.values())


def _are_names(ids: Any) -> bool:
    return isinstance(ids, (set, frozenset)) and all(isinstance(name, str) for name in ids)


def _is_results(answer: Any) -> bool:
    """Judged by its fields, since vLLM has a class of its own. Sets of ended transfers may be None."""
    try:
        sent, received, failed = answer.finished_sending, answer.finished_recving, answer.failed_recving
    except AttributeError:
        return False
    return (sent is None or _are_names(sent)) and (received is None or _are_names(received)) and _are_names(failed)


def _are_blocks(answer: Any) -> bool:
    return isinstance(answer, (set, frozenset)) and all(isinstance(block, SupportsIndex) for block in answer)


def _are_groups(answer: Any) -> bool:
    return isinstance(answer, Collection) and all(is_count(group) for group in answer)


def _are_events(answer: Any) -> bool:
    return isinstance(answer, list) and all(map(_is_event, answer))


def _is_event(event: Any) -> bool:
    """Judged by the name of its base, since vLLM has a class of its own."""
    if not any(base.__name__ == "KVCacheEvent" for base in type(event).__mro__):
        return False
    hashes = getattr(event, "block_hashes", ())
    return isinstance(hashes, (list, tuple)) and all(isinstance(name, (bytes, int)) for name in hashes)


def _can(*methods: str) -> Callable[[Any], bool]:
    """Whether it is None, or an object that has these methods."""
    return lambda answer: answer is None or all(callable(getattr(answer, name, None)) for name in methods)


def is_count(count: object) -> TypeGuard[int]:
    """Whether it is a whole number, 0 or more."""
    return isinstance(count, int) and not isinstance(count, bool) and count >= 0


def is_match(answer: object) -> bool:
    """Whether this may be an answer of ``get_num_new_matched_tokens``."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        return False
    count, is_async = answer
    return isinstance(is_async, bool) and (count is None or is_count(count))


_END: Final = Shape("a pair: whether its blocks are held, True or False, and a dict or None", _is_end)

SHAPES: Final[Mapping[str, Shape]] = {
    "request_finished": _END,
    "request_finished_all_groups": _END,
    "get_external_cache_hit_sources": Shape("a dict of whole numbers of tokens", _is_sources),
    "reset_cache": Shape("True, False or None", lambda answer: answer is None or isinstance(answer, bool)),
    "get_loaded_kv_cache_group_ids": Shape("numbers of KV cache groups", _are_groups),
    "build_connector_meta": Shape("the step's KVConnectorMetadata", lambda answer: answer is not None),
    "get_finished_count": Shape(
        "None or a whole number, 0 or more", lambda answer: answer is None or is_count(answer)
    ),
    "get_transfer_results": Shape("KVConnectorTransferResults, whose fields are sets of request ids", _is_results),
    "get_block_ids_with_load_errors": Shape("a set of block ids", _are_blocks),
    "get_kv_connector_stats": Shape("KVConnectorStats or None", _can("aggregate", "reduce", "is_empty")),
    "get_kv_connector_kv_cache_events": Shape(
        "KVConnectorKVEvents or None", _can("add_events", "get_all_events", "increment_workers")
    ),
    "build_connector_worker_meta": Shape("KVConnectorWorkerMetadata or None", _can("aggregate")),
    "take_events": Shape("KV events, whose block_hashes are lists of bytes or ints; () for none", _are_events),
}
"""Method -> the shape of its answers."""
