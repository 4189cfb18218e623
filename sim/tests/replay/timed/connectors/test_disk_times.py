"""Files under a replay with time: timelines worked out by hand, what was found where, what a slow disk holds up.

As in ``test_timeline`` a block takes 1016 ns on the link and a job one more. On the disk it takes 2016, and what
is read or written together one more.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kv_sim_timed_traces import PAGE, ListedTrace, answer, comparable, files, toy, trace_of

from kv_api import Direction, OffloadKey
from kv_offload_cpu.copy.engine import PageCopies
from kv_offload_cpu.sizing import HostLayout
from kv_offload_file.label import Label
from kv_sim.replay.report.timed.as_json import timed_as_json
from kv_sim.replay.report.timed.text import timed_lines
from kv_sim.replay.timed import Answers, Contents, EngineSettings, Stepping, replay_engine
from kv_sim.replay.timed.connectors.files import Disk, DiskCopyEngine
from kv_sim.replay.timed.connectors.host_memory import LinkCopyEngine
from kv_sim.replay.timed.durations.link import Link
from kv_sim.replay.timed.durations.timing import Clock, LinkCosts
from kv_sim.replay.timed.runs.answers import Copies, Spread

A, B, C = (0, 8, 1, [1, 2]), (1000, 15, 1, [3, 4, 5, 6]), (2000, 9, 2, [1, 2, 7])
"""The last one finds what the first one had, and what left the GPU for the second."""

DISK = {"disk_read_bandwidth": 16e9 / 16, "disk_write_bandwidth": 16e9 / 16, "disk_microseconds": 2.0}


def with_disk(host: int = 0, chunks: int = 16, staging: int = 64, **changes: Any) -> EngineSettings:
    """A server with files of so many chunks, behind so many of host memory."""
    made = toy(
        **{
            "gpu_blocks": 4,
            **DISK,
            "cpu_bytes_to_use": host * PAGE,
            "disk_bytes_to_use": 2 * PAGE * chunks,
            **changes,
        }
    )
    transfer = made.transfer_config()
    media = transfer["kv_connector_extra_config"].get("connectors", [transfer])
    media[-1]["kv_connector_extra_config"]["file_staging_bytes"] = staging * PAGE
    return replace(made, connector=transfer)


def test_what_is_found_in_files_is_read_and_then_copied() -> None:
    answers = answer(trace_of(A, B, C), with_disk())
    # Two chunks are read at 2,000,000, each a task: 2 × 2017. The engine looks at 2,005,000, and has them copied,
    # which takes 2033; it hears of that at 2,010,000 and plans the last token of the prompt at 2,015,000.
    assert answers.disk_reads == Copies(2, 2, 32, 2 * 2017e-9)
    assert answers.loads == Copies(1, 2, 32, 2033e-9)
    assert answers.load_wait == Spread.of(array("q", [15_000]))
    # Two chunks and three, which are written when the engine looks after their copies.
    assert (answers.stores, answers.disk_writes) == (Copies(2, 5, 80, 5082e-9), Copies(5, 5, 80, 5 * 2017e-9))
    assert (answers.cpu_hit_tokens, answers.disk_hit_tokens) == (0, 8)
    assert (answers.cpu_hit_blocks, answers.disk_hit_blocks, answers.disk_token_ratio) == (0, 2, 0.25)
    assert answers.host_wait_seconds == 0.0


def test_a_chunk_is_read_and_written_as_a_whole() -> None:
    """Of two blocks: one is written of the first prompt, of the second one that is full; and one is read."""
    settings = with_disk()
    transfer = settings.transfer_config()
    transfer["kv_connector_extra_config"]["blocks_per_chunk"] = 2
    answers = answer(trace_of(A, B, C), replace(settings, connector=transfer))
    assert answers.disk_writes == Copies(2, 4, 64, 2 * 4033e-9)
    assert answers.disk_reads == Copies(1, 2, 32, 4033e-9)


def test_a_load_of_the_step_itself_waits_for_the_disk_and_for_the_link() -> None:
    settings = with_disk()
    transfer = settings.transfer_config()
    transfer["kv_connector_extra_config"]["sync_load_budget_bytes"] = 1000
    answers = answer(trace_of(A, B, C), replace(settings, connector=transfer))
    # At 2,010,000 the hooks run: two chunks are read, 2 × 2017, and copied, 2033. Then a token attends to 9: 1037.
    assert (answers.host_wait_seconds, answers.seconds) == (6067e-9, 2_017_104e-9 + 11_041e-9)
    assert (answers.disk_hit_tokens, answers.load_wait) == (8, Spread.of(array("q", [0])))


@pytest.mark.parametrize(("host", "found"), [(16, (8, 0)), (3, (0, 8))], ids=["in both", "it left host memory"])
def test_who_has_it_first_is_asked_first(host: int, found: tuple[int, int]) -> None:
    answers = answer(trace_of(A, B, C), with_disk(host))
    assert (answers.cpu_hit_tokens, answers.disk_hit_tokens) == found
    assert answers.stores.blocks == 2 * 5 + (host == 3) * 2, "both store; what left host memory comes back to it"


def turns(number: int, between: float, blocks: int = 4) -> ListedTrace:
    """Prompts that all differ, one after the other."""
    return trace_of(
        *((n * between, 4 * blocks, 2, [100 * n + place for place in range(blocks)]) for n in range(number))
    )


SLOW = {"disk_write_bandwidth": 1e4}
"""A block takes longer than a request."""


def test_a_slow_disk_holds_nobody_up() -> None:
    """GPU blocks are used again while what was in them is still written, and what finds no bay isn't stored."""
    trace, settings = turns(40, 60.0), with_disk(chunks=200, staging=8, gpu_blocks=6, **SLOW)
    answers, without = answer(trace, settings), answer(trace, replace(settings, connector=NOTHING))
    assert answers.host_wait_seconds < 1e-4
    assert answers.seconds < 1.2 * without.seconds
    assert answers.disk_writes.blocks < 40
    quick = answer(trace, replace(settings, disk_write_bandwidth=1e9))
    assert quick.disk_writes.blocks == 160


