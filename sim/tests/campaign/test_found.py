"""What a campaign adds up, and what it says of that. No history is run here."""

from collections import Counter

from kv_sim_campaigns import failure, reached

from kv_sim.campaign.found import Batch, Campaign, missing, tables
from kv_sim.console.table import aligned
from kv_sim.history.coverage import Coverage
from kv_sim.history.expected import STATES, Expected

EXPECTED = Expected(
    pairs=(("step", "waiting"), ("step", "running"), ("abort", "running"), ("abort", "waiting")),
    rare=(("reset", "running"),),
    situations=("a", "b", "match: a load ends within a block", "c"),
    excluded={
        ("abort", "aborted"): "it has ended",
        ("turn", "running"): "none of these has turns",
        ("turn", "waiting"): "none of these has turns",
        ("turn", "aborted"): "none of these has turns",
    },
    excluded_situations={
        "d": "none of these loses copies",
        "e": "none of these has turns",
        "f": "it has ended",
        "g": "it has ended",
    },
)


def test_all_that_was_missed_is_named_in_the_order_of_what_was_expected() -> None:
    assert missing(Campaign(), EXPECTED) == [
        "never reached: step while a request is 'waiting' or 'running'",
        "never reached: abort while a request is 'running' or 'waiting'",
        "never reached: a",
        "never reached: b",
        "never reached: c",
    ]


def test_all_that_can_not_be_is_named_by_the_alphabet() -> None:
    pairs = dict.fromkeys(EXPECTED.pairs, 1)
    odd = {("turn", "odd"): 2, ("reset", "running"): 1, ("abort", "aborted"): 3, ("add", "stopped"): 4}
    found = reached({**pairs, **odd}, {**dict.fromkeys(EXPECTED.situations, 1), "y": 5, "x": 6})
    assert missing(found, EXPECTED) == [
        "reached 3 times, but it can't be: abort while a request is 'aborted' (it has ended)",
        "reached 4 times, but it can't be: add while a request is 'stopped' "
        "(a request that stops is held for a store, or gone at once)",
        "reached 2 times, but it can't be: turn while a request is 'odd' (no such state)",
        "reached 6 times, but not in the table: x",
        "reached 5 times, but not in the table: y",
    ]


def test_the_tables_are_these() -> None:
    lines = tables(reached({("step", "waiting"): 7, ("turn", "running"): 1}, {"a": 3, "d": 4}), EXPECTED)
    table, rest = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert table[0].split() == ["action", "\\", "a", "request", "is", *" ".join(STATES).split()]
    columns = {state: number for number, state in enumerate(STATES, 1)}
    rows = {line.split()[0]: line.split() for line in table[1:]}
    assert list(rows) == ["step", "abort", "turn"]
    assert [rows["step"][columns[state]] for state in ("waiting", "running")] == ["7", "0"]
    assert rows["abort"][columns["aborted"]] == "-"
    assert [rows["turn"][columns[state]] for state in ("waiting", "running", "aborted")] == ["-", "1", "-"]
    situations, reasons = rest[: rest.index("")], rest[rest.index("") + 1 :]
    assert [line.rsplit(maxsplit=1) for line in situations] == [
        ["situation", "times"],
        *(["a", "3"], ["b", "0"], ["match: a load ends within a block", "0"], ["c", "0"]),
        *(["d", "-"], ["e", "-"], ["f", "-"], ["g", "-"]),
    ]
    assert reasons == [
        "not expected (-):",
        "  it has ended: abort × aborted, f, g",
        "  none of these has turns: turn × running, turn × waiting, turn × aborted and 1 more",
        "  none of these loses copies: d",
    ]


def test_words_stand_to_the_left_and_numbers_to_the_right() -> None:
    rows = [["name", "of", "count"], ["a", "b", "7"], ["somebody", "nobody", ""]]
    assert aligned(rows) == ["name          of  count", "a              b      7", "somebody  nobody"]
    assert aligned(rows, left=2) == ["name      of      count", "a         b           7", "somebody  nobody"]


def test_batches_are_added_up() -> None:
    campaign, coverage = Campaign(), Coverage()
    coverage.situations["a"] = 2
    for steps, seed in ((3, 5), (4, None)):
        campaign.take(Batch(coverage, Counter(memory=2), steps, {"memory": failure(seed)}))
    assert (campaign.steps, campaign.histories, campaign.coverage.situations) == (7, {"memory": 4}, {"a": 4})
    assert campaign.failures["memory"].seed is None, "which is the first of all"
    campaign.take(Batch(failures={"memory": failure(0)}))
    assert campaign.failures["memory"].seed is None
    assert (campaign.was_interrupted, campaign.seconds) == (False, 0)


def test_the_lowest_seed_is_kept_whichever_comes_first() -> None:
    campaign, kept = Campaign(), []
    for seed in (5, 3, 4, 1, 0, 1):
        campaign.take(Batch(failures={"memory": failure(seed)}))
        kept.append(campaign.failures["memory"].seed)
    assert kept == [5, 3, 3, 1, 0, 0]


def test_the_first_crash_is_kept() -> None:
    campaign = Campaign()
    for crash in (None, "one", "another", None):
        campaign.take(Batch(crash=crash))
    assert campaign.crash == "one"
