"""KV connectors between two engines: prefill here, decode there.

``P2PConnector`` is the one for engines of today. What belongs to the first family (``SimpleConnector`` and what it
is built of) has threads and numpy, and is imported when it is first asked for.

==================== ======================================================================================
``connector``        ``P2PConnector``: its two halves, and the wire between engines, are in ``pulling/``
``connector_v0``     ``SimpleConnector``, from a ``model_input`` to ``paged`` caches, as ``options_v0`` say;
                     ``agent`` is a worker's one entry to it
``lookup_buffer/``   a table keyed by tokens, or by strings, over pipes
``pipe/``            a FIFO of tensors: within a process, or over TCP
``frames``           what goes over a connection, for all of them
``sockets``          where they listen and connect
``extra_config``     what is set in ``kv_connector_extra_config``, read and checked for all of them
``clock``, ``log``   the only place that reads time for them, and what they log
==================== ======================================================================================
"""

from typing import TYPE_CHECKING, Final

from kv_api.exports import imported_later
from kv_p2p.connector import P2PConnector
from kv_p2p.pulling.scheduler import P2PSchedulerSide
from kv_p2p.pulling.worker import P2PWorkerSide

if TYPE_CHECKING:
    from kv_p2p.agent import KVTransferAgent
    from kv_p2p.connector_v0 import SimpleConnector
    from kv_p2p.lookup_buffer.base import KVLookupBufferBase, KVStoreBufferBase
    from kv_p2p.lookup_buffer.simple import SimpleBuffer
    from kv_p2p.lookup_buffer.store import LocalStore, PipeStore, StoreServer
    from kv_p2p.model_input import ModelInputError
    from kv_p2p.pipe.arrays import TensorError
    from kv_p2p.pipe.base import KVPipeBase, PipeClosedError
    from kv_p2p.pipe.local import LocalPipe
    from kv_p2p.pipe.rendezvous import RendezvousError
    from kv_p2p.pipe.tcp import TcpPipe

_LATER: Final = {
    "KVTransferAgent": "kv_p2p.agent",
    "SimpleConnector": "kv_p2p.connector_v0",
    "KVLookupBufferBase": "kv_p2p.lookup_buffer.base",
    "KVStoreBufferBase": "kv_p2p.lookup_buffer.base",
    "SimpleBuffer": "kv_p2p.lookup_buffer.simple",
    "LocalStore": "kv_p2p.lookup_buffer.store",
    "PipeStore": "kv_p2p.lookup_buffer.store",
    "StoreServer": "kv_p2p.lookup_buffer.store",
    "ModelInputError": "kv_p2p.model_input",
    "TensorError": "kv_p2p.pipe.arrays",
    "KVPipeBase": "kv_p2p.pipe.base",
    "PipeClosedError": "kv_p2p.pipe.base",
    "LocalPipe": "kv_p2p.pipe.local",
    "RendezvousError": "kv_p2p.pipe.rendezvous",
    "TcpPipe": "kv_p2p.pipe.tcp",
}
"""A name, and the module that is imported at its first use."""

__all__ = [
    "KVLookupBufferBase",
    "KVPipeBase",
    "KVStoreBufferBase",
    "KVTransferAgent",
    "LocalPipe",
    "LocalStore",
    "ModelInputError",
    "P2PConnector",
    "P2PSchedulerSide",
    "P2PWorkerSide",
    "PipeClosedError",
    "PipeStore",
    "RendezvousError",
    "SimpleBuffer",
    "SimpleConnector",
    "StoreServer",
    "TcpPipe",
    "TensorError",
]


if not TYPE_CHECKING:
    __getattr__ = imported_later(globals(), _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
