"""What a connector costs vLLM's scheduler: our OffloadingConnector beside vLLM's own, in one process.

vLLM's `Scheduler` runs with made-up model output and no worker: every copy of a step is reported as ended with
the next one. It keeps statistics, as a server does. The situations:

* `decode`: a step of 256 requests that each sample a token; in each step 16 of them fill a block.
* `prompts only`: the same with `offload_prompt_only`.
* `long prompt`: all steps of a prompt of 100,000 tokens, until its first token.
* `long prompt, no room`: the same with a cache of 1,000 chunks whose copies don't end before the prompt does, so
  that most of it is offered in vain. Here vLLM's connector offers everything again in each step.
* `long prompt, full`: the same in a full cache: room has to be made for every chunk.
* `long prompt, found`: all steps of a prompt of 100,000 tokens that is loaded whole; without a connector, of one
  whose blocks the engine has itself.
* `decode, 1,024 tokens each`: `decode` where every request has a longer history.
* `short prompts`: a step in which 4 requests of 512 tokens arrive and are computed, and the 4 before them end. All
  that a request costs once counts here; the long prompt hardly shows it.

The subjects take turns, so that a noisy machine is noisy to all of them: `--turn` steps of one, then as many of
the next. In each round another one begins, and the turns end elsewhere: who comes after another finds the core's
caches taken, which with `--turn 1` is so in every step. A step's time is processor time of `schedule` and
`update_from_output` together, and of what comes and ends in it where prompts are short, the best of `--repeat`
rounds: a step does the same work in each. Reported are the mean of decoding steps and of those of short prompts,
and the sum of a long prompt's. A connector's share is what its subject takes beyond the one without a connector.

    python benchmarks/connector_step.py [--repeat 6] [--steps 48] [--turn 16] [--json FILE]

Needs kv-vllm and a vLLM (the CPU build does).
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from time import process_time

from kv_offload import metadata as ours
from kv_sim.config import WorldConfig

try:
    import torch
    import vllm
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import common as theirs
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
    from vllm.v1.request import RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    from kv_vllm.vllm_world import make_request, vllm_config
except ModuleNotFoundError as error:
    print(f"nothing is compared: {error}")
    raise SystemExit(0) from None

BLOCK_TOKENS = 16
REQUESTS = 256
PROMPT_TOKENS = 64
LONG_PROMPT_TOKENS = 100_000
SHORT_PROMPT_TOKENS = 512
ARRIVALS = 4
STEP_TOKENS = 2048
NUM_BLOCKS = 80_000
PAGE_BYTES = 2 * BLOCK_TOKENS * 4
CHUNKS = 60_000
FEW_CHUNKS = 1_000
FULL_CHUNKS = 10_000

SUBJECTS = ("none", "vllm", "ours")
LONG_PROMPTS = ("long prompt", "long prompt, no room", "long prompt, full", "long prompt, found")
GOALS = {"decode": 1 / 3, "prompts only": 1 / 10, **dict.fromkeys(LONG_PROMPTS, 1 / 5)}


class Server:
    """A scheduler with one of the connectors, and workers that are always done by the next step, or never."""

    def __init__(
        self, subject: str, *, prompt_only: bool = False, chunks: int = CHUNKS, ends: bool = True
    ) -> None:
        self._ends = ends
        self._meta = {"vllm": theirs, "ours": ours}.get(subject)
        self._ended: dict[int, int] = {}
        self._loaded: set[str] = set()
        world = WorldConfig(
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_TOKENS,
            max_running=REQUESTS,
            max_step_tokens=STEP_TOKENS,
        )
        config = vllm_config(world, None if subject == "none" else transfer(subject, prompt_only, chunks))  # type: ignore[arg-type]
        config.kv_events_config = None
        config.model_config.max_model_len = 2 * LONG_PROMPT_TOKENS
        config.scheduler_config.max_model_len = 2 * LONG_PROMPT_TOKENS
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        cache = KVCacheConfig(
            num_blocks=NUM_BLOCKS,
            kv_cache_tensors=[
                KVCacheTensor(PAGE_BYTES * NUM_BLOCKS, ["layer"], PAGE_BYTES * NUM_BLOCKS, PAGE_BYTES)
            ],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=cache,
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=True,
            structured_output_manager=StructuredOutputManager(config),
        )

    def add(self, name: str, tokens: list[int]) -> float:
        """A request arrives; its blocks are hashed before the clock runs. Returns the seconds that it took."""
        request = make_request(name, tokens, SamplingParams(max_tokens=1 << 20, ignore_eos=True), BLOCK_TOKENS)
        begin = process_time()
        self.scheduler.add_request(request)
        return process_time() - begin

    def step(self) -> float:
        """One step; returns the seconds that the scheduler took."""
        begin = process_time()
        output = self.scheduler.schedule()
        seconds = process_time() - begin
        names = list(output.num_scheduled_tokens)
        sampled = [[7] if self._is_sampling(name) else [] for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=self._report(),
        )
        if self._meta is not None and self._ends:
            planned = output.kv_connector_metadata
            self._ended = dict.fromkeys([*planned.load_jobs, *planned.store_jobs], 1)
            self._loaded = {job.req_id for job in planned.load_jobs.values()}
        begin = process_time()
        self.scheduler.update_from_output(output, result)
        return seconds + process_time() - begin

    def first_token_of(self, name: str) -> Iterator[float]:
        """Step until a request has sampled one; yields each step's seconds."""
        while not self.scheduler.requests[name].num_output_tokens:
            yield self.step()

    def finish(self, names: Sequence[str]) -> float:
        """Requests end. Returns the seconds that it took."""
        begin = process_time()
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)
        return process_time() - begin

    def _is_sampling(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return bool(request.num_computed_tokens >= request.num_tokens)

    def _report(self) -> KVConnectorOutput | None:
        if self._meta is None or not self._ended:
            return None
        meta = self._meta.OffloadingWorkerMetadata(self._ended)
        return KVConnectorOutput(kv_connector_worker_meta=meta, finished_recving=self._loaded)


def transfer(subject: str, prompt_only: bool, chunks: int) -> KVTransferConfig:
    """The same settings for both."""
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_module_path="kv_vllm" if subject == "ours" else None,
        kv_connector_extra_config={
            "cpu_bytes_to_use": 4096 * chunks,
            "block_size": BLOCK_TOKENS,
            "offload_prompt_only": prompt_only,
        },
    )


