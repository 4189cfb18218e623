"""``VllmEngine``: vLLM's own schedulers and hooks over the testbed's memory; ``kv-sim fuzz --engine vllm``.

The scheduler is vLLM's ``Scheduler`` or ``AsyncScheduler``, vLLM's code calls the hooks of a step, vLLM's
``KVOutputAggregator`` joins the reports of ranks, and the connector gets vLLM's objects. Memory, kernels, copies,
rights and sampled tokens are the testbed's. A world acts on this engine as on the testbed's own.

What always holds: each request that vLLM knows has one twin (``ledger``), which agrees with it, and its tokens are
those that the model would have sampled. Where vLLM itself is known to go wrong (``known_faults``), the history
ends; with ``goes_on_after_known_faults`` it goes on, to show the fault.
"""

from copy import deepcopy
from dataclasses import fields
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.core.sched.output import SchedulerOutput as VllmSchedulerOutput
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput
from vllm.v1.request import RequestStatus

from kv_api import KVConnectorHandshakeMetadata, KVTransferConfig
from kv_sim.checkers.protocol import check_joined
from kv_sim.checkers.tickets import ENDS
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.output import SchedulerOutput, Step
from kv_sim.engine.pause import Pause, PauseMode
from kv_sim.engine.place import Place
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engine.scheduler import RejectDrafts
from kv_sim.guard import LogCall, all_or_none
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Referee
from kv_vllm.driver import classes, known_faults
from kv_vllm.driver.crash import crashes
from kv_vllm.driver.drafted_states import DraftedStates
from kv_vllm.driver.fitting import nearest
from kv_vllm.driver.ledger import Ledger, Twin
from kv_vllm.driver.requests import extra_args_of, handed_on, request_of, turn_of
from kv_vllm.driver.setup import Setup
from kv_vllm.driver.step import VllmStep
from kv_vllm.driver.surroundings.device import TensorDevice
from kv_vllm.driver.view import Ended, SchedulerView
from kv_vllm.driver.worker import TELLS_OF_SLEEP
from kv_vllm.vllm_scheduler import PAUSE_STATES, pause, resume
from kv_vllm.vllm_world import hashes_per_block


