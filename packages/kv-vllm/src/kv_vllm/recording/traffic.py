"""``Traffic``: writes one line for each request of an engine, as a trace that ``kv-sim size`` reads.

    {"timestamp": 1790000000000, "input_length": 40, "output_length": 9, "hash_ids": [52, 7],
     "block_size": 16, "block_bytes": 2097152, "gpu_blocks": 27000, "host_bytes": 68719476736, "policy": "lru",
     "cached_tokens": 32, "loaded_tokens": 16}

The first four fields are those of Mooncake's traces: milliseconds, tokens, and an id for each full block of the
prompt, which stands for everything up to the block's end. Then come the engine's blocks: their tokens, and where a
connector keeps them (``behind``). If all blocks are alike and kept for a whole prompt, there are also the bytes of
a block on all workers together, and the number of blocks of the GPU's cache. The last two fields are how much of
the prompt the engine had when it first began with it: all cached tokens, and those of them that a connector
loaded, up to the first block whose load failed. A request that ended before that has neither. An id is made of the
first bytes of the engine's own hash, so it covers what that covers (adapter, images, salt), and reveals no text.

**Theory of operation.** The number of sampled tokens is known when a request ends, but lines must be in the order
of arrival. So a request waits for those before it. If one takes so long that too many wait behind it, it is
written with the tokens that it has sampled until then. Times never go back, whatever the clock does.

A trace is appended to the file, so an engine that is started again continues it. No error of the file may stop an
engine that serves: the trace ends there, and the log says why.

**Invariants** (``check``): waiting requests are in the order of arrival, the first one has not ended, and
``_open`` has those that haven't ended, by id.
"""

import json
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any, Final

from kv_api import ConfigError
from kv_vllm.recording.lines import write_line

ID_BITS: Final = 53
"""The largest whole number that any reader of JSON reads exactly."""
MOST_IDS_WAITING: Final = 1 << 20
MOST_REQUESTS_WAITING: Final = 10_000

_HASH_BYTES: Final = 8
_BEGIN: Final = b'{"timestamp":'


@dataclass(frozen=True)
class Blocks:
    """The engine's blocks; the fields are those of each line."""

    block_size: int
    """Tokens."""
    block_bytes: int | None = None
    """Bytes of a block on all workers. None, like the next field, if blocks are of several kinds or freed
    early."""
    gpu_blocks: int | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    policy: str | None = None


@dataclass(slots=True, eq=False)
class _Row:
    """A request whose line was not written yet."""

    milliseconds: int
    request: Any
    """The request while it runs; then None."""
    input_tokens: int
    hashes: Sequence[bytes]
    output_tokens: int = 0
    in_gpu: int = 0
    """Tokens of the prompt that the engine's own cache had at the last match."""
    loaded: int | None = None
    """Tokens that a connector was to load beside them; None before the engine begins with the request."""
    targets: Sequence[int] = ()
    """The GPU blocks from the first one on that is being loaded."""

    @property
    def observed(self) -> dict[str, int]:
        """The line's fields of cached tokens."""
        if self.loaded is None:
            return {}
        return {"cached_tokens": self.in_gpu + self.loaded, "loaded_tokens": self.loaded}


