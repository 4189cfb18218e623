"""Whether work grows: what is counted, and what is said about it."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kv_sim.actions import Kind
from kv_sim.cli.main import main
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.examples.catalogue import LATER, MEMORY, OFFLOAD
from kv_sim.growth.command import growth_of
from kv_sim.growth.kept import Kept, Prompts
from kv_sim.growth.meter import Meter
from kv_sim.growth.models import MODELS, models_for
from kv_sim.growth.situations import OF_PEERS, SITUATIONS, Situation, UnitWork
from kv_sim.subject import Subject, Trait
from kv_sim.world import World


@pytest.fixture
def growth(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """The command, in sizes that take little time; what is too much stays what it is."""
    sizes = {"blocks": (64, 128, 512), "requests": (2, 8, 32)}
    smaller = {name: each._replace(sizes=sizes[each.of]) for name, each in SITUATIONS.items()}
    monkeypatch.setattr("kv_sim.growth.command.situations_for", lambda subject: smaller)
    monkeypatch.setattr("kv_sim.growth.kept.ROUNDS", (2, 6, 10))

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["growth", *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


class Connector:
    """Its scheduler's side calls itself, and may fail."""

    def on_new_request(self, request: int) -> None:
        for _ in range(request):
            pass

    def reset_cache(self) -> int:
        self.on_new_request(100)
        self.on_new_request(100)
        return 7

    def shutdown(self) -> None:
        raise RuntimeError("not now")

    def start_load_kv(self) -> None:
        """A worker's."""


def test_work_is_counted_once_and_is_always_the_same() -> None:
    connector = Connector()
    meter = Meter(connector)  # type: ignore[arg-type]
    connector.on_new_request(100)
    one = meter.take()["on_new_request"]
    assert 200 < one < 1000
    connector.on_new_request(100)
    connector.on_new_request(100)
    assert meter.take()["on_new_request"] == 2 * one
    connector.on_new_request(200)
    assert 1.9 < meter.take()["on_new_request"] / one < 2.1
    assert connector.reset_cache() == 7
    work = meter.take()
    assert (list(work), 2 * one < work["reset_cache"] < 2 * one + 50) == (["reset_cache"], True)
    connector.reset_cache()
    assert meter.take() == work
    connector.start_load_kv()
    assert not meter.take()


