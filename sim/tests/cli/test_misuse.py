"""What a command can't do is refused, with its usage, and says what it could."""

from collections.abc import Callable

import pytest
from kv_sim_command_lines import Result

MISUSES = [
    ("fuzz --connector latr", "unknown connector 'latr'; did you mean 'later'?; write your own as module:Class"),
    ("fuzz --connector latr", "did you mean 'later'?"),
    ("fuzz --connector :Later", "expected module:Class"),
    ("fuzz --connector no.such:Later", "there is no module 'no'"),
    ("fuzz --connector kv_sim.examples.later:LaterConector", "did you mean 'LaterConnector'?"),
    ("fuzz --connector kv_sim.world:World", "World is no connector"),
    ("fuzz --connector broken_connectors:Homeless", "can't create it: worker side: KeyError: 'home' (broken_"),
    ("fuzz --connector MultiConnector", "connectors: expected a non-empty list"),
    ("fuzz --connector later --extra '[1'", "--extra: no JSON: Expecting ',' delimiter at column 3"),
    *(
        (
            f"{command}memory --spec nowhere:Nothing",
            "memory uses no offloading medium, so 'Nothing' would not be ",
        )
        for command in ("conform ", "growth ")
    ),
    (
        "conform p2p+offload --spec kv_sim.offload:WorldCPUOffloadingSpec",
        "p2p+offload uses no offloading medium, so 'WorldCPUOffloadingSpec' would not be tested; leave the",
    ),
    (
        """fuzz --connector later --extra '{"spec_name": "X"}'""",
        "later uses no offloading medium, so 'X' would not",
    ),
    ("conform --spec nowhere:Nothing", "there is no module 'nowhere'"),
    ("conform offload --spec nowhere:Nothing", "there is no module 'nowhere'"),
    ("fuzz --connector later --extra 3", "--extra: expected an object, got 3 (a whole number)"),
    ("fuzz --connector OffloadingConnector", "CPUOffloadingSpec copies memory by itself, and a world's memory is"),
    (
        """conform --spec FileOffloadingSpec --extra '{"file_dir": "nowhere", "file_bytes_to_use": 1e6}'""",
        "FileOffloadingSpec copies memory by itself, and a world's memory is written by its devices alone; the "
        "subject 'offload-file' is the same with copies of the testbed's (kv_sim.offload:WorldFileOffl",
    ),
    (
        """fuzz --connector MultiConnector --extra '{"connectors": [{"kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1e6}}]}}]}'""",
        "the subject 'offload' is the same with copies of the testbed's (kv_sim.offload:WorldCPUOffloadingSpec)",
    ),
    (f"fuzz --connector later --extra {100_000 * '['}", "--extra: no JSON that can be read: "),
    (
        f"fuzz --connector later --extra 1{5000 * '0'}",
        "--extra: no JSON that can be read: Exceeds the limit (4300 digits)",
    ),
    (
        """fuzz --connector MultiConnector --extra '{"connectors": 7}'""",
        "connectors: expected a non-empty list of KVTransferConfig mappings, got 7 (int)",
    ),
    (
        """fuzz --connector MultiConnector --extra '{"connectors": [7]}'""",
        "connectors[0]: expected a mapping, got 7 (int)",
    ),
    (
        """fuzz --connector MultiConnector
        --extra '{"connectors": [{"kv_connector": "x", "kv_connector_extra_config": 3}]}'""",
        "connectors[0].kv_connector_extra_config: expected dict, got 3 (int)",
    ),
    (
        "fuzz --connector later --traits rank",
        "--traits: unknown trait 'rank'; known: clients, counts, events, failures",
    ),
    ("fuzz --connector later --traits rank", "did you mean 'ranks'?"),
    ("fuzz --connector later --traits ,", "--traits: expected names"),
    ("fuzz --connector later --traits groups", "with several KV cache groups"),
    ("fuzz --extra {}", "--extra applies to one connector"),
    ("fuzz --traits ranks", "--traits applies to one connector"),
    ("fuzz --seed x", "--seed: a seed is a whole number or 0x…, got 'x'"),
    ("fuzz --seeds 7", "--seeds: expected A-B, got '7'"),
    ("fuzz --seeds 7-3", "--seeds: 3 comes before 7"),
    ("fuzz --seeds 1-2 --seed 1", "--seeds already says which seeds to run"),
    ("fuzz --histories 0", "--histories: more than 0, got 0"),
    ("fuzz --actions -1", "--actions: more than 0, got -1"),
    ("fuzz --without CONTNT", "unknown checker 'CONTNT'; known: CONTENT, "),
    ("fuzz --without CONTNT", "did you mean 'CONTENT'?"),
    ("fuzz --perfetto x.json", "--perfetto writes the history of one connector"),
    ("fuzz --connector later --perfetto no/x.json", "there is no such folder"),
    ("fuzz --engine vlm", "unknown engine 'vlm'; known: builtin"),
    ("fuzz --engine buildin", "did you mean 'builtin'?"),
    ("campaign --engine buildin", "did you mean 'builtin'?"),
    ("replay-schedule no.jsonl", "no.jsonl: No such file"),
    ("campaign --jobs 0", "--jobs: more than 0, got 0"),
    ("campaign --minutes nan --jobs 1", "--minutes: a finite number, got nan"),
    ("campaign --minutes inf --jobs 1", "--minutes: a finite number, got inf"),
    ("campaign --minutes 1 --histories 1", "--minutes and --histories: give one of them"),
    ("fuz", "invalid choice: 'fuz'"),
    ("", "required: COMMAND"),
]


