"""The packages of this repository inside vLLM. Importing this doesn't import vLLM; the names that need it do.

For a ``kv_transfer_config`` with ``kv_connector_module_path: kv_vllm``: ``OffloadingConnector``, ``P2PConnector``,
``MultiConnector``, ``RecordingConnector`` and ``TraceConnector``. With ``spec_module_path: kv_vllm``, for vLLM's
own connector: ``HostOffloadingSpec``. ``inside_vllm`` makes a vLLM connector of one that you wrote. ``python -m
kv_vllm`` compares the testbed and the contract with the installed vLLM.

===================== =========================================================================================
**inside vLLM**       loaded by a server
``connectors/``       our connectors, and our host memory under vLLM's own connector
``recording/``        records a live engine's calls as a schedule, or its requests as a trace
``translate``         turns values of ours that vLLM inspects into vLLM's
``refused``           refuses engines in which our connectors would go wrong
``handing_on``        methods that pass each call on to another connector
``log``               sends our log lines to vLLM's log
**beside vLLM**       checks that vLLM is as these packages expect
``installed``         which vLLM is installed; ``versions``: with which ours work
``drift/``            where vLLM's classes and ours differ
``differential/``     the testbed's engine against vLLM's schedulers, call by call
``smoke/``            compares the outputs of a vLLM without our connector and one with it
**under the testbed** vLLM's own engine, for ``kv-sim --engine vllm``
``driver/``           the engine
``tiers/``            vLLM's tiers below host memory, in that engine
``vllm_world``        vLLM's configurations, sized like a world
``vllm_scheduler``    vLLM's schedulers and requests, for a world
``host_copy``         a medium for vLLM's ``OffloadingConnector`` there; ``world_offload``: the medium for ours
``world_p2p``         the wire for our ``P2PConnector`` there
===================== =========================================================================================

Saved schedules name the last three modules, so they can't move to a folder.
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
"""The names that are imported at their first use, and their modules."""

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
