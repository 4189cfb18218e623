"""GuideLLM's reports: the requests of its benchmarks, one benchmark after the other; seconds."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from kv_sim.replay.readers.chats.asked import asked_in, for_each
from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.chat import is_request, prompts_in
from kv_sim.replay.readers.chats.counts import count_in
from kv_sim.replay.readers.fields import number, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.json_values import inside
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.required import errors_at, list_at, object_at, objects_at

_BROKEN: Final = "errored"
_KINDS: Final = ("successful", "incomplete", _BROKEN)
_STARTS: Final = ("request_start_time", "start_time")


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    benchmarks = list_at(record["benchmarks"], "benchmarks")
    found = [one for index, benchmark in enumerate(benchmarks) for one in _requests(benchmark, index)]
    for time, place, request in sorted(found, key=lambda one: one[0]):  # they are in the order of their ends
        with errors_at(place):
            yield from _sent(time, request, has_failed=f".{_BROKEN}[" in place)


def _requests(benchmark: Any, index: int) -> Iterator[tuple[int | float, str, Mapping[str, Any]]]:
    place = f"benchmarks[{index}].requests"
    kinds = object_at(inside(benchmark, "requests"), place)
    for kind in _KINDS:
        for where, request in objects_at(kinds.get(kind) or [], f"{place}.{kind}"):
            field = next((field for field in _STARTS if request.get(field) is not None), None)
            if field is not None:  # otherwise it was never sent
                yield number(request, field), where, request


def _sent(time: int | float, request: Mapping[str, Any], *, has_failed: bool) -> Iterator[Record]:
    sent = Record(
        time,
        0,
        whole(request, "output_tokens", usual=0),
        None,
        told_tokens=count_in(request, "prompt_tokens"),
        cached_tokens=cached_of(request),
        has_failed=has_failed,
    )
    if not is_request(request):
        yield replace(sent, input_tokens=whole(request, "prompt_tokens"), told_tokens=None)
        return
    asked = asked_in(request)
    yield from for_each(prompts_in(request, asked), replace(sent, model=text_of(asked, "model")))


GUIDELLM = Format(
    "guidellm",
    Container.JSON,
    ("benchmarks",),
    _parse,
    matches=lambda record: (
        isinstance(record["benchmarks"], list)
        and any(inside(one, "requests") is not None for one in record["benchmarks"])
    ),
    looked_for="of which some have requests",
    is_text=True,
)
