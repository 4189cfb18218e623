"""``Engine``: the interface of any engine that a world drives: its connector, its devices, its steps in flight.

A step is scheduled, executed by each rank (hooks run, kernels are launched), retired by each rank (kernels have
run), and when all ranks have retired it, processed: its output goes back to the scheduler. Up to ``run_ahead``
further steps are scheduled meanwhile. Nothing happens by itself: the world calls.

Each engine implements requests, and how a step is scheduled and processed: ``builtin`` is the testbed's own, and a
package may offer another.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from kv_api import KVConnectorBase_V1, KVConnectorHandshakeMetadata, KVConnectorOutput, KVTransferConfig
from kv_factory import KVConnectorFactory
from kv_sim.checkers.accounting import Mirror
from kv_sim.checkers.protocol import check_failed_blocks, check_failed_loads
from kv_sim.checkers.served import Served
from kv_sim.config import WorldConfig
from kv_sim.engine.crossing import Crossing
from kv_sim.engine.output import Step
from kv_sim.engine.pause import Pause, PauseMode
from kv_sim.engine.place import Place
from kv_sim.engine.rank_device import RankDevice
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engine.scheduler import RejectDrafts
from kv_sim.engine.seen import SeenOutcome, SeenScheduler, SeenWorker
from kv_sim.guard import LogCall
from kv_sim.memory.device import Device
from kv_sim.memory.launched import late_states
from kv_sim.memory.shadow import Shadow
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Referee


class Engine(ABC):
    """One engine with one connector."""

    own_modules: ClassVar[tuple[str, ...]] = ("kv_sim.engine", "kv_sim.memory")
    """The modules of its classes. Objects of these that a connector was given don't count as the connector's
    own."""

    has_unequal_blocks: ClassVar[bool] = False
    """Whether it can run worlds whose groups have blocks of several sizes."""

    params_for: Callable[[SimRequest], Any] = staticmethod(lambda request: request.spec.kv_transfer_params)
    """Gives the ``kv_transfer_params`` with which a request arrives."""

    scheduler: SeenScheduler
    outcome: SeenOutcome
    devices: list[Device]
    workers: Sequence[SeenWorker]
    connectors: list[KVConnectorBase_V1]
    """The workers' by rank, then the scheduler's."""

    @classmethod
    def fit(cls, config: WorldConfig) -> WorldConfig:
        """``config`` without what this engine can't do."""
        return config

    # -- connectors that it can drive: an engine may know other classes and names than our factory ----

    @classmethod
    def subject_named(cls, name: str) -> Subject:
        """The connector with a name that this engine knows, without traits. Unknown: ``UnknownNameError``."""
        KVConnectorFactory.get_connector_class_by_name(name)
        return Subject(name, None, traits=frozenset())

    @classmethod
    def connector_class(cls, transfer: KVTransferConfig) -> type[Any]:
        """The connector class of a configuration."""
        return KVConnectorFactory.get_connector_class(transfer)

    @classmethod
    def supports_groups(cls, transfer: KVTransferConfig) -> bool:
        """Whether a configured connector works with several KV cache groups."""
        return KVConnectorFactory.supports_hma_config(transfer)

    # -- what a router needs to know ---------------------------------------------------------------

    @property
    def leaves_tickets(self) -> bool:
        """Whether the connector makes tickets for its holds. If its class says no, the router makes them."""
        return bool(getattr(self.connectors[-1], "leaves_tickets", True))

    def address(self) -> dict[str, Any]:
        """The address of held blocks, for a ticket that the router makes."""
        return {"remote_engine_id": self.place.engine_id}

    # -- making one ----------------------------------------------------------------------------

    @abstractmethod
    def __init__(
        self,
        config: WorldConfig,
        subject: Subject,
        referee: Referee,
        log: LogCall,
        place: Place | None = None,
    ) -> None:
        """Make the checkers of any engine. A subclass makes the rest: scheduler, workers, devices."""
        self.config = config
        self.place = place or Place()
        self.referee = referee
        self.shadow = Shadow(config.world_size, referee)
        self.mirror = Mirror(
            referee,
            is_exact=Trait.EVENTS in subject.traits,
            is_shared=self.place.shares_store,
            parts=[group.parts for group in config.groups] if config.is_unequal else [],
        )
        keeps = Trait.KEEPS in subject.traits
        self.served = Served(
            referee,
            config.block_size,
            is_on=keeps,
            forgets=Trait.RESET in subject.traits and not subject.serves_peers,  # a ticket may be older
            hashes_per_block=self.hashes_per_block,
            ends_within=config.hit_ends_per_block > 1,
            proof_tokens=config.proof_tokens,
        )
        self.shadow.hits_must_load = self.served.hits_must_load
        self.steps: deque[Step] = deque()
        self.forgiven: dict[int, int] = {}
        """GPU block -> the last step that may have read the bytes that a failed load left there."""
        self.crossing = Crossing(config.world_size, referee)
        self.is_asleep = False

    def let_others_work(self) -> None:
        """Give foreign threads time to work: nothing else happens, and the world has no copy to end."""

    def _handshakes(self) -> dict[tuple[int, int], KVConnectorHandshakeMetadata]:
        """The workers' handshake metadata by (pp rank, tp rank), as it reaches the scheduler's side."""
        found = {divmod(rank, self.config.tp_size): worker.handshake for rank, worker in enumerate(self.workers)}
        present = {place: handshake for place, handshake in found.items() if handshake is not None}
        return self.crossing.carry(present, "worker side, get_handshake_metadata") if present else {}

    @property
    def hashes_per_block(self) -> int:
        """Hashes that a request has for each block, of the largest size that there is."""
        return self.config.hashes_per_block

    @property
    def _ranks(self) -> Sequence[RankDevice]:
        """The devices, by the part that those of every engine have: one that only models time has no memory."""
        return self.devices

    @property
    def guards(self) -> list[Any]:
        """The guards around the connector's objects, in the order in which an engine shuts them down."""
        return [*(worker.connector for worker in self.workers), self.scheduler.connector]

    # -- requests ------------------------------------------------------------------------------

    @abstractmethod
    def add(self, spec: RequestSpec) -> SimRequest:
        """A request arrives."""

    @abstractmethod
    def take_turn(self, request_id: str) -> None:
        """The next turn of a session arrives, or after the last turn its end."""

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """A request's client has disconnected."""

    @abstractmethod
    def reset(self, *, running: bool, connector: bool) -> bool | None:
        """``reset_prefix_cache``. None: the engine raised, as vLLM's does when a load holds blocks."""

    # -- pauses ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def pause_state(self) -> Pause:
        """Which requests are not scheduled now."""

    @abstractmethod
    def pause(self, mode: PauseMode) -> None:
        """Schedule no new requests, or none at all, until ``wake``."""

    @abstractmethod
    def _resume(self) -> None:
        """Schedule all requests again."""

    @property
    def may_sleep(self) -> bool:
        """Whether it is paused and has no work left."""
        paused = self.pause_state is not Pause.NONE
        return paused and not (self.is_asleep or self.steps or self.has_work)

    def sleep(self) -> bool:
        """Reset the caches, and free the GPU memory. False: the reset failed, and the engine is only paused."""
        if not self.reset(running=True, connector=True):
            return False
        for worker in self.workers:
            worker.sleep()
        self.is_asleep = True
        return True

    def wake(self) -> None:
        """Go on after a pause, or a sleep."""
        if self.is_asleep:
            for worker in self.workers:
                worker.wake()
            self._tell_handshakes()
            self.is_asleep = False
        self._resume()

    @abstractmethod
    def _tell_handshakes(self) -> None:
        """Pass the workers' handshake metadata on to the connector's scheduler side."""

    # -- work ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether the engine's loop goes on."""

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """How many steps were scheduled."""

    # -- the stages of a step ------------------------------------------------------------------

    @property
    def can_schedule(self) -> bool:
        """Whether one more step may be in flight."""
        return len(self.steps) < self.config.max_concurrent_steps

    @abstractmethod
    def schedule(self, reject_drafts: RejectDrafts) -> Step:
        """Schedule one more step."""

    def _allow_late_states(self, step: Step) -> None:
        """Let the loads of a step fill the blocks in which requests go on from the states that it loads.

        As in vLLM, these states were copied there before a connector is told to load.
        """
        late = late_states(step.attentions, step.sync_targets, self.config)
        if late:
            step.load_states_late(late)
            self.shadow.step_rights.update(dict.fromkeys(late.values(), step.number))

    def _part_with_steps(self) -> None:
        """Pickle the metadata of steps in flight, so that later steps can't change it."""
        for step in self.steps:
            if not step.reports and step.packed is None:
                step.packed = self.crossing.part(self._said_in(step))

    def _said_in(self, step: Step) -> Any:
        """The part of a step's output that goes to a worker."""
        return step.output.kv_connector_metadata

    def executable(self, rank: int) -> Step | None:
        """The step that a rank executes next."""
        return next((step for step in self.steps if rank not in step.reports), None)

    def execute(self, rank: int) -> None:
        """Let a rank execute its next step."""
        step = self.executable(rank)
        assert step is not None, f"rank {rank} has nothing to execute"
        step.reports[rank] = self.workers[rank].execute(step)

    def processable(self) -> Step | None:
        """The oldest step, if every rank has executed and retired it."""
        if not self.steps or len(self.steps[0].reports) < self.config.world_size:
            return None
        step = self.steps[0]
        waiting = any(launched.number == step.number for device in self._ranks for launched in device.queue)
        return None if waiting else step

    @abstractmethod
    def process(self) -> None:
        """Process the output of the oldest step."""

    @abstractmethod
    def take_events(self) -> None:
        """Pass the connector's KV events on to the checkers."""

    def finish_step(self) -> None:
        """Let every rank execute and retire the oldest step, and process it."""
        step = self.steps[0]
        for rank, device in enumerate(self._ranks):
            while rank not in step.reports:
                self.execute(rank)
            while any(launched.number == step.number for launched in device.queue):
                device.retire()
        self.process()

    def _take_reports(self, step: Step) -> list[KVConnectorOutput]:
        """Each rank's report of a step. Wrong bytes in blocks that a rank reports as not loaded are forgiven."""
        reports = [step.reports[rank] for rank in range(self.config.world_size)]
        for rank, report in enumerate(reports):
            if len(self.config.groups) == 1:  # with several none may be named at all
                check_failed_blocks(rank, report.invalid_block_ids, step, self.shadow, self.referee)
            check_failed_loads(rank, report.failed_recving, self.scheduler.requests, self.referee)
            self.forgiven.update(dict.fromkeys(report.invalid_block_ids, self.num_steps))
            if report.failed_recving or report.invalid_block_ids:
                self.shadow.ranks_that_failed.add(rank)
        return reports

    def _judge_content(self, step: Step) -> None:
        for problem in step.problems:
            if self.forgiven.get(problem.block, -1) < step.number:
                self.referee.fail(Invariant.CONTENT, problem.message)

    def retire(self, rank: int) -> None:
        """Let a rank's device run the kernels of the oldest launched step."""
        self._ranks[rank].retire()

    @abstractmethod
    def check(self) -> None:
        """Recount everything that the engine keeps; a failure is a bug of the testbed."""
