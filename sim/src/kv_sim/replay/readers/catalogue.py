"""Every format that can be read, and how to tell which one a file has."""

from collections.abc import Mapping
from typing import Any, Final

from kv_api import ConfigError
from kv_sim.replay.readers.azure import AZURE
from kv_sim.replay.readers.bailian import BAILIAN
from kv_sim.replay.readers.burstgpt import BURSTGPT
from kv_sim.replay.readers.chat import CONVERSATIONS, OPENAI
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.lmbench import LMBENCH
from kv_sim.replay.readers.lmcache_log import LMCACHE
from kv_sim.replay.readers.mooncake import MOONCAKE
from kv_sim.replay.readers.recorded import RECORDED
from kv_sim.replay.readers.vidur import VIDUR
from kv_sim.replay.readers.vllm_custom import VLLM
from kv_sim.replay.readers.weka import WEKA

FORMATS: Final[Mapping[str, Format]] = {
    one.name: one
    for one in (
        *(WEKA, LMCACHE, BAILIAN, RECORDED, LMBENCH, MOONCAKE),
        *(VLLM, CONVERSATIONS, OPENAI),
        *(AZURE, BURSTGPT, VIDUR),
    )
}
"""By name; where a record fits several, the first is the one."""


def detect(record: Mapping[str, Any], container: Container, where: str) -> Format:
    """The format of a file's first record."""
    for one in FORMATS.values():
        if one.container is container and one.is_of(record):
            return one
    what = "columns" if container is Container.CSV else "fields"
    found = ", ".join(map(str, list(record)[:12])) or "none"
    wanted = " or ".join(f"{one.name} ({one.asks_for})" for one in FORMATS.values() if one.container is container)
    skip = "" if container is Container.CSV else "; if it is only this record: --format with --on-error skip"
    own = "; --columns says which is what in another one"
    raise ConfigError(f"{where}: no known format has the {what} {found}; expected those of {wanted}{own}{skip}")
