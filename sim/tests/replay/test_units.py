"""Sizes as people type them, numbers as they are shown, and the bytes of a token."""

import pytest

from kv_api import ConfigError
from kv_sim.replay.kv_bytes.models import MODELS
from kv_sim.replay.report.phrases import gain_shown, show_seconds
from kv_sim.replay.timed import MODELS as MODELS_WITH_WEIGHTS
from kv_sim.replay.units import (
    Footprint,
    counted,
    parse_bytes,
    parse_bytes_of_a_token,
    parse_capacity,
    show_bytes,
    show_count,
)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("7blocks", 7),
        ("2kblocks", 2000),
        ("1.5M tokens", 2929),
        ("1024tok", 2),
        ("64GiB", 65536),
        ("64Gi", 65536),
        ("64gib", 65536),
        ("64GB", 61035),
        ("64gb", 61035),
        ("1_024MiB", 1024),
        ("0.5TiB", 524288),
        (" 2e3 Ktokens ", 3906),
        ("1.5blocks", 1),
        ("1token", None),
        ("512token", 1),
        ("3Gblock", 3_000_000_000),
        ("2 M blocks", 2_000_000),
        ("1.001kblocks", 1001),
        ("9007199254740993blocks", 9007199254740993),
    ],
)
def test_capacities(text, blocks):
    if blocks is not None:
        assert parse_capacity(text, Footprint(512, 2048)) == blocks
        return
    with pytest.raises(ConfigError) as caught:
        parse_capacity(text, Footprint(512, 2048))
    assert str(caught.value) == f"--capacity {text}: less than one block of 512 tokens, which takes 1 MiB"


def test_every_unit_of_bytes():
    powers = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
    known = {"B": 1, **{f"{letter}B": 1000**power for letter, power in powers.items()}}
    for letter in "KMGT":
        known |= {f"{letter}iB": 1024 ** powers[letter], f"{letter}i": 1024 ** powers[letter]}
    known |= {unit.lower(): scale for unit, scale in known.items() if unit != "B"}
    for unit, scale in known.items():
        assert parse_bytes(f"3{unit}", "--size") == parse_bytes(f" 3 {unit} ", "--size") == 3 * scale, unit
    for unit in ("b", "kIB", "Kib", "mB", "PB", "KiBs", "blocks"):
        with pytest.raises(ConfigError, match=r"--size 3" + unit):
            parse_bytes(f"3{unit}", "--size")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("3blocks", "expected a size in bytes, for example 64GiB or 64GB"),
        ("3M tokens", "expected a size in bytes, for example 64GiB or 64GB"),
        (" 3 ", "3 what? Expected for example 64GiB or 64GB"),
        ("3Xb", "unknown unit 'Xb'; expected for example 64GiB or 64GB"),
        ("3Mb", "'Mb' would be bits: say MB (powers of 1000) or MiB (powers of 1024)"),
        ("x", "expected a size such as 64GiB or 64GB"),
    ],
)
def test_what_is_no_number_of_bytes(text, problem):
    with pytest.raises(ConfigError) as caught:
        parse_bytes(text, "--size")
    assert str(caught.value) == f"--size {text}: {problem}"


def test_numbers_for_people():
    counts = {
        0: "0", 9999: "9999", 10_000: "10k", 12_349: "12.3k", 999_499: "999k", 999_500: "1M", 999_900: "1M",
        1_234_999: "1.23M", 12_345_678: "12.3M", 999_499_999: "999M", 999_500_000: "1G", 1_234_999_999: "1.23G",
        999_499_999_999: "999G", 999_500_000_000: "1T", 12_345_678_000_000: "12.3T", 999_499_999_999_999: "999T",
        999_500_000_000_000: "1e+15", 512 * 10**30: "5.12e+32",
    }  # fmt: skip
    assert {count: show_count(count) for count in counts} == counts
    sizes = {
        0: "0 B", 99: "99 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 100_000: "97.7 KiB",
        1023 * 1024: "1023 KiB", 2**20: "1 MiB", 1234 * 2**20: "1.21 GiB", 2**30: "1 GiB",
        1000 * 2**30: "1000 GiB", 2**40: "1 TiB", 3 * 2**39: "1.5 TiB", 2**41: "2 TiB", 999 * 2**40: "999 TiB",
        999_400 * 2**30: "976 TiB", 1_023_300 * 2**30: "999 TiB", 1_023_600 * 2**30: "1,000 TiB",
        1000 * 2**40: "1,000 TiB", 12_345 * 2**40: "12,345 TiB",
    }  # fmt: skip
    assert {size: show_bytes(size) for size in sizes} == sizes
    seconds = {
        0.5: "0.5 s", 119.0: "119 s", 120.0: "2 min", 7199.0: "120 min", 7200.0: "2 h", 172_799.0: "48 h",
        172_800.0: "2 d", 1e6: "11.6 d", 999.4 * 86_400: "999 d", 999.6 * 86_400: "1,000 d", 1e9: "11,574 d",
    }  # fmt: skip
    assert {time: show_seconds(time) for time in seconds} == seconds


