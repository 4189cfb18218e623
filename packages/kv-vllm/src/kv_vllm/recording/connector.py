"""``RecordingConnector``: wraps any connector of vLLM's and records the engine's calls.

``kv_connector_extra_config`` has ``connector``, the wrapped one, and ``record_path``, the schedule file to write,
which ``kv-sim replay-schedule`` reads. The scheduler's side writes each call as a line to ``….calls.jsonl`` beside
it, and makes the schedule of the calls when the engine ends; ``python -m kv_vllm schedule`` makes it from the
calls of an engine that was killed. A file of calls of an earlier engine is renamed. No error of these files stops
an engine that serves. Of a prompt only its length and the first bytes of its block hashes are written, and ids
become numbers.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from logging import getLogger
from pathlib import Path
from typing import Any, Final

from vllm.v1.request import RequestStatus

from kv_api import ConfigError
from kv_api.groups import described
from kv_vllm.recording.before import ConnectorBefore, Opens, path_in
from kv_vllm.recording.lines import write_line
from kv_vllm.recording.schedule import write_schedule_of
from kv_vllm.recording.world import world_of
from kv_vllm.translate import describe_group

HASH_BYTES: Final = 8
REMEMBERED: Final = 1000
"""How many ended requests keep their number, since a transfer of each is still to be reported."""

_log: Final = getLogger("kv_vllm")


class RecordingConnector(ConnectorBefore):
    """Does what the wrapped connector does, and records the calls."""

    keys = ("connector", "record_path")
    _log: "CallLog | None" = None

    def prepare(self, vllm_config: Any, config_behind: Any, kv_cache_config: Any) -> Opens:
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        groups = [described(vllm_config, spec, describe_group) for spec in specs]
        path = path_in(vllm_config.kv_transfer_config.kv_connector_extra_config, "record_path")
        return partial(self._open, path, world_of(config_behind, kv_cache_config, groups))

    def _open(self, path: Path, header: dict[str, Any]) -> None:
        self._log = CallLog(path, header)

    @property
    def log(self) -> "CallLog":
        """The log of the scheduler side's calls."""
        assert self._log is not None, f"a call of the scheduler's side, and the role is {self.role}"
        return self._log

    def on_new_request(self, request: Any) -> None:
        self.log.arrive(request)
        self.inner.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        answer = self.inner.get_num_new_matched_tokens(request, num_computed_tokens)
        self.log.match(request.request_id, num_computed_tokens, answer)
        return answer

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tables = [list(table) for table in blocks.get_block_ids()]
        self.log.allocate(request.request_id, num_external_tokens, tables)
        self.inner.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        scheduled = {self.log.number(name): n for name, n in scheduler_output.num_scheduled_tokens.items()}
        preempted = sorted(map(self.log.number, scheduler_output.preempted_req_ids or ()))
        self.log.write("step", scheduled=scheduled, preempted=preempted)
        return self.inner.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        self.log.report(connector_output)
        super().update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        answer = self.inner.request_finished(request, block_ids)
        self.log.end(request, answer[0])
        return answer

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        answer = super().request_finished_all_groups(request, block_ids)
        self.log.end(request, answer[0])
        return answer

    def reset_cache(self) -> Any:
        answer = self.inner.reset_cache()
        self.log.write("reset", answer=answer)
        return answer

    def shutdown(self) -> None:
        try:
            self.inner.shutdown()
        finally:
            if self._log is not None:
                self._log.close()


