"""``BuiltinEngine``: the testbed's model of an engine, vLLM V1's as a connector sees it."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, cast

from kv_api import (
    ConfigError,
    KVConnectorBase_V1,
    KVConnectorOutput,
    KVConnectorRole,
    KVOutputAggregator,
    SupportsHMA,
)
from kv_sim.checkers.children import Children
from kv_sim.checkers.protocol import check_joined
from kv_sim.config import BUILTIN_ENGINE, STATE, WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.outcome import Outcome
from kv_sim.engine.output import Step
from kv_sim.engine.own_folder import with_folder
from kv_sim.engine.pause import MODES, Pause, PauseMode
from kv_sim.engine.place import Place
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec, most_tokens
from kv_sim.engine.scheduler import RejectDrafts, Scheduler
from kv_sim.engine.settings import kv_cache_config, vllm_config
from kv_sim.engine.worker import Worker
from kv_sim.guard import Guard, LogCall, all_or_none, crashes, create
from kv_sim.memory.content import hash_text
from kv_sim.memory.device import Device
from kv_sim.subject import Subject
from kv_sim.violation import Referee


class BuiltinEngine(Engine):
    """The testbed's own engine."""

    has_unequal_blocks = True
    scheduler_class: ClassVar[type[Scheduler]] = Scheduler

    scheduler: Scheduler
    outcome: Outcome
    workers: list[Worker]

    @classmethod
    def fit(cls, config: WorldConfig) -> WorldConfig:
        """No drafts beside states, since this engine has no blocks for the states after them; no draft model."""
        return replace(config, spec_tokens=0 if STATE in config.groups else config.spec_tokens, drafter="text")

    def __init__(
        self,
        config: WorldConfig,
        subject: Subject,
        referee: Referee,
        log: LogCall,
        place: Place | None = None,
    ) -> None:
        if config.draft_slots:
            raise ConfigError(
                f"world.drafter: got {config.drafter!r}, and the engine {BUILTIN_ENGINE!r} has no draft model, "
                "only 'text'; the engine 'vllm' has all"
            )
        super().__init__(config, subject, referee, log, place)
        told = with_folder(subject, self.place.folder)
        self.devices = [self.make_device(rank) for rank in range(config.world_size)]
        self.connectors: list[KVConnectorBase_V1] = []
        self.workers = []
        with all_or_none(self.connectors):
            for device in self._ranks:
                caches = self.describe_caches(device.rank)
                connector = create(self.describe(told, device.rank), KVConnectorRole.WORKER, caches, referee)
                self.connectors.append(connector)
                guard = Guard(connector, f"worker {device.rank}", referee, log)
                self.workers.append(Worker(config, device, guard, self.crossing))
            connector = create(self.describe(told, 0), KVConnectorRole.SCHEDULER, self.describe_caches(0), referee)
            self.connectors.append(connector)
            may_leave_out = "on_child_error" in subject.extra_config or config.engine != BUILTIN_ENGINE
            self.children = Children(connector, referee, is_on=not may_leave_out)
            guard = Guard(connector, "scheduler", referee, log, self.served, self.children)
            guarded = cast(KVConnectorBase_V1, guard)
            all_groups = isinstance(connector, SupportsHMA)
            self.scheduler = self.scheduler_class(config, guarded, self.shadow, all_groups=all_groups)
            guarded.bind_kv_cache_manager(self.scheduler.blocks)
            self.aggregator = KVOutputAggregator.from_connector(guarded, config.world_size)
            self._tell_handshakes()
            self.outcome = Outcome(self.scheduler, referee)

    def describe(self, subject: Subject, rank: int) -> Any:
        """The engine's configuration for connectors; fits ``kv_api.VllmConfig``."""
        return vllm_config(self.config, subject, rank, self.place)

    def describe_caches(self, rank: int = 0) -> Any:
        """The configuration of a rank's KV caches for connectors; fits ``kv_api.KVCacheConfig``."""
        return kv_cache_config(self.config, rank)

    def make_device(self, rank: int) -> Device:
        """The device of a rank."""
        return Device(rank, self.config, self.shadow)

    # -- requests ------------------------------------------------------------------------------

    def add(self, spec: RequestSpec) -> SimRequest:
        """A request arrives."""
        config = self.config
        most = most_tokens(spec, config.max_model_len)
        seed = hash_text("blocks") if config.stranger == "blocks" else 0
        request = SimRequest(spec, config.block_size, most, config.hashes_per_block, seed)
        self.mirror.know(request)
        request.kv_transfer_params = deepcopy(self.params_for(request))  # they come from another process
        self.scheduler.add_request(request)
        return request

    def take_turn(self, request_id: str) -> None:
        """The next turn of a session arrives, or after the last turn its end."""
        self.outcome.take_turn(self.scheduler.requests[request_id])

    def abort(self, request_id: str) -> None:
        """A request's client has disconnected."""
        self.outcome.finish([request_id], Status.FINISHED_ABORTED)

    def reset(self, *, running: bool, connector: bool) -> bool | None:
        """``reset_prefix_cache``. None: the engine raised, as vLLM's does when a load holds blocks."""
        scheduler = self.scheduler
        while running and scheduler.running:
            scheduler.preempt(scheduler.running.pop(), drop_stale_output=True)
        done = scheduler.blocks.block_pool.reset()
        if running and not done:
            return None
        forgot = scheduler.connector.reset_cache() if connector else None
        if forgot:
            self.served.reset([*self.outcome.ended, *scheduler.requests.values()])
        return done and forgot is not False

    @property
    def pause_state(self) -> Pause:
        """Which requests are not scheduled now."""
        return self.scheduler.pause

    def pause(self, mode: PauseMode) -> None:
        """Schedule no new requests, or none at all, until ``wake``."""
        if mode == "abort":
            self.outcome.finish(list(self.scheduler.requests), Status.FINISHED_ABORTED)
        self.scheduler.pause = MODES[mode]

    def _resume(self) -> None:
        self.scheduler.pause = Pause.NONE

    def _tell_handshakes(self) -> None:
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(self._handshakes())

    @property
    def has_work(self) -> bool:
        """Whether the engine's loop goes on."""
        return self.scheduler.has_work or self.scheduler.connector.has_pending_push_work()

    @property
    def num_steps(self) -> int:
        """How many steps were scheduled."""
        return self.scheduler.num_steps

    # -- the stages of a step ------------------------------------------------------------------

    def schedule(self, reject_drafts: RejectDrafts) -> Step:
        """Schedule one more step."""
        self._part_with_steps()
        output, plan = self.scheduler.schedule(reject_drafts)
        sync_targets = [block for blocks in plan.sync_targets.values() for block in blocks]
        for name in plan.counts:
            self.served.compute(self.scheduler.requests[name])
        step = Step(
            number=self.scheduler.num_steps,
            output=output,
            attentions=plan.attentions,
            poison=plan.poison,
            load_targets=[*plan.async_targets, *sync_targets],
            sync_targets=plan.sync_targets,
            rejected=plan.rejected,
            sampling=plan.sampling,
            ends=plan.ends,
            handed=plan.handed,
            keeps_room=plan.keeps_room,
            packed=self.crossing.pack(output.kv_connector_metadata, "scheduler side, build_connector_meta"),
        )
        self._allow_late_states(step)
        self.steps.append(step)
        return step

    def process(self) -> None:
        """Process the output of the oldest step."""
        step = self.processable()
        assert step is not None, "no step has come back"
        self.steps.popleft()
        reports = self._take_reports(step)
        self._judge_content(step)
        self.outcome.process(step, self._joined(reports))
        for one in reports:
            self.served.check_failures(one.failed_recving, one.invalid_block_ids, self.devices)
        self.take_events()

    def _joined(self, reports: list[KVConnectorOutput]) -> KVConnectorOutput:
        """The reports of all workers as one. A single worker's goes on as it is: it is in the same process."""
        if self.config.world_size == 1:
            return reports[0]
        with crashes(self.referee, "what the workers report, joined"):
            report = self.aggregator.aggregate_reports(reports)
        check_joined(reports, report, self.referee)
        return report

    def take_events(self) -> None:
        """Pass the connector's KV events on to the checkers."""
        events = list(self.scheduler.connector.take_events())
        self.children.check_events(events)
        self.mirror.take(events)

    def check(self) -> None:
        """Recount everything that the engine keeps; a failure is a bug of the testbed."""
        self.scheduler.check()
        self.aggregator.check()
        for device in self._ranks:
            device.copies.check()
