"""Decides a trace's format and units from its first records, where options don't say them.

The engine that the first record names holds for the whole trace, so a record of another engine is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.detect import detect
from kv_sim.replay.readers.files.objects import Broken, Contents, Found, objects_of
from kv_sim.replay.readers.format import Format, Turns
from kv_sim.replay.readers.guess import UNITS, agreement, guess_block_tokens, guess_unit, written_as_number
from kv_sim.replay.readers.options import SKIP_GOES_ON, EngineField, OnError, TraceOptions
from kv_sim.replay.readers.record import Moment, Record
from kv_sim.replay.readers.requests.sharing import BLOCK_TOKENS
from kv_sim.replay.readers.requests.turns import have_later_turns, look_added, look_apart
from kv_sim.replay.readers.unknown.own_columns import own_format
from kv_sim.replay.trace import EngineMemory


def choose_format(file: Path, contents: Contents, options: TraceOptions) -> tuple[Format, Iterator[Found]]:
    """The format of a trace, from its first file, and all records of that file, including those looked at."""
    container, header, found = contents
    if options.columns is not None:
        return own_format(options.columns, container), found
    if options.format is not None:
        form = FORMATS[options.format]
        if form.container is not None and not form.lies_in(container):
            raise ConfigError(
                f"{file}: --format {form.name} is {form.container.name}, this looks like {container.name}"
            )
        return form, found
    kept: list[Found] = []
    for place, value in found:
        kept.append((place, value))
        if isinstance(value, Broken):
            if options.on_error is OnError.STOP:
                goes_on = not all(isinstance(later, Broken) for _, later in found)
                raise ConfigError(f"{place}: {value.reason}{SKIP_GOES_ON if goes_on else ''}")
            continue
        return detect(value, container, str(header or place)), chain(kept, found)
    raise ConfigError(f"{file}: no line of it is a record; expected JSON lines, JSON, or a table below its header")


def looked_through(form: Format, files: Sequence[Path]) -> Format:
    """The same format, after it has looked through all records, if it needs to."""
    if form.look_through is None:
        return form
    found = (value for file in files for _, value in objects_of(file).found if not isinstance(value, Broken))
    return replace(form, parse=form.look_through(found))


def choose_unit(form: Format, first: Sequence[Record], options: TraceOptions) -> tuple[float, str | None]:
    """The seconds of a unit of time, and a note about it."""
    if options.time_unit is not None and any(isinstance(record.time, Moment) for record in first):
        raise ConfigError("--time-unit: the times of this trace are dates, which have no unit")
    if options.time_unit is not None:
        return UNITS[options.time_unit], None
    guessed = guess_unit(first, form.unit_seconds)
    if guessed is None and (date := written_as_number(first)) is not None:
        unit = next(unit for unit, size in UNITS.items() if size == form.unit_seconds)
        return form.unit_seconds, f"times look like dates, as {date}, and are taken for {unit} (--time-unit)"
    if guessed is None or UNITS[guessed] == form.unit_seconds:
        numbers = [one.time for one in first if one.time is not None and not isinstance(one.time, Moment)]
        return form.unit_seconds, (form.told_unit or _of_fractions(form, numbers)) if numbers else None
    return UNITS[guessed], f"times look like {guessed} since 1970 (--time-unit)"


def _of_fractions(form: Format, numbers: Sequence[int | float]) -> str | None:
    """A note about times with fractions, in a format that usually has whole numbers."""
    if form.unit_seconds != UNITS["ms"] or all(number == int(number) for number in numbers):
        return None
    return f"times of format {form.name} count ms, and these have fractions: are they seconds? (--time-unit s)"


def choose_block(
    form: Format, first: Sequence[Record], options: TraceOptions, path: str | Path
) -> tuple[int, str | None]:
    """The tokens of a block, and a note about them."""
    if options.block_tokens is not None:
        return options.block_tokens, None
    told = next((one.block_tokens for one in first if one.block_tokens is not None), None)
    if told is not None:
        return told, None
    if first[0].ids is None:
        return BLOCK_TOKENS, None
    chosen = guess_block_tokens(first, form.block_tokens)
    if chosen is None:
        raise ConfigError(f"{path}: the block size can't be derived from this trace: give --block-size")
    share = agreement(first, chosen)
    if chosen != form.block_tokens:
        usual = "" if form.block_tokens is None else f", not {form.block_tokens}"
        return chosen, (
            f"blocks look like {chosen} tokens{usual}: lengths and ids of {share:.0%} of requests agree "
            "(--block-size)"
        )
    if share < 0.5:
        return chosen, f"lengths and ids of only {share:.0%} of requests fit blocks of {chosen} tokens"
    return chosen, None


_NEVER_GOES_ON: Final = (
    "later turns of sessions don't begin with the prompt before: if each is only what it adds, prompts are longer"
)
_ADDS: Final = "a later turn of a session is what it adds to the one before and its answer (--turns)"


def choose_turns(form: Format, first: Sequence[Record], options: TraceOptions) -> tuple[bool, str | None]:
    """Whether a later turn has only what it adds to the turn before, and a note about it."""
    if form.turns is Turns.WHOLE:
        if options.turns is Turns.ADDED and not form.may_add:
            raise ConfigError(f"--turns {options.turns.value}: a record of format {form.name} has a whole prompt")
        if options.turns is Turns.ADDED:
            return True, _ADDS
        way = " (--turns added)" if form.may_add else ""
        return False, f"{_NEVER_GOES_ON}{way}" if look_apart(first) and options.turns is Turns.AUTO else None
    if options.turns is not Turns.AUTO:
        return options.turns is Turns.ADDED, None
    if form.turns is Turns.ADDED:
        return True, _ADDS if have_later_turns(first) else None
    if not look_added(first):
        return False, None
    return True, (
        "later turns of sessions don't begin as the turn before: each is taken for what it adds to that one and "
        "its answer (--turns)"
    )


def refuse_another_engine(
    told: EngineMemory | None, first: EngineMemory | None, options: TraceOptions, place: object
) -> None:
    """Refuse a record of another engine than the first record's, in the fields that no option overrules."""
    if told is None or first is None:
        return
    more = "one trace has requests of one engine; cut it before this line, or say"
    size, before = told.bytes_per_token, first.bytes_per_token
    if size != before and EngineField.BYTES_PER_TOKEN not in options.overruled:
        raise ConfigError(
            f"{place}: block_bytes: {size} bytes a token after {before}; {more} --model or --bytes-per-token"
        )
    size, before = told.gpu_tokens, first.gpu_tokens
    if size != before and EngineField.GPU_TOKENS not in options.overruled:
        raise ConfigError(
            f"{place}: gpu_blocks: room for {size} tokens on the GPU after {before}; {more} --gpu-capacity"
        )
    behind, once = ((one.host_bytes, one.disk_bytes, one.policy) for one in (told, first))
    if behind != once and EngineField.BEHIND not in options.overruled:
        raise ConfigError(
            f"{place}: host_bytes, disk_bytes, policy: {', '.join(map(str, behind))} after "
            f"{', '.join(map(str, once))}; {more} --capacity"
        )
