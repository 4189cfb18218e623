"""Connectors with a mistake each, for tests of the command line and of what it prints."""

import multiprocessing
import os
from collections import Counter
from types import SimpleNamespace
from typing import Any

from kv_api import ConfigError, KVCaches, Request, TwoSidedConnector
from kv_sim.examples.later import LaterScheduler, LaterWorker
from kv_sim.examples.memory import MemoryConnector, MemoryScheduler


class HastyScheduler(LaterScheduler):
    """Doesn't wait for its stores: the blocks are given away while they are being copied."""

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        _, params = super().request_finished(request, block_ids)
        return False, params


class Hasty(TwoSidedConnector):
    scheduler_class = HastyScheduler
    worker_class = LaterWorker


class LazyScheduler(MemoryScheduler):
    """Keeps nothing, so it finds nothing."""

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False


class Lazy(MemoryConnector):
    scheduler_class = LazyScheduler


class GrowingScheduler(LaterScheduler):
    """Has more to do the longer a request is, and the more there were."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen = 0
        self.known: dict[str, Request] = {}

    def on_new_request(self, request: Request) -> None:
        super().on_new_request(request)
        self.seen += 1
        self.known[request.request_id] = request
        for _ in range(100 * self.seen):
            pass

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        for name in scheduler_output.num_scheduled_tokens:
            for _ in range(4 * self.known[name].num_computed_tokens):
                pass
        return super().build_connector_meta(scheduler_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        del self.known[request.request_id]
        return super().request_finished(request, block_ids)


class Growing(TwoSidedConnector):
    scheduler_class = GrowingScheduler
    worker_class = LaterWorker


class AsksAllScheduler(MemoryScheduler):
    """Where a request may lose blocks of one group, it asks all that it knows, in each step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.may_lose = len(args[1].kv_cache_groups) > 1
        self.known: set[str] = set()

    def on_new_request(self, request: Request) -> None:
        super().on_new_request(request)
        self.known.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        if self.may_lose:
            for _ in range(20 * len(self.known)):
                pass
        return super().build_connector_meta(scheduler_output)

    def request_finished_all_groups(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        self.known.discard(request.request_id)
        return super().request_finished_all_groups(request, block_ids)


class AsksAll(MemoryConnector):
    scheduler_class = AsksAllScheduler


class LooksAgainScheduler(MemoryScheduler):
    """Has a prompt that it knows wait for a while, and goes through all of it whenever it is asked."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.times: Counter[str] = Counter()
        self.known: set[bytes] = set()

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        self.times[request.request_id] += 1
        if self.times[request.request_id] > 5 or request.block_hashes[0] not in self.known:
            return super().get_num_new_matched_tokens(request, num_computed_tokens)
        for _ in range(request.num_tokens):
            pass
        return None, False

    def request_finished_all_groups(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        del self.times[request.request_id]
        self.known.add(request.block_hashes[0])
        return super().request_finished_all_groups(request, block_ids)


class LooksAgain(MemoryConnector):
    scheduler_class = LooksAgainScheduler


class StillbornWorker(LaterWorker):
    """Fails while it is set up."""

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        raise RuntimeError("no caches, please")


class Stillborn(TwoSidedConnector):
    scheduler_class = LaterScheduler
    worker_class = StillbornWorker


class Homeless(TwoSidedConnector):
    """Can't even be created."""

    scheduler_class = LaterScheduler
    worker_class = LaterWorker

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._kv_transfer_config.kv_connector_extra_config["home"]


class Strict(TwoSidedConnector):
    """Takes only one setting, and refuses all others."""

    scheduler_class = LaterScheduler
    worker_class = LaterWorker

    def __init__(self, *args: Any) -> None:
        settings = args[0].kv_transfer_config.kv_connector_extra_config
        for name in settings:
            if name != "home":
                raise ValueError(f"unknown setting: {name}")
        settings["host_slots"] = 8  # which its sides need
        super().__init__(*args)
        del settings["host_slots"]


class Fussy(TwoSidedConnector):
    """Looks its medium up by itself, and fails if there is none of that name."""

    scheduler_class = LaterScheduler
    worker_class = LaterWorker

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        {"There": object}[self._kv_transfer_config.kv_connector_extra_config["spec_name"]]


class Choosy(TwoSidedConnector):
    """Can be created in some worlds."""

    scheduler_class = LaterScheduler
    worker_class = LaterWorker

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if args[0].parallel_config.rank:
            raise RuntimeError("one rank is enough")


class Alone(TwoSidedConnector):
    """Refuses several ranks, unless their GPUs have as many blocks as it is told."""

    scheduler_class = LaterScheduler
    worker_class = LaterWorker

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        fewest = self._kv_transfer_config.kv_connector_extra_config.get("fewest_blocks", 1000)
        if args[0].parallel_config.world_size > 1 and self._kv_cache_config.num_blocks < fewest:
            raise ConfigError(f"fewer than {fewest} blocks")


class HoardingScheduler(LaterScheduler):
    """Writes down how long each request was. No id is in it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lengths: list[int] = []

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self.lengths.append(request.num_tokens)
        return super().request_finished(request, block_ids)


class HoardingWorker(LaterWorker):
    """Remembers each step by a node that knows the one before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.newest: Any = None

    def clear_connector_metadata(self) -> None:
        self.newest = SimpleNamespace(before=self.newest)
        super().clear_connector_metadata()


class Hoarding(TwoSidedConnector):
    scheduler_class = HoardingScheduler
    worker_class = HoardingWorker


class ArchivingScheduler(MemoryScheduler):
    """Writes down which chunk left each slot. If a chunk never leaves, there is nothing to write."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.evicted: set[bytes] = set()

    def _evict_oldest(self) -> None:
        self.evicted.add(next(iter(self._slot_of)))
        super()._evict_oldest()


class Archiving(MemoryConnector):
    scheduler_class = ArchivingScheduler


class LeavingScheduler(LaterScheduler):
    """Ends its process, as a library that crashes does."""

    def on_new_request(self, request: Request) -> None:
        os._exit(5)


class Leaving(TwoSidedConnector):
    scheduler_class = LeavingScheduler
    worker_class = LaterWorker


class BegettingScheduler(LaterScheduler):
    """Has a process of its own, as one has that copies beside the engine."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        process = multiprocessing.get_context("spawn").Process(target=int)
        process.start()
        process.join()


class Begetting(TwoSidedConnector):
    scheduler_class = BegettingScheduler
    worker_class = LaterWorker


class EndlessScheduler(LaterScheduler):
    """Waits for what never comes."""

    def on_new_request(self, request: Request) -> None:
        while True:
            pass


class Endless(TwoSidedConnector):
    scheduler_class = EndlessScheduler
    worker_class = LaterWorker