class Traffic:
    """The requests of one engine. At ``close`` those that run are written with the tokens sampled so far."""

    def __init__(self, path: Path, blocks: Blocks, clock: Callable[[], float], warn: Callable[..., None]) -> None:
        """``clock``: seconds since 1970; ``warn`` logs a message and its arguments."""
        self._path = path
        self._block_tokens = blocks.block_size
        self._about = {name: value for name, value in vars(blocks).items() if value is not None}
        self._clock = clock
        self._warn = warn
        self._rows: deque[_Row] = deque()
        self._open: dict[str, _Row] = {}
        self._waiting_ids = 0
        self._now = 0
        try:
            self._file = _appended(path)
        except OSError as error:
            raise ConfigError(f"kv_connector_extra_config.trace_path: {error}") from error

    def arrive(self, request: Any) -> None:
        """A request is new. What vLLM made up to be ended at once, to take a ticket back, came from no client."""
        if self._file.closed or getattr(request, "abort_immediately", False) is True:
            return
        self._now = max(self._now, int(1000 * self._clock()))
        prompt = request.num_prompt_tokens
        row = _Row(self._now, request, prompt, request.block_hashes[: prompt // self._block_tokens])
        self._rows.append(row)
        self._open[request.request_id] = row
        self._waiting_ids += len(row.hashes)
        self._write_some()

    def look_up(self, request: Any, in_gpu: int) -> None:
        """The engine's own cache has ``in_gpu`` tokens of a prompt. It may match again before it begins."""
        row = self._open.get(request.request_id)
        if row is not None and row.loaded is None:
            row.in_gpu = in_gpu

    def begin(self, request: Any, to_load: int, blocks: Sequence[int] = ()) -> None:
        """A request got its blocks. Later allocations, as after a preemption, are ignored."""
        row = self._open.get(request.request_id)
        if row is None:
            return
        row.targets = ()
        if row.loaded is None:
            row.loaded = to_load
            first, size = row.in_gpu // self._block_tokens, self._block_tokens
            row.targets = tuple(blocks[first : -(-(row.in_gpu + to_load) // size)]) if to_load else ()

    def fail(self, blocks: Collection[int]) -> None:
        """Loads of these blocks failed: a prompt is cached only up to the first of them."""
        for row in self._open.values() if blocks else ():
            place = next((place for place, block in enumerate(row.targets) if block in blocks), None)
            if place is not None:
                begin = row.in_gpu - row.in_gpu % self._block_tokens + place * self._block_tokens
                row.loaded, row.targets = max(0, begin - row.in_gpu), ()

    def loaded(self, requests: Collection[str]) -> None:
        """Loads of these requests have ended."""
        for name in requests:
            if name in self._open:
                self._open[name].targets = ()

    def end(self, request: Any) -> None:
        """A request ended, however."""
        row = self._open.pop(request.request_id, None)
        if row is None:
            return
        row.output_tokens, row.request = request.num_output_tokens, None
        self._write_some()

    def close(self) -> None:
        """Write all requests that wait."""
        while self._rows:
            self._write_first()
        self._file.close()

    def check(self) -> None:
        """Recount."""
        times = [row.milliseconds for row in self._rows]
        assert times == sorted(times), f"out of order: {times}"
        assert not self._rows or self._rows[0].request is not None, "the first one has ended, and waits"
        running = {row.request.request_id: row for row in self._rows if row.request is not None}
        assert running == self._open, f"{sorted(running)} run, {sorted(self._open)} are open"
        waiting = sum(len(row.hashes) for row in self._rows)
        assert waiting == self._waiting_ids, f"{waiting} ids wait, {self._waiting_ids} were counted"

    def _write_some(self) -> None:
        """Write the requests before the first running one; more if too many wait."""
        while self._rows and (self._rows[0].request is None or self._is_too_much()):
            self._write_first()

    def _is_too_much(self) -> bool:
        return self._waiting_ids > MOST_IDS_WAITING or len(self._rows) > MOST_REQUESTS_WAITING

    def _write_first(self) -> None:
        row = self._rows.popleft()
        self._waiting_ids -= len(row.hashes)
        if row.request is not None:
            row.output_tokens = row.request.num_output_tokens
            del self._open[row.request.request_id]
        line = {
            "timestamp": row.milliseconds,
            "input_length": row.input_tokens,
            "output_length": row.output_tokens,
            "hash_ids": [id_of(block_hash) for block_hash in row.hashes],
            **self._about,
            **row.observed,
        }
        write_line(self._file, json.dumps(line, separators=(",", ":")), self._say_that_it_ends)

    def _say_that_it_ends(self, error: OSError) -> None:
        self._warn("%s: the trace of requests ends here: %s", self._path, error)


def id_of(block_hash: bytes) -> int:
    """The id in a trace of the prefix whose last block has this hash."""
    return int.from_bytes(block_hash[:_HASH_BYTES], "big") >> (8 * _HASH_BYTES - ID_BITS)


def path_of_replica(path: Path, replica: int) -> Path:
    """The file of one replica of an engine: each has a cache of its own, and so a trace of its own."""
    return path.with_name(f"{path.stem}.{replica}{path.suffix}") if replica else path


def _appended(path: Path) -> Any:
    """Open a file to append to; a ConfigError if it is no trace."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b", buffering=0)
    if file.tell():
        file.seek(0)
        if file.read(len(_BEGIN)) != _BEGIN:
            file.close()
            raise ConfigError(
                f"kv_connector_extra_config.trace_path: {path} exists and is not a trace of requests; choose "
                "another file"
            )
        file.seek(-1, SEEK_END)
        if file.read(1) != b"\n":  # an engine was killed while it wrote its last line
            file.write(b"\n")
    return file
