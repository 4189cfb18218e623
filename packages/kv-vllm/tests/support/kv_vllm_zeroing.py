"""``P2PConnector`` for tests: what it pulls of one KV cache group comes as zeroes."""

from kv_p2p.pulling.pages import WorkerPages
from kv_p2p.pulling.tcp.wire import TcpWire
from kv_vllm import P2PConnector


class _Zeroes:
    """Pages of a group into which zeroes are written."""

    def __init__(self, inner):
        self.inner = inner

    def scatter(self, blocks, parts):
        self.inner.scatter(blocks, [memoryview(bytes(len(part))) for part in parts])

    def __getattr__(self, name):
        return getattr(self.inner, name)


class _Zeroing(P2PConnector):
    group: int

    def make_wire(self, kv_caches, options, vllm_config, kv_cache_config):
        pages = WorkerPages.of(kv_caches, kv_cache_config)
        pages.by_group = tuple(_Zeroes(one) if n == self.group else one for n, one in enumerate(pages.by_group))
        return TcpWire(pages, vllm_config.parallel_config.rank, options, serves=False)


class ZeroesFirstGroup(_Zeroing):
    """Of the first one."""

    group = 0


class ZeroesSecondGroup(_Zeroing):
    """Of the second one."""

    group = 1
