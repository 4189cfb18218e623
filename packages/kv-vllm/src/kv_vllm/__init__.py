"""Where these packages meet vLLM itself. Importing this imports no vLLM; what needs it comes when it is used.

``OffloadingConnector``, ``P2PConnector``, ``MultiConnector``, ``RecordingConnector`` and ``TraceConnector`` are
for a ``kv_transfer_config`` with ``kv_connector_module_path: kv_vllm``, ``HostOffloadingSpec`` for vLLM's own
connector, with ``spec_module_path: kv_vllm``. ``inside_vllm`` makes a connector of your own one of vLLM's.
``python -m kv_vllm`` compares the testbed and the contract with the installed vLLM.

========================= =================================================================================
``connectors/``           ours inside vLLM, and our host memory under vLLM's own
``recording/``            what a live engine asks its connector, as a schedule; its requests, as a trace
``smoke/``                one vLLM without our connector and one with it
``drift/``                where vLLM's classes and ours differ
``differential/``         the testbed's engine against vLLM's schedulers, call by call
``driver/``               vLLM's own engine under the testbed; ``host_copy`` and ``world_offload`` are media for
                          it, named in the schedules that it saves, and ``world_p2p`` is a wire
``tiers/``                vLLM's tiers below host memory in that engine: whoever writes one proves it here
``translate``             every value of ours that vLLM inspects, and what it becomes there
``handing_on``            connectors that stand before another one; ``refused``: engines in which none begins
``vllm_world``            vLLM's configurations, sized like a world of the testbed; ``vllm_scheduler``: vLLM's
                          schedulers and requests there
``installed``             which vLLM there is; ``versions``: with which ours work; ``log``: ours in its log
========================= =================================================================================
"""

from typing import TYPE_CHECKING, Final

from kv_api.exports import imported_later

if TYPE_CHECKING:
    from kv_vllm.connectors.host_spec import HostOffloadingSpec
    from kv_vllm.connectors.inside import inside_vllm
    from kv_vllm.connectors.multi import MultiConnector
    from kv_vllm.connectors.offloading import OffloadingConnector
    from kv_vllm.connectors.p2p import P2PConnector
    from kv_vllm.recording.connector import RecordingConnector
    from kv_vllm.recording.trace import TraceConnector

_EXPORTS: Final = {
    "OffloadingConnector": "kv_vllm.connectors.offloading",
    "P2PConnector": "kv_vllm.connectors.p2p",
    "MultiConnector": "kv_vllm.connectors.multi",
    "RecordingConnector": "kv_vllm.recording.connector",
    "TraceConnector": "kv_vllm.recording.trace",
    "HostOffloadingSpec": "kv_vllm.connectors.host_spec",
    "inside_vllm": "kv_vllm.connectors.inside",
}
"""What is looked for here by its name, and the module that it is in."""

__all__ = [
    "HostOffloadingSpec",
    "MultiConnector",
    "OffloadingConnector",
    "P2PConnector",
    "RecordingConnector",
    "TraceConnector",
    "inside_vllm",
]


if not TYPE_CHECKING:
    _import = imported_later(globals(), _EXPORTS)

    def __getattr__(name):
        try:
            return _import(name)
        except ModuleNotFoundError as error:
            package, _, _ = str(error.name).partition(".")
            if not package.startswith("kv_"):
                raise
            needed = f"kv_vllm.{name} needs the package {package.replace('_', '-')}: install kv-vllm[connectors]"
            raise ModuleNotFoundError(needed, name=error.name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
