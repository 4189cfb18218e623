"""``detect``: the format of a record; and what is said of a record that has none."""

from collections.abc import Mapping
from typing import Any, Final

from kv_api import ConfigError
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.chats.asked import paths_in
from kv_sim.replay.readers.chats.chat import is_request
from kv_sim.replay.readers.files.objects import BEFORE_JSON, FOR_PEOPLE, NAMELESS, looks_for_people
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.guess import UNITS
from kv_sim.replay.readers.json_values import object_in
from kv_sim.replay.readers.record import MalformedError
from kv_sim.replay.readers.unknown.further_in import is_mere_body, step_to, way_to_records
from kv_sim.replay.readers.unknown.likely_columns import (
    are_records,
    has_counts,
    likely_columns,
    unread_time,
    unsure_prompt,
)
from kv_sim.replay.readers.unknown.reports import report_of

_MOST_SHOWN: Final = 3


def detect(record: Mapping[str, Any], container: Container, where: str) -> Format:
    """The format of a file's first record. Known reports without requests are refused by name."""
    for one in FORMATS.values():
        if one.lies_in(container) and one.is_of(record):
            return one
    if (report := report_of(record)) is not None:
        raise ConfigError(f"{where}: this is {report}")
    what = "fields" if container is Container.JSON else "columns"
    found = ", ".join(f"{name:.40}" for name in list(record)[:12]) or "none"
    wanted = _wanted(record, container)
    skip = "; if only this record differs: --format with --on-error skip" if container is Container.JSON else ""
    likely = likely_columns(record)
    own = f"; --columns names the fields of another format{'' if likely is None else f': --columns {likely}'}"
    if likely is not None and "time=" in likely and container is Container.CSV:
        own += _unit_as_elsewhere(record)
    if (said := unsure_prompt(record)) is not None:
        own += f"; if {said} has whole prompts, add prompt={said}, which shows what they share"
    if (unread := unread_time(record)) is not None:
        own += f"; {unread} is not a readable date such as 2026-01-31T10:00:00"
    if isinstance(record.get("input"), str) and FORMATS["openai"].lies_in(container):
        own += "; if it asks for a response, not an embedding: --format openai"
    elif any("embedding" in path for path in paths_in(record)):
        own += "; --format openai --on-error skip leaves out requests for embeddings"
    raise ConfigError(
        f"{where}: no known format has the {what} {found}{_may_be(record, container)}; "
        f"expected those of {wanted}{own}{skip}"
    )


def _may_be(record: Mapping[str, Any], container: Container) -> str:
    """A hint for the error about an unknown format: what the record may be, and how to convert it."""
    is_json = container is Container.JSON
    if is_json and are_records(record) and _holds_records([*record.values()]):
        return " (each of its fields is a readable record: jq -c '.[]' takes them out)"
    inner = {name: object_in(value) or {} for name, value in record.items()}
    asks = [(name, found) for name, found in inner.items() if is_request(found) and not has_counts(found)]
    if asks:
        name, found = asks[0]
        if not is_mere_body(found):
            return _packed(name, record[name], container)
        return f" ({name:.40} is a request to an API: rename it to request_body, its answer to response_body)"
    packed = next((name for name, value in record.items() if _is_record(object_in(value))), None)
    is_unlike_any = likely_columns(record) is None
    if packed is not None and is_unlike_any:
        return _packed(packed, record[packed], container)
    is_deeper = is_unlike_any and is_json
    listed = next((name for name, value in record.items() if is_deeper and _holds_records(value)), None)
    if listed is not None:
        return f" ({listed:.40} is a list of readable records: jq -c '{step_to(listed)}[]' takes them out)"
    way = way_to_records(record, _is_read, _holds_records) if is_deeper else None
    if way is not None:
        return f" (readable records are further in: jq -c '{' | '.join(way)}' takes them out)"
    if container is Container.CSV and any("{" in name for name in record):
        return BEFORE_JSON
    if container is Container.CSV and looks_for_people(record):
        return FOR_PEOPLE
    if container is Container.CSV and any(name.replace(".", "").isdecimal() for name in record):
        return NAMELESS
    return ""


def _packed(name: str, value: Any, container: Container) -> str:
    """A hint how to take a record out of a field, in which it is as an object or as JSON."""
    if container is not Container.JSON:  # which jq doesn't read
        return f" ({name:.40} is a readable record: JSON lines of that column alone can be read)"
    out = f"{step_to(name)} | fromjson" if isinstance(value, str) else step_to(name)
    return f" ({name:.40} is a readable record: jq -c '{out}' takes it out)"


def _is_record(value: Any) -> bool:
    """Whether its fields are those of a known format's record."""
    known = (one for one in FORMATS.values() if one.lies_in(Container.JSON) and (one.fields or one.looked_for))
    is_one = isinstance(value, dict) and bool(value) and not has_counts(value)
    return is_one and any(one.is_of(value) for one in known)


def _unit_as_elsewhere(record: Mapping[str, Any]) -> str:
    """A hint about the unit of time, if the columns have the names of a format that doesn't count seconds."""
    numbers = {name: int(cell) if str(cell).isdecimal() else cell for name, cell in record.items()}
    form = next((one for one in FORMATS.values() if one.fields and one.is_of(numbers)), None)
    unit = None if form is None else next(unit for unit, size in UNITS.items() if size == form.unit_seconds)
    return "" if unit in (None, "s") else f" --time-unit {unit}"


def _holds_records(value: Any) -> bool:
    """Whether it is a list of known formats' records."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return False
    return _is_record(value[0]) or not (likely_columns(value[0]) or "prompt=").startswith("prompt=")


def _is_read(value: Any) -> bool:
    """Whether it is a record that can be read without a mistake."""
    if not _is_record(value):
        return False
    try:
        return any(
            one.lies_in(Container.JSON) and one.is_of(value) and any(one.parse(value)) for one in FORMATS.values()
        )
    except MalformedError:
        return False


def _wanted(record: Mapping[str, Any], container: Container) -> str:
    """The fields of the known formats that share most fields with this record, ignoring case."""
    forms = [one for one in FORMATS.values() if one.lies_in(container)]
    names = {name.lower() for name in record}
    there = {one.name: sum(field.lower() in names for field in one.fields) for one in forms}
    near = [one for one in forms if there[one.name]]
    near.sort(key=lambda one: (len(one.fields) - there[one.name], -there[one.name]))
    shown = near[:_MOST_SHOWN]
    first = [f"{one.name} ({one.asks_for})" for one in shown]
    others = "other formats" if first else "formats"
    return " or ".join([*first, f"one of {len(forms) - len(shown)} {others}, which --help lists"])
