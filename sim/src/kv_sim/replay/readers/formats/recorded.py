"""Recordings of a live engine by kv-vllm's ``TraceConnector``: Mooncake's fields, and the engine's blocks.

If all blocks are alike, there are also the bytes of a block on all workers, and the number of GPU blocks; and
``host_bytes``, ``disk_bytes`` and ``policy`` of the connector, if a replay can model it. ``cached_tokens`` of a
prompt were cached when it began to run; a connector loaded ``loaded_tokens`` of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.fields import id_list, number, positive, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record
from kv_sim.replay.trace import EngineMemory
from kv_sim.replay.units import MOST_BYTES


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    block = positive(record, "block_size")
    yield Record(
        number(record, "timestamp"),
        whole(record, "input_length"),
        whole(record, "output_length"),
        id_list(record, "hash_ids"),
        block_tokens=block,
        engine=_memory(record, block),
        cached_tokens=_said(record, "cached_tokens"),
        loaded_tokens=_said(record, "loaded_tokens"),
    )


def _said(record: Mapping[str, Any], field: str) -> int | None:
    """A count; None for a request that never ran, and in lines from before kv-vllm 0.2.40."""
    return None if record.get(field) is None else whole(record, field)


def _memory(record: Mapping[str, Any], block_tokens: int) -> EngineMemory | None:
    if record.get("block_bytes") is None and record.get("gpu_blocks") is None:
        return None
    of_a_token, rest = divmod(_count(record, "block_bytes"), block_tokens)
    if rest or not 1 <= of_a_token <= MOST_BYTES:
        raise MalformedError(
            f"block_bytes: expected a multiple of block_size, {block_tokens}, of 1 to {MOST_BYTES} bytes a token, "
            f"got {record['block_bytes']}"
        )
    gpu_tokens, policy = _count(record, "gpu_blocks") * block_tokens, record.get("policy")
    host, disk = (
        0 if record.get(field) is None else _count(record, field) for field in ("host_bytes", "disk_bytes")
    )
    if not host and not disk:
        return EngineMemory(of_a_token, gpu_tokens)
    if not isinstance(policy, str) or not policy:
        raise MalformedError(f"policy: expected the name of one, got {policy!r:.60}")
    return EngineMemory(of_a_token, gpu_tokens, host, disk, policy)


def _count(record: Mapping[str, Any], field: str) -> int:
    """As `whole`, but for larger numbers than tokens: bytes, or blocks of a GPU."""
    value = record.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise MalformedError(f"{field}: expected a whole number of 0 to {2**53 - 1}, got {value!r:.60}")
    return value


RECORDED = Format(
    "recorded",
    Container.JSON,
    ("timestamp", "input_length", "output_length", "block_size", "hash_ids"),
    _parse,
    unit_seconds=1e-3,
)