def test_a_gain_has_two_digits_or_is_a_whole_number():
    gains = {0.0: "+0 %", 0.123: "+0.12 %", 99.4: "+99 %", 99.5: "+100 %", 100.0: "+100 %", 12345.0: "+12.3k %"}
    gains |= {-0.123: "-0.12 %", -99.4: "-99 %", -2785.0: "-2785 %", -12345.0: "-12.3k %"}
    assert {points: gain_shown(points) for points in gains} == gains


def test_bytes_of_a_token_are_a_sum_that_is_shown():
    assert MODELS["llama-3.1-70b"].bytes_per_token("bf16") == 80 * 2 * 8 * 128 * 2 == 327_680
    assert MODELS["deepseek-v3"].bytes_per_token("bf16") == 61 * 576 * 2 == 70_272
    assert MODELS["deepseek-v3"].sum_shown("fp8") == (
        "61 layers × 1 (latent) × 1 KV heads × 576 × 1 bytes (fp8) = 35,136 bytes a token"
    )
    assert {name: model.bytes_per_token("int8") for name, model in MODELS.items()} == {
        "llama-3.1-8b": 65_536,
        "llama-3.1-70b": 163_840,
        "llama-3.1-405b": 258_048,
        "llama-3.2-3b": 57_344,
        "mistral-7b": 65_536,
        "mixtral-8x7b": 65_536,
        "qwen2.5-7b": 28_672,
        "qwen2.5-14b": 98_304,
        "qwen2.5-32b": 131_072,
        "qwen2.5-72b": 163_840,
        "qwen3-8b": 73_728,
        "qwen3-32b": 131_072,
        "qwen3-30b-a3b": 49_152,
        "qwen3-235b-a22b": 96_256,
        "deepseek-v3": 35_136,
        "kimi-k2": 35_136,
    }
    for name, model in MODELS_WITH_WEIGHTS.items():
        attention, dtype = MODELS[name.lower().removesuffix("-fp8")], "fp8" if name.endswith("-FP8") else "bf16"
        assert model.kv_bytes_per_token(1) == attention.bytes_per_token(dtype), name
    assert MODELS["qwen3-32b"].bytes_per_token("fp8") * 2 == MODELS["qwen3-32b"].bytes_per_token("bf16")


@pytest.mark.parametrize("size", [-1, 0, (1 << 40) + 1, 10**400])
def test_bytes_of_a_token_that_no_model_has(size):
    with pytest.raises(ConfigError, match=f"^bytes_per_token: expected 1 to 1099511627776, got {size}$"):
        Footprint(16, size)
    assert [Footprint(16, most).bytes_per_token for most in (None, 1, 1 << 40)] == [None, 1, 1 << 40]


def test_one_of_something_is_not_many():
    said = {0: "0 blocks", 1: "1 block", 2: "2 blocks", 1234: "1,234 blocks"}
    assert {count: counted(count, "block", "blocks") for count in said} == said


@pytest.mark.parametrize("text", ["131072", "128KiB", "128 KiB", "131.072kB", "131072B"])
def test_the_bytes_of_a_token_need_no_unit(text):
    assert parse_bytes_of_a_token(text, "--bytes-per-token") == 131_072