@pytest.mark.parametrize(("line", "message"), MISUSES)
def test_a_misuse_is_explained(kv_sim: Callable[[str], Result], line: str, message: str) -> None:
    code, out, err = kv_sim(f"kv-sim {line}")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert "FAIL" not in out


@pytest.mark.parametrize(
    ("line", "usage", "unknown"),
    [
        ("fuzz --histor 3", "kv-sim fuzz", "--histor 3; did you mean --histories?"),
        ("fuzz later", "kv-sim fuzz", "later; did you mean --connector later?"),
        (
            "replay mooncake-synthetic --max-running 40 --x --tp-size=2",
            "kv-sim replay",
            "--max-running 40 --x --tp-size=2; of --fidelity engine: --max-running and --tp-size",
        ),
        ("size mooncake-synthetic --goal x", "kv-sim size", "--goal x; of --fidelity engine: --goal"),
        ("replay mooncake-synthetic --gpu H100", "kv-sim replay", "--gpu H100; of --fidelity engine: --gpu"),
        ("size mooncake-synthetic --fidelity engine --gaol x", "kv-sim size", "--gaol x; did you mean --goal?"),
        (
            "replay mooncake-synthetic --capacitty=64GiB --capacitty 1",
            "kv-sim replay",
            "--capacitty=64GiB --capacitty 1; did you mean --capacity?",
        ),
        (
            "replay mooncake-synthetic --disk /mnt --gpu L4",
            "kv-sim replay",
            "--disk /mnt --gpu L4; of --fidelity engine: --gpu; --disk is of size",
        ),
        (
            "growth later --histories 3",
            "kv-sim growth",
            "--histories 3; --histories is of fuzz and conform and campaign",
        ),
        ("replay mooncake-synthetic --limit 3", "kv-sim replay", "--limit 3"),
        (
            "replay mooncake-synthetic --capacity 2GiB 4GiB 8GiB",
            "kv-sim replay",
            "4GiB 8GiB; --capacity takes several with commas between them: 2GiB,4GiB",
        ),
        (
            "size mooncake-synthetic --policy=lru arc",
            "kv-sim size",
            "arc; --policy takes several with commas between them: lru,arc",
        ),
        (
            "fuzz --without HITS WORK",
            "kv-sim fuzz",
            "WORK; --without takes several with commas between them: HITS,WORK",
        ),
        ("replay mooncake-synthetic --block-size 16 32", "kv-sim replay", "32"),
        ("replay mooncake-synthetic twice", "kv-sim replay", "twice"),
        ("conform later twice", "kv-sim conform", "twice"),
        ("--log fuzz", "kv-sim [-h] [--version] COMMAND", "--log"),
    ],
)
def test_what_a_command_does_not_know_is_refused_with_its_usage(
    kv_sim: Callable[[str], Result], line: str, usage: str, unknown: str
) -> None:
    code, out, err = kv_sim(f"kv-sim {line}")
    assert (code, out) == (2, "")
    assert err.startswith(f"usage: {usage} ")
    assert err.endswith(f"error: unrecognized arguments: {unknown}\n")