def test_counting_leaves_nothing_behind() -> None:
    connector = Connector()
    meter = Meter(connector)  # type: ignore[arg-type]
    seen = []

    def tracer(frame: Any, event: str, argument: Any) -> None:
        seen.append(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with pytest.raises(RuntimeError, match="not now"):
            connector.shutdown()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert gc.isenabled()
    assert meter.take()["shutdown"] > 0
    connector.on_new_request(1)
    assert meter.take()["on_new_request"] > 0, "it counts on after a failure"
    gc.disable()
    try:
        connector.on_new_request(1)
        assert not gc.isenabled(), "who switched it off still wants it off"
    finally:
        gc.enable()


def test_what_the_garbage_collector_runs_is_nobodys_work() -> None:
    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            sum(number for number in range(1000))

    class Wasteful(Connector):
        def on_new_request(self, request: int) -> None:
            for _ in range(request):
                Garbage()

    connector = Wasteful()
    meter = Meter(connector)  # type: ignore[arg-type]
    thresholds = gc.get_threshold()
    gc.set_threshold(10)
    try:
        connector.on_new_request(100)
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    assert meter.take()["on_new_request"] < 5000


def test_situations_are_what_they_say() -> None:
    last, known = SITUATIONS["a prompt's last steps"], SITUATIONS["a prompt that was stored"]
    plain = MODELS["full attention"]
    # It has nothing to do while a prompt is computed.
    assert last.measure(LATER, plain, 64) == last.measure(LATER, plain, 512)
    # It goes through what it found, to find it and to load it. Which is more work depends on the Python.
    found = {"get_num_new_matched_tokens", "update_state_after_alloc"}
    assert known.measure(LATER, plain, 64).most in found
    assert last.measure(LATER, plain, 64).most not in found


class Counted:
    """In the place of a meter: each step is more work than the one before, most of it in one method."""

    def __init__(self, connector: object) -> None:
        self.steps = 0

    def take(self) -> Counter[str]:
        self.steps += 1
        return Counter({"little": 1, "most": self.steps})


@pytest.mark.parametrize(
    ("name", "size", "work", "room", "running", "prompts"),
    [
        # A prompt is computed in four full steps and one of a token; the last of the full ones is the fourth.
        ("a prompt's last steps", 64, 1 + 4, 144, 4, {(0, 0, 257, 2): 1}),
        ("a prompt, from arrival to end", 64, sum(range(2, 9)) / 64, 144, 4, {(0, 0, 257, 2): 1}),
        ("a prompt that was stored", 64, (9 + 10 + 11) / 64, 144, 4, {(1, 256, 1, 2): 2}),
        (
            "requests that decode",
            4,
            17.5 / 4,
            64,
            4,
            {(0, 0, 5, 32): 4},
        ),  # all but the first and the last
        ("a request beside others", 4, 18.5, 32, 1, {(0, 0, 5, 32): 1, (0, 0, 5, 1): 4}),
        ("a request after others", 4, 14 + 15 + 16, 28, 4, {(0, 0, 9, 2): 5}),
    ],
)
@pytest.mark.parametrize("model", [*models_for(MEMORY)])
def test_what_is_measured_in_a_situation(
    name: str,
    size: int,
    work: float,
    room: int,
    running: int,
    prompts: dict[tuple[int, ...], int],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is room for all in each group; a step computes sixteen blocks."""
    worlds, ends = [], []

    class Watched(World):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            worlds.append(self)

        def rest(self) -> None:
            super().rest()
            ends.append((self, "rest"))

        def end(self) -> None:
            super().end()
            ends.append((self, "end"))

    monkeypatch.setattr("kv_sim.growth.metered.Unguarded", Watched)
    monkeypatch.setattr("kv_sim.growth.metered.Meter", Counted)
    assert SITUATIONS[name].measure(MEMORY, MODELS[model], size) == UnitWork(work, "most")
    (made,) = worlds
    assert ends == [(made, "rest"), (made, "end")], "what must hold at rest is looked at once, and then it ends"
    groups = MODELS[model].groups
    config = made.config
    assert (config.num_blocks, config.host_slots) == (room * len(groups),) * 2
    assert (config.groups, config.max_running, config.max_step_tokens) == (groups, running, 64)
    assert config.hands_over_states == (STATE in groups)
    specs = [action.args["spec"] for action in made.history if action.kind is Kind.ADD]
    fields = ("conversation", "shared_tokens", "own_tokens", "output_tokens")
    assert Counter(tuple(spec[field] for field in fields) for spec in specs) == prompts
    assert not made.engine.has_work


@pytest.mark.parametrize(("subject", "work", "most"), [(OFFLOAD, 22.0, "most"), (LATER, 0.0, "")])
def test_a_step_counts_in_which_a_request_waits_for_what_is_being_stored(
    subject: Subject, work: float, most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No copy ends meanwhile. Of 24 steps the first isn't counted, since all of the prompt is looked for in it."""
    monkeypatch.setattr("kv_sim.growth.metered.Meter", Counted)
    found = SITUATIONS["a prompt that is being stored"].measure(subject, MODELS["full attention"], 64)
    assert found == UnitWork(work, most), "what waits for nothing isn't measured"


@pytest.mark.once
def test_all_that_decode_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = []

    def make(config: WorldConfig, subject: Subject, **options: Any) -> World:
        configs.append(config)
        return World(config, subject, **options)

    monkeypatch.setattr("kv_sim.growth.metered.Unguarded", make)
    for requests in (3, 70):
        SITUATIONS["requests that decode"].measure(MEMORY, MODELS["full attention"], requests)
    assert [(config.max_running, config.max_step_tokens) for config in configs] == [(3, 64), (70, 70)]


def test_models_are_tried_that_a_connector_claims_to_work_with() -> None:
    names = [*MODELS]
    assert [*models_for(LATER)] == names[:1]
    assert [*models_for(MEMORY)] == names[:2]
    assert [*models_for(OFFLOAD)] == names


@pytest.mark.parametrize(
    ("works", "grows"), [((10, 20), 2.0), ((0, 50), 50.0), ((0, 0), 1.0), ((30, 10), 1 / 3), ((0.5, 3), 3.0)]
)
def test_growth(works: tuple[float, float], grows: float) -> None:
    assert growth_of([UnitWork(work, "") for work in works]) == pytest.approx(grows)


@pytest.mark.once
def test_a_connector_whose_work_does_not_grow(growth: Callable[..., tuple[int, str]]) -> None:
    code, out = growth("later")
    assert (code, out.splitlines()[-1]) == (0, "nothing grows")
    title, header, *rows = out.splitlines()[:-1]
    assert title == "LaterConnector: bytecodes executed in the calls of its scheduler's side"
    assert header.split() == ["full", "attention", "of", "for", "a", "growth"]
    works, kept = rows[: len(SITUATIONS)], rows[len(SITUATIONS) :]
    assert [row.strip().split("  ")[0] for row in works] == [*SITUATIONS]
    for prompts, (said, header, *sides) in zip(Prompts, (kept[:4], kept[4:]), strict=True):
        assert said == f"objects that each side still holds after rounds of requests with {prompts}"
        assert header == "full attention      2 rounds  6 rounds  10 rounds  a round"
        assert [(row.split("  ")[1], row.split()[-1]) for row in sides] == [
            ("scheduler's side", "0.00"),
            ("worker's side", "0.00"),
        ]


def test_the_table_is_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(make: Any, size: int) -> UnitWork:
        subject, model, engine = make.args
        assert (subject, engine) == (MEMORY, "builtin")
        return UnitWork(100.4 * len(model.groups) + size, "f")

    def double(make: Any, size: int) -> UnitWork:
        is_plain = make.args[1] is MODELS["full attention"]
        return UnitWork(5.0 * size if is_plain else 5.0 * size - 1, f"f{size}")

    def kept(make: Any, prompts: Prompts) -> list[Kept]:
        subject, model, engine = make.args
        assert (subject, engine) == (MEMORY, "builtin")
        full = {4: Counter(a=3, b=2), 8: Counter(a=9, b=2), 24: Counter(a=9, b=2)}
        leak = {4: Counter(a=3), 8: Counter(a=3, c=4), 24: Counter(a=3, c=20 * len(model.groups))}
        if prompts is Prompts.DIFFERENT and len(model.groups) > 1:
            full = {4: Counter(a=3), 8: Counter(a=7), 24: Counter(a=23)}
        return [Kept("scheduler", full), Kept("worker", leak)]

    made = {
        "a quiet one": Situation("step", "blocks", (1, 8, 64), measure),
        "a loud one": Situation("request", "requests", (4, 5, 8), double),
    }
    monkeypatch.setattr("kv_sim.growth.command.situations_for", lambda subject: made)
    monkeypatch.setattr("kv_sim.growth.command.measure_kept", kept)
    assert main(["growth", "memory"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "MemoryConnector: bytecodes executed in the calls of its scheduler's side",
        "full attention               of                                   for a  growth",
        "  a quiet one                blocks    1: 101  8: 108  64: 164     step    1.62",
        "  a loud one                 requests   4: 20   5: 25    8: 40  request    2.00",
        "full attention and a window  of                                   for a  growth",
        "  a quiet one                blocks    1: 202  8: 209  64: 265     step    1.31",
        "  a loud one                 requests   4: 19   5: 24    8: 39  request    2.05",
        "objects that each side still holds after rounds of requests with one prompt",
        "full attention               4 rounds  8 rounds  24 rounds  a round",
        "  scheduler's side                  5        11         11     0.00",
        "  worker's side                     3         7         23     1.00",
        "full attention and a window  4 rounds  8 rounds  24 rounds  a round",
        "  scheduler's side                  5        11         11     0.00",
        "  worker's side                     3         7         43     1.00",
        "objects that each side still holds after rounds of requests with different prompts",
        "full attention               4 rounds  8 rounds  24 rounds  a round",
        "  scheduler's side                  5        11         11     0.00",
        "  worker's side                     3         7         23     1.00",
        "full attention and a window  4 rounds  8 rounds  24 rounds  a round",
        "  scheduler's side                  3         7         23     1.00",
        "  worker's side                     3         7         43     1.00",
        "GROWS: a loud one, full attention and a window: with 8 requests instead of 4, a request is 2.1 times the "
        "work, most of it in f8",
        "GROWS: what the worker's side keeps of one prompt, full attention: after 24 rounds instead of 4 it is 20 "
        "things instead of 0, in c",
        "GROWS: what the worker's side keeps of one prompt, full attention and a window: after 24 rounds instead "
        "of 4 it is 40 things instead of 0, in c",
        "GROWS: what the scheduler's side keeps of different prompts, full attention and a window: after 24 "
        "rounds instead of 4 it is 23 things instead of 3, in a",
    ]


@pytest.mark.once
def test_what_grows_is_named_with_the_method_that_does_it(growth: Callable[..., tuple[int, str]]) -> None:
    code, out = growth("broken_connectors:Growing", "--traits", "none")
    assert code == 1
    said = [line for line in out.splitlines() if line.startswith("GROWS: ")]
    assert [line.split(": ")[1] for line in said] == [
        "a prompt's last steps, full attention",
        "a prompt, from arrival to end, full attention",
        "a request after others, full attention",
    ]
    assert "with 512 blocks instead of 64, a step is" in said[0]
    assert said[0].endswith("times the work, most of it in build_connector_meta")
    assert said[2].endswith("times the work, most of it in on_new_request")
    assert "nothing grows" not in out


@pytest.mark.once
def test_what_grows_with_one_model_is_named_with_the_model(growth: Callable[..., tuple[int, str]]) -> None:
    code, out = growth("broken_connectors:AsksAll", "--traits", "groups")
    assert code == 1
    titles = [line for line in out.splitlines() if line.endswith("growth")]
    assert [title.split("  ")[0] for title in titles] == ["full attention", "full attention and a window"]
    (said,) = (line for line in out.splitlines() if line.startswith("GROWS: "))
    assert said.startswith(
        "GROWS: a request beside others, full attention and a window: with 32 requests instead of 2, a step is "
    )
    assert said.endswith("times the work, most of it in build_connector_meta")


@pytest.mark.once
def test_who_looks_at_all_of_a_prompt_that_waits_is_named(growth: Callable[..., tuple[int, str]]) -> None:
    code, out = growth("broken_connectors:LooksAgain", "--traits", "none")
    assert code == 1
    said = [line for line in out.splitlines() if line.startswith("GROWS: ")]
    assert [line.split(": ")[1] for line in said] == [
        "a prompt that is being stored, full attention",
        "what the scheduler's side keeps of different prompts, full attention",
    ]
    assert said[0].endswith("times the work, most of it in get_num_new_matched_tokens")


def test_what_is_wrong_is_not_measured(growth: Callable[..., tuple[int, str]]) -> None:
    code, out = growth("broken_connectors:Stillborn", "--traits", "none")
    assert code == 1
    assert out.startswith("FAIL a prompt's last steps, full attention: NO-CRASH")
    assert out.endswith(
        "growth isn't measured for a connector that breaks an invariant: kv-sim conform "
        "broken_connectors:Stillborn\n"
    )


@pytest.mark.once
def test_what_is_known_to_be_wrong_may_be_left_out(
    growth: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"a prompt that was stored": SITUATIONS["a prompt that was stored"]._replace(sizes=(2, 4, 6))}
    monkeypatch.setattr("kv_sim.growth.command.situations_for", lambda subject: one)
    wrong = ("kv_sim.zoo.endings:LeavesItsSocketOpen", "--traits", "none")
    code, out = growth(*wrong)
    assert code == 1 and out.startswith("FAIL a prompt that was stored, full attention: CONSERVATION")
    code, out = growth(*wrong, "--without", "CONSERVATION")
    assert (code, out.splitlines()[-1]) == (0, "nothing grows")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a connector, or an offloading medium with --spec"),
        (["latter"], "did you mean 'later'?"),
        (["--spec", "nowhere:Spec"], "nowhere"),
        (["later", "--without", "CONTENTS"], "--without: unknown checker 'CONTENTS'; known: CONTENT, "),
    ],
)
def test_what_cannot_be_run(growth: Callable[..., tuple[int, str]], arguments: list[str], message: str) -> None:
    code, out = growth(*arguments)
    assert code == 2
    assert message in out


def test_these_sizes_and_models_are_tried() -> None:
    """Each size is four times the one before; states are handed over, as nobody stores them else."""
    assert {name: situation.sizes for name, situation in SITUATIONS.items()} == {
        "a prompt's last steps": (64, 256, 1024),
        "a prompt, from arrival to end": (64, 256, 1024),
        "a prompt that was stored": (64, 256, 1024),
        "a prompt that is being stored": (64, 256, 1024),
        "requests that decode": (8, 32, 128),
        "a request beside others": (8, 32, 128),
        "a request after others": (8, 32, 128),
    }
    assert {name: situation.sizes for name, situation in OF_PEERS.items()} == {
        "a prompt that is pulled": (64, 256, 1024),
        "a request beside holds": (8, 32, 128),
        "a pull after others": (8, 32, 128),
    }
    groups = {Trait.GROUPS}
    assert {name: tuple(model) for name, model in MODELS.items()} == {
        "full attention": ((GroupConfig(),), set(), False),
        "full attention and a window": ((GroupConfig(), GroupConfig("sliding", 30)), groups, False),
        "full attention and states": ((GroupConfig(), STATE), {*groups, Trait.STATES}, True),
    }
