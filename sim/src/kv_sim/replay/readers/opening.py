"""``open_trace``: reads files of any known format as a trace, with notes on everything that was decided.

Format, unit of time and block size are decided from the first records. Then each record is checked, its blocks are
named, and it goes into columns. Everything that is left out is counted and reported.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.columns import NO_SESSION, Columns, ColumnsBuilder
from kv_sim.replay.observed import Observation
from kv_sim.replay.readers.account import Account
from kv_sim.replay.readers.decide import (
    choose_block,
    choose_format,
    choose_turns,
    choose_unit,
    looked_through,
    refuse_another_engine,
)
from kv_sim.replay.readers.files.folder import SHIPPED, empty_of, files_of, left_out_of, rotated_of, twice_of
from kv_sim.replay.readers.files.objects import Place, objects_of
from kv_sim.replay.readers.meaning import Meaning
from kv_sim.replay.readers.options import Partial, TraceOptions, Unsorted
from kv_sim.replay.readers.record import MalformedError, Record
from kv_sim.replay.readers.records import Records
from kv_sim.replay.readers.requests.naming import IdMeaning, Naming
from kv_sim.replay.readers.requests.observing import observation_of
from kv_sim.replay.readers.requests.sessions import Conversations, SessionNumbers
from kv_sim.replay.readers.requests.sharing import Sharer, describe
from kv_sim.replay.readers.requests.text import Text
from kv_sim.replay.readers.requests.times import Times
from kv_sim.replay.readers.requests.turns import GrowingPrompts
from kv_sim.replay.trace import Tell
from kv_sim.replay.units import counted

_LOOK_AT: Final = 1000
"""So many records are read before the units are decided."""

Request = tuple[float, int, int, Sequence[int], int, Observation]
"""Arrival in seconds, input tokens, output tokens, ids, session number, what its server had in its caches."""


def open_trace(
    path: str | Path, options: TraceOptions | None = None, progress: Tell = lambda count: None
) -> Columns:
    """Read a trace: a file, a folder of files, or the name of one that ships with this package."""
    opening = open_stream(path, options)
    builder = ColumnsBuilder(keeps_sessions=opening.keeps_sessions)
    for request in opening.requests(progress):
        builder.add(*request)
    return builder.finish(opening.name, opening.block_tokens, opening.notes, opening.engine)


def open_stream(path: str | Path, options: TraceOptions | None = None) -> "Opening":
    """A trace that is read while its ``requests`` are iterated; once, and in the order of the file."""
    return Opening(path, options or TraceOptions())


class Opening:
    """One trace while it is read. ``notes`` are complete when all requests were iterated."""

    def __init__(self, path: str | Path, options: TraceOptions) -> None:
        if str(path) in SHIPPED and options.ids is IdMeaning.AUTO and not Path(path).exists():
            options = replace(options, ids=IdMeaning.PREFIX)  # shipped traces are known to have prefix ids
        self._path = path
        self._options = options
        self.name = Path(path).name
        self._account = Account()
        self._session_numbers = SessionNumbers()
        self._has_text = self._says_what_was_cached = False
        files = files_of(path)
        self._notes = _notes_of_files(path)
        self._form, found = choose_format(files[0], objects_of(files[0]), options)
        if options.tokenizer is not None and not self._form.is_text:
            raise ConfigError(f"--tokenizer: a record of format {self._form.name} has no text")
        self._text = Text(options.tokenizer, options.block_tokens)
        self._form = looked_through(self._form, files)
        conversations = Conversations()
        self._meaning = Meaning(self._form, options, conversations)
        self._records = Records(self._form, options, self._text, self._account, conversations)
        records = self._records.of(chain([found], (objects_of(file).found for file in files[1:])))
        if options.requests is not None:
            records = islice(records, min(options.requests, sys.maxsize))
        first = list(islice(records, _LOOK_AT))
        if not first:
            raise ConfigError(f"{path}: there is no request in it{self._skipped()}")
        if options.stagger_seconds and not self._form.merges_sessions:
            self._notes.append(
                f"requests of format {self._form.name} have their own times: nothing is staggered (--stagger)"
            )
        looked_at = [record for _, record in first]
        self._some_tell = any(record.ids is not None for record in looked_at)
        unit_seconds, of_time = choose_unit(self._form, looked_at, options)
        self.block_tokens, of_blocks = choose_block(self._form, looked_at, options, path)
        adds, of_turns = choose_turns(self._form, looked_at, options)
        self._growing = GrowingPrompts(self.block_tokens) if adds else None
        self._notes += filter(None, (of_time, of_blocks, of_turns))
        self._times = Times(self._form, unit_seconds, options.stagger_seconds, self._account)
        self.engine = first[0][1].engine
        """The engine on which it was recorded, according to its first record."""
        self._all = chain(first, records)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader assumed, and what it left out."""
        form = self._form
        assumed = ", ".join(filter(None, (self._text.said, form.assumes))) if self._has_text else None
        beside = (*self._text.notes(), *self._notes, *self._account.notes())
        return f"format: {form.name}", *filter(None, [assumed]), *beside

    @property
    def sorts(self) -> bool:
        """Whether the format's files aren't in the order of arrival, so that sorting needs no note."""
        return self._options.unsorted is Unsorted.SORT or self._form.is_sorted_when_read

    @property
    def keeps_sessions(self) -> bool:
        """Whether requests come with their sessions."""
        return self._options.sessions

    def requests(self, progress: Tell = lambda count: None) -> Iterator[Request]:
        """Each request with its blocks named. If iteration stops early, the notes cover what was read so far."""
        options, block_tokens = self._options, self.block_tokens
        naming = Naming(options.ids, options.scope)
        sharer: Sharer | None = None
        for count, (place, record) in enumerate(self._all):
            self._refuse_another_kind(record, place)
            try:
                self._refuse_a_mere_length(record)
                arrival = self._arrive(record, place, count)
            except MalformedError as error:
                self._records.take_malformed(place, error)
                continue
            if record.ids is None:
                sharer = sharer or self._sharer()
                record.ids = sharer.ids_for(record.input_tokens)
            if self._growing is not None:
                record.input_tokens, record.ids = self._growing.extend(record, self._fitting(record, block_tokens))
            self._has_text |= record.text is not None
            self._says_what_was_cached |= record.cached_tokens is not None
            self._meaning.see(record, place)
            ids = self._without_partial(record, self._fitting(record, block_tokens))
            named = naming.name(ids, record.session, record.model, is_local=bool(record.is_session_local))
            observed = observation_of(record, self._account)
            yield arrival, record.input_tokens, record.output_tokens, named, self._session_of(record), observed
            if not count & 0xFFF:
                progress(count)
        self._notes += self._meaning.notes(self._path)
        if len(naming.models) > 1:
            models = ", ".join(naming.models)
            self._notes.append(
                f"requests of {len(naming.models)} models, none of which can use another's blocks: {models}"
            )
        self._notes += self._times.notes()
        cached = (options.columns or {}).get("cached")
        if cached is not None and not self._says_what_was_cached:
            self._notes.append(f"no request says in {cached} what its server had (--columns cached)")
        if options.sharing is not None and sharer is None:
            self._notes.append("the trace has block ids: no sharing is assumed (--assume-sharing)")

    def _refuse_another_kind(self, record: Record, place: Place) -> None:
        """Refuse a record with another block size or engine than those before it."""
        options, size = self._options, self.block_tokens
        if record.block_tokens not in (None, size) and options.block_tokens is None:
            raise ConfigError(
                f"{place}: blocks of {record.block_tokens} tokens after such of {size}; "
                "one trace has blocks of one size"
            )
        refuse_another_engine(record.engine, self.engine, options, place)

    def _refuse_a_mere_length(self, record: Record) -> None:
        """Where other requests say what they share, one that doesn't is no reason to assume it of all."""
        if record.ids is None and self._some_tell and self._options.sharing is None:
            raise MalformedError(
                "expected a prompt, as other requests of the trace have, got only how long it was"
            )

    def _arrive(self, record: Record, place: Place, count: int) -> float:
        """The arrival of a record after ``count`` others, which must not be later unless they are sorted."""
        arrival = self._times.arrival(record, count)
        if not count and self._times.are_made_up:
            self._notes.append(f"the trace has no times: one request a second is assumed{self._records.dates}")
        self._account.failed += record.has_failed
        if self._times.are_made_up:
            self._account.answers_within += record.answers_within
        else:
            self._account.ended += record.ends_with_answer
        if record.beside is not None:
            self._account.beside[record.beside] = self._account.beside.get(record.beside, 0) + 1
        early_by = self._account.arrive(arrival, record.input_tokens)
        if early_by and not self._form.is_sorted_when_read:
            if self._options.unsorted is Unsorted.STOP:
                raise ConfigError(
                    f"{place}: it arrives {early_by:g} s before the request above it; --unsorted sort sorts them"
                )
            self._account.moved += 1
        return arrival

    def _session_of(self, record: Record) -> int:
        """The number of its session; if each session is a single request, there are none."""
        if not self._options.sessions or self._form.has_retries:
            return NO_SESSION
        return self._session_numbers.of(record.session)

    def _sharer(self) -> Sharer:
        sharing = self._options.sharing
        if sharing is None:
            raise ConfigError(
                f"{self._path}: format {self._form.name} has no block ids, so nothing says which prompts share a "
                "prefix. Say what to assume: --assume-sharing none, or for example "
                "--assume-sharing zipf:prefixes=100,tokens=1024,skew=1,share=0.8 (with --seed)"
            )
        self._notes.append(describe(sharing, self._options.seed))
        return Sharer(sharing, self._options.seed, self.block_tokens)

    def _fitting(self, record: Record, block_tokens: int) -> "list[int | str]":
        """The ids, made as many as the request has blocks."""
        account, ids = self._account, list(record.ids or ())
        full, most = record.input_tokens // block_tokens, -(-record.input_tokens // block_tokens)
        if len(ids) > most:
            account.surplus_requests += 1
            account.surplus_ids += len(ids) - most
            del ids[most:]
        if len(ids) < full:
            account.short_requests += 1
        return ids

    def _without_partial(self, record: Record, ids: "list[int | str]") -> "list[int | str]":
        full = record.input_tokens // self.block_tokens
        if len(ids) <= full or self._options.partial is Partial.KEEP:
            return ids
        self._account.dropped_blocks += 1
        return ids[:full]

    def _skipped(self) -> str:
        skipped = self._account.skipped
        records = counted(skipped, "malformed record", "malformed records")
        return f" ({records}, first: {self._account.reasons[0]})" if skipped else ""


def _notes_of_files(path: str | Path) -> list[str]:
    """Notes on files of a folder that are left out, empty, or read twice."""
    notes = (
        ("left out for their names", left_out_of(path)),
        ("empty", empty_of(path)),
        ("read packed and unpacked, so twice", twice_of(path)),
        ("read as logs that others took the place of", rotated_of(path)),
    )
    return [f"files of the folder that were {why}: {names}" for why, names in notes if names]
