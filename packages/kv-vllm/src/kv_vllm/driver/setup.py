"""``Setup``: makes the parts of a ``VllmEngine``, in vLLM's order: the workers first, then the scheduler.

A connector of vLLM's base class is made by vLLM's factory, and gets tensors for the layers. Any other connector is
made by our factory, and gets the testbed's ``KVCache``. Both get vLLM's configuration. Each world is a deployment
of its own: its model has a unique name, for connectors whose store outlives them, and ``{folder}`` in a text of
the extra config becomes a folder of the world's own, for connectors with files. Engines that share a store have
the same folder, and a stranger among them has a model of another name.
"""

import shutil
import tempfile
import weakref
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory as VllmFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole as VllmRole
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA as VllmSupportsHMA

from kv_api import KVConnectorRole, SupportsHMA
from kv_sim.checkers.served import Served
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.own_folder import filled
from kv_sim.engine.place import Place
from kv_sim.guard import Guard, LogCall, NotCreated, create
from kv_sim.subject import Subject
from kv_sim.violation import Referee
from kv_vllm.driver.classes import class_of, is_vllms
from kv_vllm.driver.connector import BEHIND_KEY
from kv_vllm.driver.crash import crashes
from kv_vllm.driver.ledger import Ledger
from kv_vllm.driver.surroundings.device import TensorDevice
from kv_vllm.driver.surroundings.layers import attention_layers
from kv_vllm.driver.surroundings.ports import free_ports, process_with
from kv_vllm.driver.surroundings.ranks import at_work
from kv_vllm.driver.surroundings.streams import stand_in_for_streams
from kv_vllm.driver.surroundings.tensors import device_tensor, state_tensor
from kv_vllm.driver.worker import VllmWorker, VllmWorkerV2
from kv_vllm.vllm_scheduler import make_scheduler
from kv_vllm.vllm_world import WorldVllmConfig, kv_cache_config, layer_name, sharing_ranks_of, vllm_config

PREFIX = "kv_vllm-"
"""The prefix of the names of worlds' folders."""
SOCKETS = "VLLM_RPC_BASE_PATH"
"""The folder for sockets, which connectors name after their engine: in worlds those are named alike."""

RUNNER = "runner_v1"
"""Of the class of a connector whose package changes vLLM's runner V1: a ``VllmWorker`` that is changed alike."""


class Setup:
    """The parts of one engine."""

    def __init__(
        self,
        world: WorldConfig,
        subject: Subject,
        referee: Referee,
        log: LogCall,
        ledger: Ledger,
        place: Place,
    ) -> None:
        self.connectors: list[Any] = []
        self._world = world
        self._referee = referee
        self._log = log
        self._ledger = ledger
        self._place = place
        self.environment = free_ports()
        self._transfer = self._transfer_values(subject)
        self._is_vllms = is_vllms(subject.kv_connector, subject.module_path)
        self._class = class_of(subject.kv_connector, subject.module_path)
        self._sharing_ranks = sharing_ranks_of(world) if getattr(self._class, "shares_tokens", False) else 1
        if self._is_vllms:
            self.environment[SOCKETS] = self._new_folder()

    def _transfer_values(self, subject: Subject) -> dict[str, Any]:
        config = subject.transfer_config(self._world, self._place.engine_id)
        return {
            "kv_connector": config.kv_connector,
            "kv_role": config.kv_role,
            "engine_id": config.engine_id,
            "kv_load_failure_policy": config.kv_load_failure_policy,
            "kv_connector_module_path": config.kv_connector_module_path,
            "kv_connector_extra_config": filled(config.kv_connector_extra_config, self._place.folder, PREFIX),
        }

    def _new_folder(self) -> str:
        """Make a folder that is removed after the engine's end."""
        folder = tempfile.mkdtemp(prefix=PREFIX)
        weakref.finalize(self._ledger, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _config(self, rank: int) -> WorldVllmConfig:
        config = vllm_config(self._world, KVTransferConfig(**self._transfer), rank, self._sharing_ranks)
        config.model_config.model = config.model_config.served_model_name = self._place.model
        config.compilation_config.static_forward_context = attention_layers(self._world, config)
        return config

    def _driven(self, guard: Guard, told: Any, connector: str, rank: int = 0) -> WorldVllmConfig:
        """The configuration of the connector that vLLM gets."""
        values = {
            **self._transfer,
            "kv_connector": connector,
            "kv_connector_module_path": "kv_vllm.driver.connector",
            "kv_connector_extra_config": {BEHIND_KEY: (guard, told)},
        }
        return vllm_config(self._world, KVTransferConfig(**values), rank, self._sharing_ranks)

    def _create(self, role: str, rank: int = 0) -> Any:
        config, cache_config = self._config(rank), kv_cache_config(self._world, self._sharing_ranks)
        if not self._is_vllms:
            made: Any = create(config, KVConnectorRole[role], cache_config, self._referee)
        else:
            with process_with(self.environment), crashes(self._referee, f"{role.lower()} side", raises=NotCreated):
                made = VllmFactory.create_connector(config, VllmRole[role], cache_config)
        self.connectors.append(made)
        return made

    def worker(self, device: TensorDevice) -> VllmWorker:
        """The worker of a rank."""
        if self._is_vllms:
            device.is_read_by_address = True
            stand_in_for_streams()
        with at_work(device.rank, self._world.world_size):
            connector = self._create("WORKER", device.rank)
        guard = Guard(connector, f"worker {device.rank}", self._referee, self._log)
        caches = {
            layer_name(number, layer): self._cache(device, group, layer)
            for number, group in enumerate(self._world.groups)
            for layer in range(self._world.layers)
        }
        kind = VllmWorkerV2 if self._world.runner == 2 else getattr(self._class, RUNNER, VllmWorker)
        with process_with(self.environment):
            return kind(
                self._world, device, lambda told: self._driven(guard, told, "DrivenConnector", device.rank), caches
            )

    def _cache(self, device: TensorDevice, group: GroupConfig, layer: int) -> Any:
        if not self._is_vllms:
            return device.kv_cache(layer)
        return state_tensor(device, layer) if group == STATE else device_tensor(device, layer)

    def scheduler(self, served: Served) -> tuple[Any, Guard]:
        """The scheduler of vLLM, and the guard of its connector."""
        connector = self._create("SCHEDULER")
        guard = Guard(connector, "scheduler", self._referee, self._log, served)
        knows_groups = isinstance(connector, (SupportsHMA, VllmSupportsHMA))
        name = "DrivenHMAConnector" if knows_groups else "DrivenConnector"
        with crashes(self._referee, "the scheduler's constructor"):
            scheduler = make_scheduler(self._world, self._driven(guard, self._ledger, name), log_stats=True)
        self._watch(scheduler)
        return scheduler, guard

    def _watch(self, scheduler: Any) -> None:
        """Notice new blocks, and check reports before vLLM acts on them."""
        pool, ledger = scheduler.kv_cache_manager.block_pool, self._ledger
        take, update = pool.get_new_blocks, scheduler._update_from_kv_xfer_finished

        def get_new_blocks(num_blocks: int, *args: Any, **kwargs: Any) -> Any:
            blocks = take(num_blocks, *args, **kwargs)
            ledger.fresh += [block.block_id for block in blocks]
            return blocks

        def reported(output: Any) -> None:
            ledger.judge(output)
            update(output)

        pool.get_new_blocks, scheduler._update_from_kv_xfer_finished = get_new_blocks, reported
