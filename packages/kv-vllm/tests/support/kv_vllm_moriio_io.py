"""What vLLM's MoRIIOConnector needs of AMD's ``mori.io``, over the memory of the testbed's devices.

A transfer moves pages of one layer between two engines: first they are read, then they are written, each as an
errand of the device that has them, which runs when the world says, and fails or gets lost if the connector claims
to bear it. Until then both devices know which blocks are in use. As in mori a transfer's status is asked for, one
of nothing is done at once, and nothing orders transfers among each other, or after what a device computes.
"""

import itertools
import pickle
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace

from kv_vllm_gpu import Card
from kv_vllm_moriio_machine import process

from kv_api import Direction
from kv_sim.memory.copies import CopyQueue
from kv_sim.memory.copy import Copy, State


class BackendType(Enum):
    """How bytes are moved."""

    XGMI = 1
    RDMA = 2


class StatusCode(Enum):
    """What became of a transfer."""

    SUCCESS = 0
    IN_PROGRESS = 2
    ERR_INVALID_ARGS = 11
    ERR_RDMA_OP = 13


class Status:
    """A ``TransferStatus``."""

    def __init__(self, code=StatusCode.IN_PROGRESS):
        self._code = code

    def end(self, code):
        """Once."""
        if self._code is StatusCode.IN_PROGRESS:
            self._code = code

    def Succeeded(self):
        """Whether all of it is there."""
        return self._code is StatusCode.SUCCESS

    def Failed(self):
        """Whether not all of it will ever be."""
        return not self.Succeeded() and not self.InProgress()

    def InProgress(self):
        """Whether it goes on."""
        return self._code is StatusCode.IN_PROGRESS

    def Code(self):
        """A word for it."""
        return self._code

    def Message(self):
        """The same in words."""
        return self._code.name


@dataclass(frozen=True)
class Packed:
    """What tells others of something, in bytes."""

    def pack(self):
        """As bytes."""
        return pickle.dumps(self)

    @staticmethod
    def unpack(packed):
        """Of bytes."""
        return pickle.loads(packed)


@dataclass(frozen=True)
class EngineDesc(Packed):
    """Which engine."""

    key: str


@dataclass(frozen=True)
class MemoryDesc(Packed):
    """Which memory of an engine."""

    engine_key: str
    data: int
    size: int


CARDS = {}
"""Key of an engine -> the device whose memory it has."""


class IOEngine:
    """One worker's."""

    def __init__(self, key, config):
        self._desc = EngineDesc(key)
        self._uids = itertools.count(1)
        self._known = set()

    def create_backend(self, kind, config):
        """There is one."""

    def get_engine_desc(self):
        """For others."""
        return self._desc

    def register_remote_engine(self, desc):
        """Transfers are possible from and to it."""
        self._known.add(desc.key)

    def register_torch_tensor(self, tensor):
        """Memory from and to which transfers are possible."""
        if not tensor.is_contiguous():
            raise RuntimeError("input tensor must be contiguous")
        CARDS[self._desc.key] = process().wire.card
        return MemoryDesc(self._desc.key, tensor.data_ptr(), tensor.numel() * tensor.element_size())

    def allocate_transfer_uid(self):
        """A number for the next transfer."""
        return next(self._uids)

    def create_session(self, local, remote):
        """Between two memories, if the other engine is known."""
        return Session(local, remote) if remote.engine_key in self._known else None


class Session:
    """Moves between a memory of this engine and one of another's."""

    def __init__(self, local, remote):
        self._local, self._remote = local, remote

    def batch_read(self, local_offsets, remote_offsets, sizes, uid):
        """From there to here."""
        return self._move(self._remote, self._local, remote_offsets, local_offsets, sizes)

    def batch_write(self, local_offsets, remote_offsets, sizes, uid):
        """From here to there."""
        return self._move(self._local, self._remote, local_offsets, remote_offsets, sizes)

    def _move(self, source, target, from_offsets, to_offsets, sizes):
        if not len(from_offsets) == len(to_offsets) == len(sizes):
            return Status(StatusCode.ERR_INVALID_ARGS)
        if not sizes:
            return Status(StatusCode.SUCCESS)
        for memory, offsets in ((source, from_offsets), (target, to_offsets)):
            if any(offset + size > memory.size for offset, size in zip(offsets, sizes, strict=True)):
                return Status(StatusCode.ERR_INVALID_ARGS)
        status = Status()
        reads, writes = pages_of(source, from_offsets, sizes), pages_of(target, to_offsets, sizes)
        process().wire.begin(CARDS[source.engine_key], reads, CARDS[target.engine_key], writes, status)
        return status


