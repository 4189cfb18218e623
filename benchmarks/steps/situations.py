"""What a server does while a connector is measured.

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

Each is an iterator of seconds. The first are 0, when all is set up, and then come those of one step after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from steps.server import BLOCK_TOKENS, CHUNKS, LONG_PROMPT_TOKENS, REQUESTS, Server

PROMPT_TOKENS = 64
SHORT_PROMPT_TOKENS = 512
ARRIVALS = 4
FEW_CHUNKS = 1_000
FULL_CHUNKS = 10_000

SUBJECTS = ("none", "vllm", "ours")
LONG_PROMPTS = ("long prompt", "long prompt, no room", "long prompt, full", "long prompt, found")
GOALS = {"decode": 1 / 3, "prompts only": 1 / 10, **dict.fromkeys(LONG_PROMPTS, 1 / 5)}

Situation = Callable[[str], Iterator[float]]
"""Runs with one of the subjects."""


def situations(steps: int) -> dict[str, Situation]:
    """By name; of those that could go on for ever, so many steps."""
    return {
        "decode": lambda subject: decode(subject, steps),
        "prompts only": lambda subject: decode(subject, steps, prompt_only=True),
        "long prompt": long_prompt,
        "long prompt, no room": lambda subject: long_prompt(subject, chunks=FEW_CHUNKS, ends=False),
        "long prompt, full": lambda subject: long_prompt(subject, before=2, chunks=FULL_CHUNKS),
        "long prompt, found": found,
        "short prompts": lambda subject: short_prompts(subject, steps),
        "decode, 1,024 tokens each": lambda subject: decode(subject, steps, prompt_tokens=1024),
    }


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
    yield 0
    for _ in range(steps):
        yield server.step()


def short_prompts(subject: str, steps: int) -> Iterator[float]:
    """Seconds of steps in which some requests come and as many end."""
    server, before = Server(subject), list[str]()
    yield 0
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
    yield 0
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
    yield 0
    yield sum(server.first_token_of("again"))
