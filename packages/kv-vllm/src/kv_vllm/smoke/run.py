"""``python -m kv_vllm smoke``: compares the outputs of a vLLM without a connector and of one with it.

Prompts with a common prefix are run, the engine's own prefix cache is emptied, and they are run again, so that the
connector loads the common prefix. Run it first on a new machine, or with a new connector. Each vLLM has a process
of its own, since a device's memory is freed only when its process ends.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, Final

from kv_api import ConfigError
from kv_vllm.installed import SETTINGS, MissingError, vllm_version

GIGABYTE: Final = 1 << 30
SHARED_TOKENS: Final = 256
OUTPUT_TOKENS: Final = 32
HITS: Final = "vllm:external_prefix_cache_hits"
READY_SECONDS: Final = 3600
"""How long an engine may take to start. It imports vLLM in three processes, one after the other, which takes
minutes if the cores are busy."""
PAUSE_SECONDS: Final = 0.02
REST_SECONDS: Final = 120
"""How long stores may hold blocks after the last answer; the prefix cache can't be reset before."""

CONNECTOR: Final[Mapping[str, Any]] = {
    "kv_connector": "OffloadingConnector",
    "kv_connector_module_path": "kv_vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"cpu_bytes_to_use": GIGABYTE},
}
"""The default connector."""


@dataclass(frozen=True)
class Told:
    """The outputs of one vLLM."""

    cold: list[list[int]]
    warm: list[list[int]]
    hits: float
    version: str


def prompts(vocabulary: int) -> list[list[int]]:
    """Prompts with a common prefix and different ends, in the middle of blocks."""
    random = Random(0)
    shared = [random.randrange(10, vocabulary) for _ in range(SHARED_TOKENS)]
    return [shared + [random.randrange(10, vocabulary) for _ in range(length)] for length in (1, 17, 70, 130)]


def run_one(model: str, transfer: dict[str, Any] | None, options: dict[str, Any]) -> Told:
    """Run the prompts, in this process."""
    import vllm

    usual: dict[str, Any] = {"max_model_len": 1024, "enable_prefix_caching": True, "disable_log_stats": False}
    usual |= {"skip_tokenizer_init": True, "seed": 0}
    llm = vllm.LLM(model=model, kv_transfer_config=transfer, **{**usual, **options})
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    asked = [{"prompt_token_ids": prompt} for prompt in prompts(vocabulary)]
    params = vllm.SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False)

    def run() -> list[list[int]]:
        # One after the other: batching can change the last bits of a sum.
        return [list(llm.generate([one], params, use_tqdm=False)[0].outputs[0].token_ids) for one in asked]

    cold = run()
    give_up = monotonic() + REST_SECONDS
    while not llm.reset_prefix_cache():
        if monotonic() > give_up:
            raise SystemExit(f"blocks are still held {REST_SECONDS} seconds after the last answer")
        sleep(PAUSE_SECONDS)
    warm = run()
    hits = sum(metric.value for metric in llm.get_metrics() if metric.name == HITS)
    return Told(cold, warm, hits, vllm.__version__)


def compare(without: Told, with_it: Told) -> list[str]:
    """The problems found, one line each."""
    wrong = []
    for name in ("cold", "warm"):
        expected, told = getattr(without, name), getattr(with_it, name)
        for place, (one, other) in enumerate(zip(expected, told, strict=True)):
            if one != other:
                at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
                wrong.append(
                    f"prompt {place}, {name}: token {at} is {other[at : at + 1]}, without {one[at : at + 1]}"
                )
    if with_it.hits < SHARED_TOKENS:
        wrong.append(f"{with_it.hits:g} tokens were loaded, expected at least {SHARED_TOKENS}")
    return wrong


def read_transfer(text: str) -> dict[str, Any]:
    """The value of vLLM's ``--kv-transfer-config`` as typed: an object that names a connector."""
    try:
        transfer = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--kv-transfer-config: this is no JSON: {error}") from None
    if not isinstance(transfer, dict) or not isinstance(transfer.get("kv_connector"), str):
        raise ConfigError(
            f"--kv-transfer-config: expected an object with the name of a connector as kv_connector; got {text}"
        )
    return transfer


def smoke(
    model: str | None,
    options: dict[str, Any],
    show: Callable[[str], None],
    transfer: Mapping[str, Any] = CONNECTOR,
) -> bool:
    """Compare both, with ``options`` for vLLM and ``transfer`` for the connector. True: there is no problem."""
    environment = _environment(model)  # before the next line, which sets variables that only suit the tiny model
    vllm_version()
    with TemporaryDirectory() as folder:
        if model is None:
            from kv_vllm.smoke.tiny_model import make_model

            model = str(make_model(Path(folder, "model")))
        told = []
        for tried, name in ((None, "without a connector"), (transfer, f"with {transfer['kv_connector']}")):
            show(f"vLLM {name}: it takes a minute to start, or several on busy cores")
            told.append(_in_a_process(model, tried, options, Path(folder), environment))
    wrong = compare(*told)
    show(f"vLLM {told[1].version}, {model}: {told[1].hits:g} tokens loaded by {transfer['kv_connector']}")
    for line in wrong:
        show(f"  {line}")
    show("the outputs are the same" if not wrong else "FAILED")
    return not wrong


def _in_a_process(
    model: str,
    transfer: Mapping[str, Any] | None,
    options: dict[str, Any],
    folder: Path,
    environment: dict[str, str],
) -> Told:
    out = folder / "told.json"
    out.unlink(missing_ok=True)
    given = json.dumps([model, transfer, options, str(out)])
    done = subprocess.run([sys.executable, "-m", "kv_vllm.smoke.run", given], check=False, env=environment)
    if done.returncode or not out.exists():
        if transfer is None:
            ended = "without a connector: can it run on this machine at all?"
        else:
            ended = f"with {transfer['kv_connector']}, but not without it: see what it printed"
        raise MissingError(f"vLLM ended with exit code {done.returncode} {ended}")
    return Told(**json.loads(out.read_text()))


def _environment(model: str | None) -> dict[str, str]:
    """The children's environment; the user's variables win. Only the tiny model is run without network."""
    settled = {name: value for name, value in SETTINGS.items() if model is None or name != "HF_HUB_OFFLINE"}
    return {**settled, "VLLM_ENGINE_READY_TIMEOUT_S": str(READY_SECONDS), **os.environ}


if __name__ == "__main__":
    *_given, _out = json.loads(sys.argv[1])
    Path(_out).write_text(json.dumps(vars(run_one(*_given))))