def pages_of(memory, offsets, sizes):
    """Layer and block of each page of these parts of a memory."""
    card = CARDS[memory.engine_key]
    pages = []
    for offset, size in zip(offsets, sizes, strict=True):
        assert size % card.page_bytes == 0, f"{size} bytes of pages of {card.page_bytes}"
        pages += [card.page_at(memory.data + at) for at in range(offset, offset + size, card.page_bytes)]
    return pages


class Pages(Copy):
    """Pages of layers that are read or written. It is an errand, and uses blocks."""

    pages = ()
    is_moved = False

    @property
    def blocks_left(self):
        """Blocks of which a page is yet to be moved."""
        return [] if self.is_moved else sorted({block for _, block in self.pages})

    def __str__(self):
        return f"transfer {self.copy_id}"


class Queue(CopyQueue):
    """Hears of the ends of one device's transfers."""

    def __init__(self, copies):
        super().__init__(copies)
        self.heard = {}

    def report(self, result):
        """It ended. It may be told twice."""
        if (hears := self.heard.pop(result.copy_id, None)) is not None:
            hears(result.success)


class Transfer:
    """Pages that are read at one device, and then written at another."""

    def __init__(self, source, reads, target, writes, status):
        self._status = status
        self._ends = ((source, reads, Direction.STORE), (target, writes, Direction.LOAD))
        self._bytes = None
        self._read = self._begin(*self._ends[0], self._take, self._was_read)
        self.written = self._begin(*self._ends[1], self._put, self._was_written)
        self.queue = queue_of(target)

    @staticmethod
    def _begin(card, pages, direction, act, hears):
        device, queue = card.device, queue_of(card)
        copy_id = device.copies.begin(queue, direction, (), after_compute=False, stream="", errand=act)
        queue.heard[copy_id] = hears
        copy = device.copies.running[copy_id]
        copy.__class__, copy.pages = Pages, pages
        copy.owners = tuple(dict.fromkeys(device.owner(block) for block in copy.blocks_left))
        copy.settled = device.settled.of(copy.blocks_left)
        return copy

    def _check(self, copy, card):
        """Each page may be moved now."""
        device = card.device
        running = device.copies.running.values()
        others = [o for o in running if not isinstance(o, Pages) or {*o.pages} & {*copy.pages}]
        for block in copy.blocks_left:
            device.must_be_awake(block, str(copy))
            device.shadow.about_to_move(
                device.rank, copy, block, 0, 1, device.queue, others, device.kernels.changes
            )

    def _take(self):
        """Read all pages."""
        card, pages, _ = self._ends[0]
        if self._bytes is None and self._status.InProgress():
            self._check(self._read, card)
            self._bytes = [card.device.memory[block, layer].copy() for layer, block in pages]
            self._read.is_moved = True

    def _put(self):
        """Write them, if they could be read."""
        card, pages, _ = self._ends[1]
        if self._read.state is State.RUNNING:
            self._take()
        if self._bytes is None or not self._status.InProgress():
            self._status.end(StatusCode.ERR_RDMA_OP)
            return
        device, size = card.device, card.device.config.block_size
        self._check(self.written, card)
        for (layer, block), page in zip(pages, self._bytes, strict=True):
            device.memory[block, layer] = page
            device.shadow.wrote_part(device.rank, block, str(self.written), slice(0, size), layer)
        self.written.is_moved = True

    def _was_read(self, success):
        if not success:
            self._status.end(StatusCode.ERR_RDMA_OP)

    def _was_written(self, success):
        self._status.end(StatusCode.SUCCESS if success else StatusCode.ERR_RDMA_OP)
        self._read.is_moved = True

    @property
    def is_under_way(self):
        """Whether it may end yet."""
        return self._status.InProgress() and not self.written.is_over


def queue_of(card):
    """Where the ends of a device's transfers are heard of."""
    if not hasattr(card, "transfers"):
        card.transfers = Queue(card.device.copies)
    return card.transfers


class Wire:
    """The transfers that one worker has begun."""

    def __init__(self, tensor):
        self.card = Card(tensor)
        self._begun = []

    def begin(self, *said):
        """One more."""
        self._begun.append(Transfer(*said))

    def let_some_end(self):
        """Whoever waits for one waits no longer than it takes. Whether one ended."""
        self._begun = [one for one in self._begun if one.is_under_way]
        for one in self._begun:
            one.queue.wait([one.written.copy_id])
        return bool(self._begun)


MORI_IO = SimpleNamespace(
    BackendType=BackendType,
    EngineDesc=EngineDesc,
    IOEngine=IOEngine,
    IOEngineConfig=lambda *args: None,
    MemoryDesc=MemoryDesc,
    PollCqMode=SimpleNamespace(POLLING=0),
    RdmaBackendConfig=lambda *args, **said: None,
    XgmiBackendConfig=lambda *args, **said: None,
)
"""In the place of the module ``mori.io``."""
