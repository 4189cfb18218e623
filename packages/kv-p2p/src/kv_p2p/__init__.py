"""KV connectors between two engines: prefill here, decode there.

``P2PConnector`` is the connector for today's engines. vLLM's first family (``SimpleConnector`` and its parts) is
imported at its first use.

================ ==================================================================
``connector``    ``P2PConnector``
``pulling/``     its two sides, and the wire between engines
``first/``       the first family, with its pipes and lookup buffers
**for both**     families
``frames``       the messages of a connection; ``sockets``: listening and connecting
``extra_config`` reads and checks ``kv_connector_extra_config``
``log``          the package's logger; ``clock``: the only place that reads time
================ ==================================================================
"""

from typing import TYPE_CHECKING, Final

from kv_api.exports import imported_later
from kv_p2p.connector import P2PConnector
from kv_p2p.pulling.scheduler import P2PSchedulerSide
from kv_p2p.pulling.worker import P2PWorkerSide

if TYPE_CHECKING:
    from kv_p2p.first.agent import KVTransferAgent
    from kv_p2p.first.connector import SimpleConnector
    from kv_p2p.first.lookup_buffer.base import KVLookupBufferBase, KVStoreBufferBase
    from kv_p2p.first.lookup_buffer.simple import SimpleBuffer
    from kv_p2p.first.lookup_buffer.store import LocalStore, PipeStore, StoreServer
    from kv_p2p.first.model_input import ModelInputError
    from kv_p2p.first.pipe.arrays import TensorError
    from kv_p2p.first.pipe.base import KVPipeBase, PipeClosedError
    from kv_p2p.first.pipe.local import LocalPipe
    from kv_p2p.first.pipe.rendezvous import RendezvousError
    from kv_p2p.first.pipe.tcp import TcpPipe

_LATER: Final = {
    "KVTransferAgent": "kv_p2p.first.agent",
    "SimpleConnector": "kv_p2p.first.connector",
    "KVLookupBufferBase": "kv_p2p.first.lookup_buffer.base",
    "KVStoreBufferBase": "kv_p2p.first.lookup_buffer.base",
    "SimpleBuffer": "kv_p2p.first.lookup_buffer.simple",
    "LocalStore": "kv_p2p.first.lookup_buffer.store",
    "PipeStore": "kv_p2p.first.lookup_buffer.store",
    "StoreServer": "kv_p2p.first.lookup_buffer.store",
    "ModelInputError": "kv_p2p.first.model_input",
    "TensorError": "kv_p2p.first.pipe.arrays",
    "KVPipeBase": "kv_p2p.first.pipe.base",
    "PipeClosedError": "kv_p2p.first.pipe.base",
    "LocalPipe": "kv_p2p.first.pipe.local",
    "RendezvousError": "kv_p2p.first.pipe.rendezvous",
    "TcpPipe": "kv_p2p.first.pipe.tcp",
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
