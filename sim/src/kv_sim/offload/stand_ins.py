"""Offloading media that copy memory by themselves, and their replacements in the testbed."""

from typing import Any, Final

from kv_api import KVTransferConfig, OffloadingSpec
from kv_factory import OffloadingSpecFactory
from kv_offload import OffloadingConnector
from kv_offload_cpu import CPUOffloadingSpec
from kv_offload_file import FileOffloadingSpec
from kv_sim.offload.files import WorldFileOffloadingSpec
from kv_sim.offload.host_memory import WorldCPUOffloadingSpec

STAND_INS: Final[dict[type[OffloadingSpec], tuple[str, type[OffloadingSpec]]]] = {
    CPUOffloadingSpec: ("offload", WorldCPUOffloadingSpec),
    FileOffloadingSpec: ("offload-file", WorldFileOffloadingSpec),
}
"""Medium -> the subject that is the same with the testbed's copies, and that subject's medium."""


def why_not_driven(connector_class: type[Any], transfer: KVTransferConfig) -> str | None:
    """An error for a connector whose medium copies by itself, and what to use instead. None: it doesn't.

    Only its devices write a world's memory, so such a medium can't be tested.
    """
    if not issubclass(connector_class, OffloadingConnector):
        return None
    medium = OffloadingSpecFactory.get_spec_cls(transfer.kv_connector_extra_config)
    if medium not in STAND_INS:
        return None
    subject, other = STAND_INS[medium]
    return (
        f"{medium.__name__} copies memory by itself, and a world's memory is written by its devices alone; the "
        f"subject {subject!r} is the same with copies of the testbed's ({__package__}:{other.__name__})"
    )