class VllmEngine(Engine):
    """One vLLM engine with one connector."""

    goes_on_after_known_faults = False
    has_unequal_blocks = True
    own_modules = (*Engine.own_modules, "kv_vllm.driver", "vllm.v1.core")

    scheduler: SchedulerView

    @classmethod
    def fit(cls, config: WorldConfig) -> WorldConfig:
        """The world nearest to ``config`` that vLLM's schedulers can run."""
        return nearest(config)

    @classmethod
    def subject_named(cls, name: str) -> Subject:
        """The subject of a name: one that the testbed's own engine has, too, or one of vLLM's connectors."""
        return classes.subject_named(name)

    @classmethod
    def connector_class(cls, transfer: KVTransferConfig) -> type[Any]:
        """The connector's class: one of ours or of vLLM's."""
        return classes.class_of(transfer.kv_connector, transfer.kv_connector_module_path)

    @classmethod
    def supports_groups(cls, transfer: KVTransferConfig) -> bool:
        """Whether the connector's class supports several groups, or its children's classes do."""
        return classes.supports_groups(transfer)

    def __init__(
        self,
        config: WorldConfig,
        subject: Subject,
        referee: Referee,
        log: LogCall,
        place: Place | None = None,
    ) -> None:
        super().__init__(config, subject, referee, log, place)
        self.ledger = Ledger(config, referee, self.shadow, self.served, self.mirror)
        self._devices = devices = [TensorDevice(rank, config, self.shadow) for rank in range(config.world_size)]
        self.devices = [*devices]
        setup = Setup(config, subject, referee, self._logged(log), self.ledger, self.place)
        self.connectors = setup.connectors
        with all_or_none(self.connectors):
            self.workers = [setup.worker(device) for device in devices]
            self.vllm, self.guard = setup.scheduler(self.served)
            self.aggregator = KVOutputAggregator.from_connector(self.vllm.connector, config.world_size)
            self._tell_handshakes()
        self._bootstrap = f"http://localhost:{setup.environment['VLLM_MOONCAKE_BOOTSTRAP_PORT']}"
        self.scheduler = SchedulerView(self.vllm, self.ledger, self.guard)
        self.outcome = Ended(self.ledger)
        self._drafted_states = DraftedStates(config)

    @property
    def hashes_per_block(self) -> int:
        """Hashes that a request of vLLM's has for each block, of the largest size that there is."""
        return hashes_per_block(self.config)

    @property
    def leaves_tickets(self) -> bool:
        """As in the testbed's engine; but vLLM's MooncakeConnector leaves no tickets, and has no flag for that."""
        kinds = [kind.__name__ for kind in type(self.connectors[-1]).__mro__]
        return "MooncakeConnector" not in kinds and super().leaves_tickets

    def address(self) -> dict[str, Any]:
        """The engine's address, with that of Mooncake's bootstrap server."""
        return {**super().address(), "remote_bootstrap_addr": self._bootstrap}

    def _handshakes(self) -> dict[tuple[int, int], KVConnectorHandshakeMetadata]:
        """By the places that vLLM's configuration gives the ranks of a world: all are tensor parallel there."""
        tp_size = self.config.tp_size
        return {(0, pp * tp_size + tp): told for (pp, tp), told in super()._handshakes().items()}

    def let_others_work(self) -> None:
        """Give the threads of vLLM's connectors some time to copy."""
        self._devices[0].let_others_work()

    def _logged(self, log: LogCall) -> LogCall:
        """``log``, but with the testbed's requests and steps instead of vLLM's, which watchers don't know."""

        def call(side: str, name: str, args: tuple[Any, ...], answer: Any) -> None:
            if name in ENDS:  # whether it has to be held depends on how it ended
                self.ledger.twins[args[0].request_id].follow(args[0])
            log(side, name, tuple(map(self._known, args)), answer)

        return call

    def _known(self, value: Any) -> Any:
        if isinstance(value, VllmSchedulerOutput):
            return SchedulerOutput(**{part.name: getattr(value, part.name) for part in fields(SchedulerOutput)})
        twin = self.ledger.twins.get(getattr(value, "request_id", ""))
        if twin is None:
            return value
        twin.kv_transfer_params = value.kv_transfer_params
        return twin

    # -- requests ------------------------------------------------------------------------------

    def add(self, spec: RequestSpec) -> SimRequest:
        """A request arrives."""
        config = self.config
        twin = Twin(spec, config.block_size, config.max_model_len, self.hashes_per_block)
        request = request_of(twin)
        words = handed_on(deepcopy(self.params_for(twin)))  # they come from another process
        request.kv_transfer_params = twin.kv_transfer_params = words
        request.sampling_params.extra_args = extra_args_of(words)
        self.ledger.arrived(twin)
        with crashes(self.referee, "add_request"):
            self.vllm.add_request(request)
        return twin

    def take_turn(self, request_id: str) -> None:
        """The next turn of a session arrives; or the end of it, if it had all its turns."""
        twin = self.ledger.twins[request_id]
        twin.turns_arrived += 1
        with crashes(self.referee, "add_request"):
            self.vllm.add_request(turn_of(twin))
        self.ledger.follow(self.vllm.requests)

    def abort(self, request_id: str) -> None:
        """A request's client went away."""
        with crashes(self.referee, "finish_requests"):
            self.vllm.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self.ledger.follow(self.vllm.requests)

    def reset(self, *, running: bool, connector: bool) -> bool | None:
        """``reset_prefix_cache``. None: it raised, as it does when a load holds blocks."""
        try:
            with crashes(self.referee, "reset_prefix_cache", but=RuntimeError):
                return bool(self.vllm.reset_prefix_cache(running, connector))
        except RuntimeError:
            return None
        finally:
            self.ledger.follow(self.vllm.requests)

    @property
    def pause_state(self) -> Pause:
        """Which requests a pause keeps from being scheduled now."""
        return next(pause for pause, state in PAUSE_STATES.items() if state == self.vllm.pause_state)

    def pause(self, mode: PauseMode) -> None:
        """Schedule no new requests, or none at all, until ``resume``."""
        with crashes(self.referee, "finish_requests"):
            pause(self.vllm, mode)
        self.ledger.follow(self.vllm.requests)

    def _resume(self) -> None:
        resume(self.vllm)

    def _tell_handshakes(self) -> None:
        if self.is_asleep and not TELLS_OF_SLEEP:
            return
        self.guard.set_xfer_handshake_metadata_pp_aware(self._handshakes())

    @property
    def has_work(self) -> bool:
        """Whether the engine's loop goes on."""
        return bool(self.vllm.has_requests())

    @property
    def num_steps(self) -> int:
        """How many steps were scheduled."""
        return self.ledger.step

    # -- a step's way --------------------------------------------------------------------------

    def schedule(self, reject_drafts: RejectDrafts) -> Step:
        """Schedule one more step."""
        self._part_with_steps()
        ledger = self.ledger
        ledger.begin_step()
        with crashes(self.referee, "schedule"):
            output = self.vllm.schedule()
        ledger.follow(self.vllm.requests)
        if not self.goes_on_after_known_faults:
            known_faults.end_where_loads_left_no_room(self.vllm, output)
        held = [block.block_id for block in self.vllm.kv_cache_manager.block_pool.blocks if block.ref_cnt]
        copied = {copy.dst_block_id for copy in getattr(output, "kv_cache_block_copies", None) or ()}
        poison, load_targets = ledger.poison(block for block in held if block not in copied)
        step = VllmStep(
            number=ledger.step,
            output=output,
            attentions=[],
            poison=poison,
            load_targets=load_targets,
            sync_targets=ledger.sync_targets,
            rejected={},
            sampling=self._sampling(output),
            packed=self.crossing.pack(output, "scheduler side, build_connector_meta"),
        )
        step.handed = ledger.handed
        for name, count in output.num_scheduled_tokens.items():
            self._attend(step, ledger.twins[name], count, reject_drafts)
            self.served.compute(ledger.twins[name])
        self._drafted_states.place(step)
        self._allow_late_states(step)
        self.steps.append(step)
        return step

    def _said_in(self, step: Step) -> Any:
        """The whole scheduler output, not only the connector's part."""
        return step.output

    def _sampling(self, output: Any) -> set[str]:
        """The requests whose last known token is computed in the step."""
        requests = self.vllm.requests
        return {name for name in output.num_scheduled_tokens if not requests[name].is_prefill_chunk}

    def _attend(self, step: VllmStep, twin: Twin, count: int, reject_drafts: RejectDrafts) -> None:
        tables = self.vllm.kv_cache_manager.get_block_ids(twin.request_id)
        step.attend(twin, count, tables, self.steps, reject_drafts, self.config)

    def process(self) -> None:
        """Take in the output of the oldest step."""
        step = self.processable()
        assert isinstance(step, VllmStep), "no step has come back"
        self.steps.popleft()
        reports: list[Any] = self._take_reports(step)
        self._judge_content(step)
        joined = self._joined(step, reports)
        report = joined.kv_connector_output or KVConnectorOutput()
        if not self.goes_on_after_known_faults:
            known_faults.end_at_shared_failure(self.vllm, report)
            known_faults.end_at_broken_session(self.config, self.vllm, self.ledger, step.tokens)
        with crashes(self.referee, "update_from_output"):
            self.vllm.update_from_output(step.output, joined)
        self._take_drafts(list(step.output.num_scheduled_tokens))
        self.shadow.end_step(step.number)
        self.ledger.follow(self.vllm.requests)
        self._check_tokens()
        if not self.goes_on_after_known_faults:
            known_faults.end_at_recomputed_load(self.config, report)

    def _joined(self, step: VllmStep, reports: list[Any]) -> Any:
        """The output of a step, joined as vLLM's executors do.

        In one process nothing is joined, and a step that computes and reports nothing has no report.
        """
        if self.config.world_size == 1:
            (report,) = reports
            return step.output_with(
                None if report.is_empty() and not step.output.total_num_scheduled_tokens else report
            )
        with crashes(self.referee, "what the workers report, joined"):
            joined: Any = self.aggregator.aggregate([step.output_with(report) for report in reports], 0)
        check_joined(reports, joined.kv_connector_output, self.referee)
        return joined

    def _take_drafts(self, names: list[str]) -> None:
        """Get the drafts of a step from the workers, as vLLM's engine core does without async scheduling."""
        if self.config.spec_tokens and not self.config.async_scheduling:
            drafts = [[0] * self.config.spec_tokens for _ in names]
            self.vllm.update_draft_token_ids(DraftTokenIds(names, drafts))

    def _check_tokens(self) -> None:
        """Check that each request has the tokens that the model sampled."""
        for name, request in self.vllm.requests.items():
            twin = self.ledger.twins[name]
            tokens = list(request.all_token_ids)
            if tokens != twin.future[: len(tokens)]:
                first = next(i for i, (a, b) in enumerate(zip(tokens, twin.future, strict=False)) if a != b)
                self.referee.fail(
                    Invariant.CONTENT,
                    f"request {name} token {first}: it holds {tokens[first]}, the model gave {twin.future[first]}",
                )

    def take_events(self) -> None:
        """Apply the connector's events to a router's view of its cache."""
        self.ledger.announced(self.guard.take_events())

    def check(self) -> None:
        """Recount: every reference to a block is in a table or waits to be freed."""
        self.scheduler.check()
        for device in self.devices:
            device.copies.check()