def decode(
    subject: str, steps: int, *, prompt_only: bool = False, prompt_tokens: int = PROMPT_TOKENS
) -> Iterator[float]:
    """Seconds of steps in which all requests sample a token."""
    server = Server(subject, prompt_only=prompt_only)
    for number in range(REQUESTS):
        # In each step some of them fill a block, as in a server that has run for a while.
        server.add(f"r{number}", [number + 1, *range(1, prompt_tokens + number % BLOCK_TOKENS)])
    while len(server.scheduler.running) < REQUESTS or not all(
        request.num_output_tokens for request in server.scheduler.running
    ):
        server.step()
    for _ in range(steps):
        yield server.step()


def short_prompts(subject: str, steps: int) -> Iterator[float]:
    """Seconds of steps in which some requests come and as many end."""
    server, before = Server(subject), list[str]()
    for step in range(steps):
        names = [f"{step * ARRIVALS + number}" for number in range(ARRIVALS)]
        seconds = sum(server.add(name, prompt(int(name))[:SHORT_PROMPT_TOKENS]) for name in names)
        seconds += server.step()
        yield seconds + server.finish(before)
        before = names


def end(server: Server, name: str) -> None:
    """A request ends, and its copies."""
    server.finish([name])
    for _ in range(2):
        server.step()


def prompt(number: int) -> list[int]:
    """100,000 tokens; of another number, others."""
    return [number * 50_000 + place % 50_000 for place in range(LONG_PROMPT_TOKENS)]


