"""``open_trace``: from files of any known format to a trace, with an account of everything that was decided.

The first records are looked at before anything is decided (format, unit of time, block size); then each record is
checked, its blocks are named, and it goes into columns. Whatever is left out is counted, and said.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.columns import NO_SESSION, Columns, ColumnsBuilder
from kv_sim.replay.readers.account import Account
from kv_sim.replay.readers.decide import (
    choose_block,
    choose_format,
    choose_turns,
    choose_unit,
    looked_through,
    refuse_another_engine,
)
from kv_sim.replay.readers.format import Format
from kv_sim.replay.readers.naming import Evidence, IdMeaning, IdScope, Naming
from kv_sim.replay.readers.objects import Broken, Found, Place, gathered, objects_of
from kv_sim.replay.readers.options import SKIP_GOES_ON, OnError, Partial, TraceOptions, Unsorted
from kv_sim.replay.readers.record import TIMES, MalformedError, Record, dates_in
from kv_sim.replay.readers.sessions import Conversations, OwnIds, Retries, SessionNumbers
from kv_sim.replay.readers.sharing import Sharer, describe
from kv_sim.replay.readers.source import SHIPPED, empty_of, files_of, left_out_of, rotated_of, twice_of
from kv_sim.replay.readers.text import Text
from kv_sim.replay.readers.times import Times
from kv_sim.replay.readers.turns import GrowingPrompts
from kv_sim.replay.trace import Tell
from kv_sim.replay.units import counted

_LOOK_AT: Final = 1000
"""Records that are read before the units are decided."""

Request = tuple[float, int, int, Sequence[int], int]
"""Arrival in seconds, input tokens, output tokens, ids, the number of its session."""


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
    """A trace that is read while somebody goes through its ``requests``; once, and in the order of the file."""
    return Opening(path, options or TraceOptions())


class Opening:
    """One trace while it is read. ``notes`` are complete when its requests are through."""

    def __init__(self, path: str | Path, options: TraceOptions) -> None:
        if str(path) in SHIPPED and options.ids is IdMeaning.AUTO and not Path(path).exists():
            options = replace(options, ids=IdMeaning.PREFIX)  # known, and their own ids are worth keeping
        self._path = path
        self._options = options
        self.name = Path(path).name
        self._account = Account()
        self._evidence = Evidence()
        self._notes: list[str] = []
        self._conversations = Conversations()
        self._session_numbers = SessionNumbers()
        self._retries = Retries()
        self._own_ids = OwnIds()
        self._has_text = False
        self._has_sessions = False
        self._has_own_ids = False
        self._dates = ""
        """Of the first record, if it has no time: what may be one."""
        files = files_of(path)
        notes = (
            ("left out for their names", left_out_of(path)),
            ("empty", empty_of(path)),
            ("read packed and unpacked, so twice", twice_of(path)),
            ("read as logs that others took the place of", rotated_of(path)),
        )
        for why, names in notes:
            self._notes += [f"files of the folder that were {why}: {names}"] if names else []
        self._form, found = choose_format(files[0], objects_of(files[0]), options)
        if options.tokenizer is not None and not self._form.is_text:
            raise ConfigError(f"--tokenizer: a record of format {self._form.name} has no text")
        self._text = Text(options.tokenizer, options.block_tokens)
        self._form = looked_through(self._form, files)
        records = self._records(chain([found], (objects_of(file).found for file in files[1:])))
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
        unit_seconds, of_time = choose_unit(self._form, looked_at, options)
        self.block_tokens, of_blocks = choose_block(self._form, looked_at, options, path)
        adds, of_turns = choose_turns(self._form, looked_at, options)
        self._growing = GrowingPrompts(self.block_tokens) if adds else None
        self._notes += filter(None, (of_time, of_blocks, of_turns))
        self._times = Times(self._form, unit_seconds, options.stagger_seconds, self._account)
        self.engine = first[0][1].engine
        """On which it was recorded, as its first record says."""
        self._all = chain(first, records)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader decided, and what it left out."""
        form = self._form
        assumed = ", ".join(filter(None, (self._text.said, form.assumes))) if self._has_text else None
        beside = (*self._text.notes(), *self._notes, *self._account.notes())
        return f"format: {form.name}", *filter(None, [assumed]), *beside

    @property
    def sorts(self) -> bool:
        """Whether the order of the file is not the order of arrival, and isn't meant to be."""
        return self._options.unsorted is Unsorted.SORT or self._form.is_sorted_when_read

    @property
    def keeps_sessions(self) -> bool:
        """Whether requests come with their sessions."""
        return self._options.sessions

    # What is done with each record

    def _records(self, files: Iterator[Iterator[Found]]) -> Iterator[tuple[Place, Record]]:
        form = self._form
        numbered = ((file, *one) for file, found in enumerate(files) for one in gathered(found, form))
        wanted, names = form.fields if form.gather is None else (), set[str]()
        for number, (file, place, value) in enumerate(numbered):
            try:
                if isinstance(value, Broken):
                    raise MalformedError(value.reason)
                missing = [name for name in wanted if name not in value]
                if missing:
                    raise MalformedError(
                        f"{missing[0]}: no such field, and it isn't of format {form.name} without"
                    )
                for record in form.parse(value):
                    if record.time is None and not number and (dates := dates_in(value)):
                        self._dates = f" (if {' or '.join(dates)} is the time, call it {TIMES[0]})"
                    if record.left_out is not None:
                        self._account.leave_out(record.left_out)
                        continue
                    if form.comes_once and record.name is not None:
                        if record.name in names:
                            self._account.copies += 1
                            continue
                        names.add(record.name)
                    self._text.cut(record)
                    if form.is_sorted_when_read and not form.names_sessions:
                        # Names are a writer's own: two files may have the same one.
                        goes_on = form.sessions_go_on and record.session
                        whose = f"file {file}" if goes_on else str(number)
                        record.session = " ".join(filter(None, (whose, record.session)))
                    elif self._options.scope is IdScope.SESSION or self._options.sessions:
                        record.session = self._conversations.name(record)
                    yield place, record
            except MalformedError as error:
                self._malformed(place, error)

    def _malformed(self, place: Place, error: MalformedError) -> None:
        if self._options.on_error is OnError.STOP:
            raise ConfigError(f"{place}: {error}{SKIP_GOES_ON}") from None
        self._account.skip(f"{place}: {error}")

    def requests(self, progress: Tell = lambda count: None) -> Iterator[Request]:
        """Each request, its blocks named. Whoever stops early gets notes of what was read so far."""
        options, form, block_tokens = self._options, self._form, self.block_tokens
        naming = Naming(options.ids, options.scope)
        sharer: Sharer | None = None
        for count, (place, record) in enumerate(self._all):
            if record.block_tokens not in (None, block_tokens) and options.block_tokens is None:
                raise ConfigError(
                    f"{place}: blocks of {record.block_tokens} tokens after such of {block_tokens}; "
                    "one trace has blocks of one size"
                )
            refuse_another_engine(record.engine, self.engine, options, place)
            try:
                arrival = self._times.arrival(record, count)
            except MalformedError as error:
                self._malformed(place, error)
                continue
            if not count and self._times.are_made_up:
                self._notes.append(f"the trace has no times: one request a second is assumed{self._dates}")
            self._account.failed += record.has_failed
            self._account.answers_within += record.answers_within if self._times.are_made_up else 0
            early_by = self._account.arrive(arrival, record.input_tokens)
            if early_by and not form.is_sorted_when_read:
                if options.unsorted is Unsorted.STOP:
                    raise ConfigError(
                        f"{place}: it arrives {early_by:g} s before the request above it; "
                        "--unsorted sort sorts them"
                    )
                self._account.moved += 1
            if record.ids is None:
                sharer = sharer or self._sharer(block_tokens, form)
                record.ids = sharer.ids_for(record.input_tokens)
            if self._growing is not None:
                record.input_tokens, record.ids = self._growing.extend(record, self._fitting(record, block_tokens))
            self._has_text |= record.text is not None
            self._has_sessions |= record.session is not None
            is_local = bool(record.is_session_local)
            self._has_own_ids |= is_local
            self._look_at(record, is_local=is_local, place=place)
            ids = self._without_partial(record, self._fitting(record, block_tokens))
            named = naming.name(ids, record.session, record.model, is_local=is_local)
            yield arrival, record.input_tokens, record.output_tokens, named, self._session_of(record)
            if not count & 0xFFF:
                progress(count)
        self._say_meaning(form, naming.models)
        if options.sharing is not None and sharer is None:
            self._notes.append("the trace has block ids: nothing is assumed of what is shared (--assume-sharing)")

    def _session_of(self, record: Record) -> int:
        """Its number; where a name is that of one request, there are no sessions."""
        if not self._options.sessions or self._form.has_retries:
            return NO_SESSION
        return self._session_numbers.of(record.session)

    def _sharer(self, block_tokens: int, form: Format) -> Sharer:
        sharing = self._options.sharing
        if sharing is None:
            raise ConfigError(
                f"{self._path}: format {form.name} has no block ids, so nothing says which prompts share a "
                "prefix. Say what to assume: --assume-sharing none, or for example "
                "--assume-sharing zipf:prefixes=100,tokens=1024,skew=1,share=0.8 (with --seed)"
            )
        self._notes.append(describe(sharing, self._options.seed))
        return Sharer(sharing, self._options.seed, block_tokens)

    def _look_at(self, record: Record, *, is_local: bool, place: Place) -> None:
        assert record.ids is not None
        if self._options.scope is not IdScope.AUTO:
            is_local = self._options.scope is IdScope.SESSION
        self._evidence.add(record.ids, record.session if is_local else None, str(place))
        if self._options.scope is IdScope.AUTO and not is_local and record.is_session_local is None:
            self._own_ids.see(record.session, record.ids)
        self._retries.see(record.session if self._form.has_retries else record.name)

    def _fitting(self, record: Record, block_tokens: int) -> "list[int | str]":
        """As many ids as the request has blocks."""
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

    def _say_meaning(self, form: Format, models: list[str]) -> None:
        conflict, meaning = self._evidence.conflict, self._options.ids
        if conflict is not None and meaning is IdMeaning.PREFIX:
            raise ConfigError(f"{self._path}: --ids prefix, but these aren't prefix ids: {conflict}")
        if conflict is not None and not form.is_text:  # else they were made here, to be chained
            self._notes.append(f"ids name a block by itself, so they were chained: {conflict}")
        if self._has_own_ids and self._options.scope is IdScope.AUTO:
            self._notes.append(
                "ids are a session's own: what sessions share can't be seen, so hit ratios are a lower bound"
            )
        if self._options.scope is IdScope.SESSION and not self._has_sessions:
            self._notes.append("no request has a session: nothing is kept apart (--id-scope)")
        again = (
            ("lookup", "a request that was tried again finds what it stored")
            if form.has_retries
            else ("request", "is it one that was tried again, or has the log two lines of each?")
        )
        seen = (self._own_ids.note(), self._conversations.note(), self._retries.note(*again))
        self._notes += [note for note in seen if note]
        if len(models) > 1:
            self._notes.append(
                f"requests of {len(models)} models, none of which can use another's blocks: {', '.join(models)}"
            )
        self._notes += self._times.notes()

    def _skipped(self) -> str:
        skipped = self._account.skipped
        records = counted(skipped, "malformed record", "malformed records")
        return f" ({records}, first: {self._account.reasons[0]})" if skipped else ""
