"""A spec for tests under vLLM's own connector. Importing it imports vLLM."""

from kv_vllm_specs import Corrupting

from kv_vllm.connectors.host_spec import HostOffloadingSpec


class CorruptingHost(HostOffloadingSpec):
    """The same under vLLM's connector."""

    our_spec = Corrupting
