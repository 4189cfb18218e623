"""A worker on CPUs that loses what one on a GPU loses when it sleeps: KV caches, and at level 2 weights, too."""

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.v1.worker.cpu_worker import CPUWorker

ASLEEP, AWAKE = 7.0, -3.0
"""What is in the KV caches. Any numbers will do, if they aren't what was there."""


def _tell(what):
    """Tell the connector, as vLLM's worker on a GPU does since 0.33."""
    tell = getattr(get_kv_transfer_group(), what, None) if has_kv_transfer_group() else None
    if tell is not None:
        tell()


class Sleeper(CPUWorker):
    """vLLM's own ignores a sleep."""

    kept = ()

    def sleep(self, level=1):
        _tell("unregister_kv_caches")
        self._fill(ASLEEP)
        if level == 2:
            weights = [*self.model_runner.model.parameters()]
            self.kept = [(weight, weight.detach().clone()) for weight in weights]
            for weight in weights:
                weight.data.fill_(0)

    def wake_up(self, tags=None):
        """The weights come back, too, which somebody has to load again who runs a server on a GPU."""
        for weight, kept in self.kept:
            weight.data.copy_(kept)
        self.kept = ()
        self._fill(AWAKE)
        _tell("restore_kv_caches")

    def _fill(self, number):
        for cache in self.model_runner.kv_caches:
            cache.fill_(number)