class CallLog:
    """Writes calls as lines; at the end makes the schedule of them."""

    def __init__(self, schedule: Path, header: dict[str, Any]) -> None:
        self._schedule = schedule
        self.calls = schedule.with_name(f"{schedule.stem}.calls.jsonl")
        self._numbers: dict[str, str] = {}
        """The number of each request id; an id that comes back gets another number."""
        self._ended: dict[str, str] = {}
        """Number and id of those that ended and keep their number, the earliest first."""
        self._later: set[str] = set()
        """Requests whose last match found an asynchronous load."""
        self._loading: set[str] = set()
        """Requests of which an asynchronous load is to be reported."""
        self._arrived = 0
        self._is_made = False
        try:
            schedule.parent.mkdir(parents=True, exist_ok=True)
            _put_aside(self.calls, schedule.stem)
            self._file = self.calls.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"kv_connector_extra_config.record_path: {error}") from error
        self._line(header)

    def number(self, request_id: str) -> str:
        """The name of a request in the file. A request that didn't arrive by ``on_new_request`` has none."""
        return self._numbers.get(request_id, "?")

    def write(self, call: str, **arguments: Any) -> None:
        """Write one call; an id becomes a number."""
        if "request" in arguments:
            arguments["request"] = self.number(arguments["request"])
        self._line({"call": call, **arguments})

    def match(self, request_id: str, local: int, answer: Any) -> None:
        """The connector was asked what it has of a request."""
        self.write("match", request=request_id, local=local, tokens=answer[0], later=answer[1])
        (self._later.add if answer[1] else self._later.discard)(request_id)

    def allocate(self, request_id: str, tokens: int, tables: list[list[int]]) -> None:
        """A request got blocks, and this many tokens are loaded into them."""
        self.write("allocate", request=request_id, tokens=tokens, blocks=tables)
        if tokens and request_id in self._later:
            self._loading.add(request_id)
        self._later.discard(request_id)

    def arrive(self, request: Any) -> None:
        """A request is new."""
        self._numbers[request.request_id] = f"r{self._arrived}"
        self._arrived += 1
        self.write(
            "arrive",
            request=request.request_id,
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            hashes=[block_hash[:HASH_BYTES].hex() for block_hash in request.block_hashes],
            skips=bool(request.skip_reading_prefix_cache),
        )

    def report(self, output: Any) -> None:
        """The workers' report of a step."""
        self.write(
            "report",
            loads=sorted(map(self.number, output.finished_recving or ())),
            stores=sorted(map(self.number, output.finished_sending or ())),
            failed=sorted(map(self.number, output.failed_recving)),
            bad_blocks=sorted(output.invalid_block_ids),
            jobs=sorted(_jobs_in(output.kv_connector_worker_meta)),
        )
        loaded = {*(output.finished_recving or ()), *output.failed_recving}
        self._loading -= loaded
        for request_id in loaded.union(output.finished_sending or ()):
            self._forget(self._numbers.get(request_id, ""))

    def end(self, request: Any, is_held: bool) -> None:
        """A request ended."""
        aborted = request.status == RequestStatus.FINISHED_ABORTED
        self.write(
            "end",
            request=request.request_id,
            aborted=aborted,
            output_tokens=request.num_output_tokens,
            held=bool(is_held),
        )
        number = self.number(request.request_id)
        self._ended[number] = request.request_id
        self._later.discard(request.request_id)
        if not is_held and request.request_id not in self._loading:
            self._forget(number)
        elif len(self._ended) > REMEMBERED:
            self._forget(next(iter(self._ended)))

    def _forget(self, number: str) -> None:
        """Forget a request that has ended; no others."""
        request_id = self._ended.pop(number, None)
        if request_id is not None and self.number(request_id) == number:
            self._numbers.pop(request_id, None)
            self._loading.discard(request_id)

    def close(self) -> None:
        """Make the schedule, once."""
        if self._is_made:
            return
        self._is_made = True
        self._file.close()
        try:
            write_schedule_of(self.calls, self._schedule)
        except (OSError, ConfigError) as error:
            _log.warning("%s: the schedule was not written: %s", self._schedule, error)

    def _line(self, values: Mapping[str, Any]) -> None:
        write_line(self._file, json.dumps(values, separators=(",", ":")), self._say_that_it_ends)

    def _say_that_it_ends(self, error: OSError) -> None:
        _log.warning("%s: the recording ends here: %s", self.calls, error)


def _put_aside(calls: Path, stem: str) -> None:
    """Rename a file of calls of an earlier engine: if that was killed, no schedule was made of it."""
    if calls.is_file() and calls.stat().st_size:
        names = (calls.with_name(f"{stem}.{number}.calls.jsonl") for number in count(1))
        calls.rename(next(name for name in names if not name.exists()))


def _jobs_in(worker_meta: Any) -> Iterator[int]:
    """Jobs of which workers report an end; of a MultiConnector, those of its children."""
    yield from getattr(worker_meta, "completed_jobs", None) or ()
    children = getattr(worker_meta, "metadata", None)
    for child in children if isinstance(children, tuple) else ():
        yield from _jobs_in(child)