def long_prompt(subject: str, *, before: int = 0, chunks: int = CHUNKS, ends: bool = True) -> Iterator[float]:
    """Seconds of all steps of one long prompt, after so many others that have finished."""
    server = Server(subject, chunks=chunks, ends=ends)
    for number in range(before + 1):
        server.add(f"{number}", prompt(number)[: None if number < before else 199])
        sum(server.first_token_of(f"{number}"))
        if number < before:
            end(server, f"{number}")
    server.add("long", prompt(before + 1))
    yield from server.first_token_of("long")


def found(subject: str) -> Iterator[float]:
    """Seconds of all steps, together, of a long prompt that was stored and has left the GPU."""
    server = Server(subject)
    server.add("first", prompt(1))
    sum(server.first_token_of("first"))
    end(server, "first")
    if subject != "none" and not server.scheduler.reset_prefix_cache():
        raise SystemExit(f"{subject}: the blocks of a prompt that has finished are still in use")
    server.add("again", prompt(1))
    yield sum(server.first_token_of("again"))


def one_round(run: Callable[[str], Iterator[float]], number: int, turn: int) -> dict[str, list[float]]:
    """By subject, the seconds of its steps; ``turn`` of them at a time, at first fewer."""
    first = number % len(SUBJECTS)
    runs = {subject: run(subject) for subject in (*SUBJECTS[first:], *SUBJECTS[:first])}
    found: dict[str, list[float]] = {subject: [] for subject in runs}
    for count in chain([turn - number % turn], repeat(turn)):
        more = [[*islice(steps, count)] for steps in runs.values()]
        if not any(more):
            break
        for seconds, new in zip(found.values(), more, strict=True):
            seconds += new
    gc.collect()
    return found


def best_steps(run: Callable[[str], Iterator[float]], rounds: int, turn: int) -> dict[str, list[float]]:
    """By subject, the seconds of each step in the round that was best for it."""
    times = [one_round(run, number, turn) for number in range(rounds)]
    return {name: [*map(min, zip(*(found[name] for found in times), strict=True))] for name in SUBJECTS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a connector costs vLLM's scheduler.")
    parser.add_argument("--repeat", type=int, default=6)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--turn", type=int, default=16)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    if min(arguments.repeat, arguments.steps, arguments.turn) < 1:
        parser.error("--repeat, --steps and --turn: expected at least 1 of each")
    situations = {
        "decode": lambda subject: decode(subject, arguments.steps),
        "prompts only": lambda subject: decode(subject, arguments.steps, prompt_only=True),
        "long prompt": long_prompt,
        "long prompt, no room": lambda subject: long_prompt(subject, chunks=FEW_CHUNKS, ends=False),
        "long prompt, full": lambda subject: long_prompt(subject, before=2, chunks=FULL_CHUNKS),
        "long prompt, found": found,
        "short prompts": lambda subject: short_prompts(subject, arguments.steps),
        "decode, 1,024 tokens each": lambda subject: decode(subject, arguments.steps, prompt_tokens=1024),
    }
    gc.disable()
    logging.disable(logging.WARNING)
    rows: dict[str, dict[str, float]] = {}
    for name, run in situations.items():
        steps = best_steps(run, arguments.repeat, arguments.turn)
        per = 1 if name in LONG_PROMPTS else arguments.steps
        rows[name] = {subject: sum(seconds) / per for subject, seconds in steps.items()}
    print(f"vLLM {vllm.__version__}, milliseconds; share: what is added to a scheduler without a connector")
    print(f"{'':26} {'none':>8} {'vllm':>8} {'ours':>8}  {'share':>8} {'ours':>8} {'ratio':>7}  goal")
    for name, best in rows.items():
        share, own = best["vllm"] - best["none"], best["ours"] - best["none"]
        times = " ".join(f"{1e3 * best[subject]:8.2f}" for subject in SUBJECTS)
        goal = f"{GOALS[name]:.2f}" if name in GOALS else ""
        print(f"{name:26} {times}  {1e3 * share:8.2f} {1e3 * own:8.2f} {own / share:7.3f}  {goal}".rstrip())
    if arguments.json:
        text = json.dumps(
            {"python": platform.python_version(), "vllm": vllm.__version__, "seconds": rows}, indent=1
        )
        Path(arguments.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
