"""Pulls over TCP by workers whose layers are of two KV cache groups, which lie in the same memory."""

from types import SimpleNamespace

import numpy as np
import pytest
from kv_p2p_background import Background
from kv_p2p_engine import kv_cache_config, spec
from kv_p2p_tcp import HOST, PATIENCE, RawServer, answer

from kv_api import ConfigError
from kv_p2p.frames import recv_frame, send_frame
from kv_p2p.pulling.metadata import Hold, Part, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.pages import WorkerPages
from kv_p2p.pulling.tcp.server import VERSION, frame_memory
from kv_p2p.pulling.tcp.wire import TcpWire
from kv_p2p.pulling.ticket import Address

BLOCKS = 12
SPECS = (spec(4), spec(8, window=9))
NAMES = [["all0", "all1"], ["near0"]]


class Worker:
    """Its three layers; `near0` has more bytes than `all0`, in whose memory it lies."""

    def __init__(self, seed, names=NAMES):
        random = np.random.default_rng(seed)
        self.memory = random.integers(0, 256, (BLOCKS, 16), dtype=np.uint8)
        self.other = random.integers(0, 256, (BLOCKS, 6), dtype=np.uint8)
        caches = {"all0": self.memory[:, :10], "all1": self.other, "near0": self.memory}
        self.caches = {name: caches[name] for group in names for name in group}
        pages = WorkerPages.of(self.caches, kv_cache_config(BLOCKS, SPECS, names))
        self.wire = TcpWire(pages, 0, Options(HOST, 0, PATIENCE, PATIENCE))
        self.pages, self.layout = pages, pages.layout

    @property
    def source(self):
        return Source(Address(HOST, self.wire.server.port), "h", "d")

    def result(self):
        """Of the one pull."""
        while True:
            self.wire.wait(PATIENCE)
            ended = self.wire.poll()
            if ended.pulled or ended.failed:
                return ended


@pytest.fixture
def made():
    """Makes workers, and closes them."""
    workers = []

    def make(seed, **options):
        workers.append(Worker(seed, **options))
        return workers[-1]

    yield make
    for one in workers:
        Background(one.wire.close).result()


def pull(source, *parts):
    return Pull("r", source, tuple(Part(first, blocks) for first, blocks in parts))


def test_a_groups_blocks_are_those_of_its_layers(made, monkeypatch):
    monkeypatch.setattr("kv_p2p.pulling.tcp.server.FRAME_BYTES", 2 * 16)
    there, here = made(1), made(2)
    there.wire.serve(Hold("a", "h", "d", ((3, 4, 5, 9, 8), (0, 6, 7))))
    memory, other = here.memory.copy(), here.other.copy()
    for source, target in ((4, 1), (5, 2), (9, 3)):
        memory[target, :10] = there.memory[source, :10]
        other[target] = there.other[source]
    for source, target in ((6, 10), (7, 11)):
        memory[target] = there.memory[source]
    here.wire.pull(pull(there.source, (1, (1, 2, 3)), (1, (10, 11))))
    ended = here.result()
    assert (ended.pulled, ended.failed) == (["r"], [])
    assert ended.pulled_bytes == 3 * 16 + 2 * 16
    assert here.memory.tolist() == memory.tolist()
    assert here.other.tolist() == other.tolist()


def test_of_one_group_there_may_be_nothing_to_pull(made):
    there, here = made(1), made(2)
    there.wire.serve(Hold("a", "h", "d", ((3, 4), (0, 6))))
    here.wire.pull(pull(there.source, (1, (1,)), (2, ())))
    assert here.result().pulled == ["r"]
    assert here.other[1].tolist() == there.other[4].tolist()
    there.wire.wait(PATIENCE)
    assert there.wire.poll().served == ["h"]


@pytest.mark.parametrize(("wanted", "more"), [((3, 4, 5), (6,)), ((3,), (6, 7, 8))])
def test_of_one_group_there_may_be_more_to_pull_than_of_the_other(made, wanted, more):
    there, here = made(1), made(2)
    there.wire.serve(Hold("a", "h", "d", (wanted, more)))
    here.wire.pull(pull(there.source, (0, wanted), (0, more)))
    ended = here.result()
    assert (ended.pulled, ended.failed) == (["r"], [])
    assert here.memory[[*more]].tolist() == there.memory[[*more]].tolist()
    assert here.other[[*wanted]].tolist() == there.other[[*wanted]].tolist()


@pytest.mark.parametrize(("counts", "size"), [((1, 3), 48), ((4, 1), 64), ((0, 2), 32), ((5, 5), 64)])
def test_there_is_memory_for_the_largest_frame_and_not_for_all(made, monkeypatch, counts, size):
    """A block has 16 bytes in either group."""
    monkeypatch.setattr("kv_p2p.pulling.tcp.server.FRAME_BYTES", 4 * 16)
    assert len(frame_memory(made(1).pages, counts)) == size


