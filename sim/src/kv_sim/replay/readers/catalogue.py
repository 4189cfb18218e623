"""``FORMATS``: every known format, in the order in which a record is compared with them."""

from collections.abc import Mapping
from typing import Final

from kv_sim.replay.readers.format import Format
from kv_sim.replay.readers.formats.aibrix import AIBRIX
from kv_sim.replay.readers.formats.aiperf import AIPERF, INPUTS, TURNS
from kv_sim.replay.readers.formats.atif import ATIF
from kv_sim.replay.readers.formats.azure import AZURE
from kv_sim.replay.readers.formats.bailian import BAILIAN
from kv_sim.replay.readers.formats.baseten import BASETEN, BASETEN_TEXT
from kv_sim.replay.readers.formats.bench import BENCH
from kv_sim.replay.readers.formats.burstgpt import BURSTGPT
from kv_sim.replay.readers.formats.captured import BEDROCK, SAGEMAKER
from kv_sim.replay.readers.formats.chatgpt import CHATGPT
from kv_sim.replay.readers.formats.claude_ai import CLAUDE_AI
from kv_sim.replay.readers.formats.claude_code import CLAUDE_CODE
from kv_sim.replay.readers.formats.cline import CLINE
from kv_sim.replay.readers.formats.codex import CODEX
from kv_sim.replay.readers.formats.continue_dev import CONTINUE
from kv_sim.replay.readers.formats.conversations import CONVERSATIONS
from kv_sim.replay.readers.formats.copilot_cli import COPILOT_CLI
from kv_sim.replay.readers.formats.dated import DATED
from kv_sim.replay.readers.formats.deepseek import DEEPSEEK
from kv_sim.replay.readers.formats.dynamo import DYNAMO
from kv_sim.replay.readers.formats.gemini_cli import GEMINI_CLI
from kv_sim.replay.readers.formats.goose import GOOSE
from kv_sim.replay.readers.formats.guidellm import GUIDELLM
from kv_sim.replay.readers.formats.har import HAR
from kv_sim.replay.readers.formats.lengths import LENGTHS
from kv_sim.replay.readers.formats.librechat import LIBRECHAT
from kv_sim.replay.readers.formats.lm_studio import LM_STUDIO
from kv_sim.replay.readers.formats.lmbench import LMBENCH
from kv_sim.replay.readers.formats.lmcache_log import LMCACHE
from kv_sim.replay.readers.formats.logged import LANGFUSE, LANGSMITH
from kv_sim.replay.readers.formats.mooncake import MOONCAKE
from kv_sim.replay.readers.formats.open_webui import OPEN_WEBUI
from kv_sim.replay.readers.formats.openai import OPENAI
from kv_sim.replay.readers.formats.openai_table import TABLE
from kv_sim.replay.readers.formats.opencode import OPENCODE
from kv_sim.replay.readers.formats.otel import OTEL
from kv_sim.replay.readers.formats.pi import PI
from kv_sim.replay.readers.formats.recorded import RECORDED
from kv_sim.replay.readers.formats.servegen import SERVEGEN
from kv_sim.replay.readers.formats.sglang import SGLANG, SGLANG_LOG, SGLANG_METRICS
from kv_sim.replay.readers.formats.vidur import VIDUR
from kv_sim.replay.readers.formats.vllm_custom import VLLM
from kv_sim.replay.readers.formats.weka import WEKA

FORMATS: Final[Mapping[str, Format]] = {
    one.name: one
    for one in (
        *(WEKA, LMCACHE, BAILIAN, RECORDED, SERVEGEN, LMBENCH, MOONCAKE, BASETEN, DYNAMO),
        *(AIBRIX, AIPERF, TURNS, INPUTS, OTEL, GUIDELLM, LANGFUSE, LANGSMITH, SGLANG, SGLANG_LOG, SGLANG_METRICS),
        *(HAR, SAGEMAKER, BEDROCK, BASETEN_TEXT, OPEN_WEBUI, CHATGPT, CLAUDE_AI),
        *(DEEPSEEK, LIBRECHAT, LM_STUDIO, COPILOT_CLI, CONTINUE, GEMINI_CLI, OPENCODE, GOOSE, PI, CLINE, ATIF),
        *(VLLM, DATED, CONVERSATIONS, OPENAI, TABLE, CLAUDE_CODE, CODEX),
        *(AZURE, BURSTGPT, VIDUR, BENCH, *LENGTHS),
    )
}
"""Formats by name. If a record fits several, the first one is taken."""
