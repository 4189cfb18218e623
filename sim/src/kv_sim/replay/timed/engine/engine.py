"""``TimedEngine``: the testbed's engine for a trace, with a clock, links, and a server's sizes.

``QuickEngine`` has no memory; ``CheckedEngine`` has memory, and checks rights and contents. Both make the same
scheduling decisions, and drive the same connector through the same guard.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from kv_api import KVTransferConfig
from kv_sim.config import WorldConfig
from kv_sim.engine.builtin import BuiltinEngine
from kv_sim.engine.rank_device import RankDevice
from kv_sim.guard import LogCall
from kv_sim.memory.device import Device
from kv_sim.replay.timed.durations.link import Link
from kv_sim.replay.timed.durations.timing import Clock
from kv_sim.replay.timed.durations.wires import TimedWire
from kv_sim.replay.timed.engine.device import EmptyDevice, TimedDevice
from kv_sim.replay.timed.engine.request import Names, TracedRequest
from kv_sim.replay.timed.engine.scheduler import QuickScheduler, TimedScheduler
from kv_sim.replay.timed.engine.seat import Seat
from kv_sim.replay.timed.server.sizes import Sizes
from kv_sim.replay.trace import TraceRequest
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Referee


class TimedEngine(BuiltinEngine):
    """One engine with the connector that ``transfer`` configures, alone or at its ``seat`` among others."""

    scheduler_class: ClassVar[type[TimedScheduler]]
    tells_events: ClassVar[bool]
    """Whether the connector is asked for its KV cache events, which a checker reads."""

    def __init__(self, sizes: Sizes, transfer: Mapping[str, Any], log: LogCall, seat: Seat | None = None) -> None:
        self.sizes = sizes
        self.seat = seat
        self.clock = Clock()
        self.wire = seat.wires.open(self.clock) if seat and seat.wires else None
        self.link = Link(sizes.link)
        self.disk = Link(sizes.disk_write, sizes.disk_read, seat.machine.disk if seat and seat.machine else None)
        self.names = seat.names if seat else Names(sizes.parts)
        self._transfer = KVTransferConfig.from_mapping({"kv_role": "kv_both", "engine_id": "replay", **transfer})
        config = WorldConfig(
            num_blocks=sizes.gpu_blocks + 1,  # and the null block
            block_size=sizes.block_tokens,
            max_running=sizes.max_running,
            max_step_tokens=sizes.max_step_tokens,
        )
        subject = Subject(self._transfer.kv_connector or "", traits=frozenset())
        referee = Referee()
        # A copy may take many steps here, and each child has its own limit of put-offs.
        referee.switched_off.add(Invariant.WORK)
        super().__init__(config, subject, referee, log)
        self.scheduler: TimedScheduler
        self.scheduler.clock = self.clock

    def describe(self, subject: Subject, rank: int) -> Any:
        described = super().describe(subject, rank)
        described.kv_transfer_config = self._transfer
        described.replay_clock, described.replay_wire = self.clock, self.wire
        described.kv_events_config = SimpleNamespace(enable_kv_cache_events=self.tells_events)
        return described

    def describe_caches(self, rank: int = 0) -> Any:
        """One KV cache group, with the bytes of the server's model."""
        described, size = super().describe_caches(rank), self.sizes.block_bytes
        described.kv_cache_groups[0].kv_cache_spec.page_size_bytes = size
        described.kv_cache_tensors[0].size = size * self.config.num_blocks
        return described

    # -- copies: over the link, to and from the disk, and over the wire ----------------------------

    @property
    def _links(self) -> Sequence[Link | TimedWire]:
        return (self.link, self.disk) if self.wire is None else (self.link, self.disk, self.wire)

    @property
    def shares_files(self) -> bool:
        """Whether other engines store files that this engine's requests can find."""
        return self.seat is not None and self.seat.machine is not None

    @property
    def awaits_others(self) -> bool:
        """Whether other engines may cause a copy of this engine to end."""
        return self.wire is not None and self.wire.awaits_others

    @property
    def copy_activity(self) -> int:
        """A number that grows whenever a copy is submitted or its end is reported."""
        return sum(link.activity for link in self._links)

    @property
    def copies_nothing(self) -> bool:
        """Whether every copy has ended and was reported."""
        return all(link.is_idle for link in self._links)

    def next_copy_end(self) -> int | None:
        """When the next copy ends, if no copy is submitted meanwhile."""
        ends = [end for link in self._links if (end := link.next_end()) is not None]
        return min(ends, default=None)

    # ---------------------------------------------------------------------------------------------

    @property
    def forward_ns(self) -> int:
        """How long the next forward pass takes."""
        return self._device.forward_ns

    @forward_ns.setter
    def forward_ns(self, duration: int) -> None:
        self._device.forward_ns = duration

    @property
    def _device(self) -> EmptyDevice | TimedDevice:
        return cast(EmptyDevice | TimedDevice, self.devices[0])

    def make_request(self, index: int, traced: TraceRequest) -> TracedRequest:
        """Make this engine's form of a request of the trace."""
        return TracedRequest(index, traced, self.names, self.config.block_size)

    def check(self) -> None:
        super().check()
        for link in self._links:
            link.check()


class QuickEngine(TimedEngine):
    """An engine without memory, for replays that need only times and decisions."""

    scheduler_class = QuickScheduler
    tells_events = False

    def make_device(self, rank: int) -> Device:
        device: RankDevice = EmptyDevice(rank, self.config, self.shadow, self.clock, self.link, self.disk)
        return cast(Device, device)  # only worlds use more of a device, and they don't use this engine


class CheckedEngine(TimedEngine):
    """An engine with memory, which checks everything that is read."""

    scheduler_class = TimedScheduler
    tells_events = True

    def make_device(self, rank: int) -> Device:
        return TimedDevice(rank, self.config, self.shadow, self.clock, self.link, self.disk)

    def make_request(self, index: int, traced: TraceRequest) -> TracedRequest:
        request = super().make_request(index, traced)
        request.write_contents()
        return request
