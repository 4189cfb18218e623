"""``P2PConnector`` for ``kv_connector_module_path: kv_vllm``: ours, inside vLLM."""

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from kv_p2p import P2PConnector as OurP2PConnector
from kv_vllm.connectors.inside import InsideVllm


class P2PConnector(InsideVllm, OurP2PConnector, KVConnectorBase_V1):  # type: ignore[misc]
    """kv-p2p's connector, of vLLM's class. It knows one KV cache group, so it isn't ``SupportsHMA``."""