def test_what_slid_out_of_a_window_is_refused(made):
    there, here = made(1), made(2)
    there.wire.serve(Hold("a", "h", "d", ((3, 4), (0, 6))))
    here.wire.pull(pull(there.source, (0, (1, 2)), (0, (10, 11))))
    said = "hold 'h' has no block of group 1 at place 0: it slid out of a window"
    assert here.result().failed == [("r", said)]


@pytest.mark.parametrize("names", [[[], ["near0"]], [["all1"], []], [[], []]])
def test_a_stage_that_lacks_layers_of_a_group_pulls_those_that_it_has(made, names):
    """From the same stage of another pipeline that is cut in the same way."""
    there, here = made(1, names=names), made(2, names=names)
    there.wire.serve(Hold("a", "h", "d", ((3, 4, 5), (0, 6, 7))))
    memory, other = here.memory.copy(), here.other.copy()
    if "near0" in names[1]:
        memory[[10, 11]] = there.memory[[6, 7]]
    if "all1" in names[0]:
        other[[1, 2]] = there.other[[4, 5]]
    here.wire.pull(pull(there.source, (1, (1, 2)), (1, (10, 11))))
    ended = here.result()
    assert (ended.pulled, ended.failed) == (["r"], [])
    assert ended.pulled_bytes == 2 * (16 * ("near0" in names[1]) + 6 * ("all1" in names[0]))
    assert here.memory.tolist() == memory.tolist()
    assert here.other.tolist() == other.tolist()


@pytest.mark.parametrize(
    "names", [[["all0"], ["near0", "all1"]], NAMES[::-1], [[], ["near0"]], [["all0"], ["near0"]]]
)
def test_the_same_layers_in_other_groups_are_another_layout(made, names):
    there, here = made(1), made(2, names=names)
    there.wire.serve(Hold("a", "h", "d", ((3,), (6,))))
    here.wire.pull(pull(there.source, (0, (1,)), (0, (10,))))
    said = "the KV caches of the two workers differ in the groups, names, types or sizes of their layers"
    assert here.result().failed == [("r", said)]


@pytest.mark.parametrize("group", [1, None, "0", -1])
def test_a_frame_of_another_group_than_the_next_is_refused(made, group):
    here, raw = made(2), RawServer()
    before = here.memory.tolist()
    here.wire.pull(pull(raw.source, (5, (1,)), (2, (10,))))
    connection, asked = raw.asked()
    assert (asked["version"], asked["places"], asked["layout"]) == (2, [[5, 1], [2, 1]], here.layout)
    send_frame(connection, {"status": "blocks", "group": group, "count": 1}, [bytes(10), bytes(6)])
    what = f"a frame says that it has 1 blocks of group {group!r}; to come are 1 of group 0"
    assert here.result().failed == [("r", f"FrameError: {what}")]
    assert here.memory.tolist() == before
    raw.close()


def test_groups_come_one_after_the_other(made):
    here, raw = made(2), RawServer()
    here.wire.pull(pull(raw.source, (0, (1,)), (0, (10,))))
    connection, _ = raw.asked()
    send_frame(connection, {"status": "blocks", "group": 0, "count": 1}, [bytes(10), bytes(6)])
    send_frame(connection, {"status": "blocks", "group": 1, "count": 1}, [bytes(16)])
    assert answer(connection) == {"op": "done"}
    assert recv_frame(connection, 0) is None
    assert here.result().pulled == ["r"]
    assert not here.memory[10].any()
    raw.close()


def test_a_layout_is_the_same_in_every_release_that_speaks_a_version_of_the_protocol(made):
    assert (VERSION, made(1).layout) == (2, "d546e9489c48c97577a91794ed81630b")


class TestLayersOfGroups:
    def caches(self, **more):
        return {**{name: np.zeros((BLOCKS, 4)) for name in ("b", "a")}, **more}

    def refused(self, caches, names):
        with pytest.raises(ConfigError) as raised:
            WorkerPages.of(caches, kv_cache_config(BLOCKS, SPECS, names))
        return str(raised.value)

    def test_one_that_is_not_there(self):
        said = "register_kv_caches: there is no tensor of layer 'c'; known: a, b"
        assert self.refused(self.caches(), [["a"], ["c"]]) == said
        said = "register_kv_caches: there is no tensor of layer 'a'; known: none"
        assert self.refused({}, [["a"], ["c"]]) == said

    def test_one_of_no_group(self):
        caches = self.caches(**{name: np.zeros((BLOCKS, 4)) for name in "hgfedc"})
        said = "register_kv_caches: layer 'h' is in none of the 2 groups"
        assert self.refused(caches, [["a"], ["b"]]) == said

    def test_one_that_reads_what_another_keeps_needs_none(self):
        caches = self.caches()
        caches["c"], caches["d"] = caches["b"], caches["a"]
        groups = kv_cache_config(BLOCKS, SPECS, [["a"], ["b"]])
        assert [len(pages._layers) for pages in WorkerPages.of(caches, groups).by_group] == [1, 1]

    def test_one_group_has_all_whatever_they_are_called(self):
        groups = SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[SimpleNamespace(layer_names=["else"])])
        (pages,) = WorkerPages.of(self.caches(), groups).by_group
        assert pages.bytes_per_block == 64