NOTHING = {
    "kv_connector": "NoConnector",
    "kv_connector_module_path": "kv_sim.replay.timed.connectors.nothing",
    "kv_role": "kv_both",
}


def conversations(number: int) -> ListedTrace:
    """Each of five prompts comes again and again, and grows."""
    made: list[tuple[float, int, int, Sequence[int]]] = []
    for n in range(number):
        ids = [100 * (n % 5) + place for place in range(1 + n // 5 % 4)]
        made.append((n * 150.0, 4 * len(ids), 2 + n % 30, ids))
    return trace_of(*made)


@pytest.mark.once
@pytest.mark.parametrize("host", [0, 3])
@pytest.mark.parametrize(
    "changes", [{}, SLOW, {"tp_size": 2, "disk_microseconds": 100.0}], ids=["quick", "slow", "two ranks"]
)
def test_fused_and_single_steps_and_those_with_contents_agree(host: int, changes: dict[str, Any]) -> None:
    model = replace(toy().model, kv_heads=2, heads=2)
    settings = with_disk(host, staging=8, gpu_blocks=14, model=model, **changes)
    trace = conversations(24)
    fused, single = answer(trace, settings), answer(trace, settings, Stepping.SINGLE)
    checked = answer(trace, replace(settings, contents=Contents.CHECKED))
    assert comparable(fused) == comparable(single) == comparable(checked)
    assert fused.fused_steps > 0 and fused.disk_hit_tokens > 0


def test_the_seconds_that_a_connector_counts_are_the_replays() -> None:
    answers = answer(trace_of(A, B, C), with_disk())
    counted = {name: value for name, value in answers.connector.items() if "_load_time" in name}
    # From 2,000,000, when the load was submitted, to 2,010,000, when the engine heard of its end.
    assert counted == {"vllm:kv_offload_load_time": pytest.approx(10_000e-9)}


def test_blocks_that_are_larger_than_staging_memory_go_through_it_all_the_same() -> None:
    """Those of a trace are, those of a server aren't: there is room for four."""
    model = replace(toy().model, layers=PAGE)
    settings = with_disk(staging=5, model=model, disk_bytes_to_use=2 * 16 * PAGE * 16, gpu_blocks=4)
    assert answer(trace_of(A, B, C), settings).disk_hit_tokens == 8
    transfer = settings.transfer_config()
    transfer["kv_connector_extra_config"]["file_staging_bytes"] = 1
    assert answer(trace_of(A, B, C), replace(settings, connector=transfer)).disk_hit_tokens == 8


def test_a_third_column_is_without_the_disk() -> None:
    trace, seen = trace_of(A, B, C), list[float]()
    settings = with_disk(3)
    replay = replay_engine(trace, settings, seen.append)
    assert seen == [1 / 3, 2 / 3, 1]
    assert replay.without_disk is not None and isinstance(timed_as_json(replay)["without_disk"], dict)
    assert (replay.with_connector.disk_hit_tokens, replay.without_disk.disk_writes.jobs) == (8, 0)
    lines = [*timed_lines(replay)]
    assert "  disk    1 GB/s read, 1 GB/s written, 2 µs a chunk, 1 chunks a block" in lines
    assert lines[7].split() == ["with", "the", "connector", "without", "the", "disk", "without"]
    assert any(line.startswith("hit ratio, tokens: disk") for line in lines)
    alone = replay_engine(trace, with_disk(0))
    assert (alone.without_disk, timed_as_json(alone)["without_disk"]) == (None, None)
    shown = "\n".join(timed_lines(alone))
    assert "hit ratio, tokens: disk" in shown and "without the disk" not in shown
    assert not any("disk" in line for line in timed_lines(replay_engine(trace, toy(gpu_blocks=4))))


def test_a_folder_is_not_looked_for() -> None:
    nowhere = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": files(64 * PAGE),
    }
    answers: Answers = answer(trace_of(A, B, C), toy(gpu_blocks=4, **DISK, connector=nowhere))
    assert answers.disk_hit_tokens == 8


# -- the copy engine, asked by hand ----------------------------------------------------------------


class NoSlots:
    """Slots without bytes."""

    def write(self, slot: int, label: Label, bay: int) -> None:
        pass

    read = write

    def close(self) -> None:
        pass


class Server:
    """A bay for each direction. A block takes 100 to host memory and 1000 back, 300 to the disk and 50 back."""

    def __init__(self) -> None:
        self.clock = Clock()
        host, back, written, read = (LinkCosts(1.0, 0.0, size, 1) for size in (100, 1000, 300, 50))
        self.begun: list[tuple[Direction, int]] = []
        link, disk = Link(host, back), Link(written, read)
        link.log = lambda job, now: self.begun.append((job.direction, job.begin))
        device: Any = SimpleNamespace(
            clock=self.clock,
            link=link,
            disk=disk,
            allocate_host=lambda slots: 0,
            open_mover=lambda: lambda direction, blocks, pages: None,
        )
        inner = LinkCopyEngine(device, HostLayout(2, 1, 100, 1, 100))
        self.engine = DiskCopyEngine(inner, NoSlots(), 2, [9], device, Disk(device, 1))

    def submit(self, job_id: int, direction: Direction) -> None:
        """Store or load one block."""
        block = np.array([job_id])
        self.engine.labels[job_id] = [Label(OffloadKey(b"key"), 0, job_id, 0)]
        self.engine.submit(job_id, direction, PageCopies(block * 0, block, block, block * 0))

    def poll(self, now: int) -> list[int]:
        self.clock.now = now
        return [result.job_id for result in self.engine.poll()]


def busy_server() -> Server:
    """It is 500, and a store was written at 402, which nobody knows of yet. Another one waits for its bay."""
    server = Server()
    server.submit(0, Direction.STORE)
    server.submit(1, Direction.LOAD)
    # The store's copy ends at 101, and it is written until 402. What was read by 51 is copied from 101 to 1102.
    assert server.poll(101) == []
    server.submit(2, Direction.STORE)
    server.clock.now = 500
    return server


def test_a_copy_begins_when_anybody_asks_and_its_bay_is_free() -> None:
    stored = [(Direction.STORE, 0), (Direction.STORE, 500)]
    copied = [*stored, (Direction.LOAD, 101)]
    server = busy_server()
    assert server.engine.let_go([2]) == [2], "it is still to be written"
    assert (server.clock.now, server.begun) == (601, stored), "the host waits for stores, and for no load"
    server = busy_server()
    server.engine.wait([2])
    assert (server.clock.now, server.begun) == (601 + 301, stored)
    server = busy_server()
    server.submit(3, Direction.STORE)
    assert server.poll(550) == [0] and server.poll(602 + 1000) == [1]
    assert server.begun == copied
