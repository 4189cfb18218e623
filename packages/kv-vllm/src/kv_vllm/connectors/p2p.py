"""``P2PConnector`` for ``kv_connector_module_path: kv_vllm``: ours, inside vLLM."""

from contextlib import suppress
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from kv_api import AttentionKind
from kv_api.groups import GroupDescription
from kv_p2p import P2PConnector as OurP2PConnector
from kv_vllm.connectors.inside import VLLM_BASES, InsideVllm
from kv_vllm.translate import describe_group, has_states


class P2PConnector(InsideVllm, OurP2PConnector, *VLLM_BASES):  # type: ignore[misc]
    """kv-p2p's connector, of vLLM's class and for vLLM's KV cache groups."""

    @classmethod
    def describe_group(cls, kv_cache_spec: Any) -> GroupDescription:
        if has_states(kv_cache_spec):  # P2PConnector refuses states, whatever their mode
            return GroupDescription(AttentionKind.STATE_SPACE, kv_cache_spec.block_size)
        return describe_group(kv_cache_spec)


with suppress(ValueError):  # the name is taken, or this module was imported anew
    # vLLM's MultiConnector, which may have this connector as a child, looks the class that made stats up in vLLM's
    # registry, by its name alone. If it doesn't find it, the server ends.
    KVConnectorFactory.register_connector("P2PConnector", "kv_vllm", "P2PConnector")
