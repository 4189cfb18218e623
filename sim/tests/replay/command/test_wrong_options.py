"""Options that can't be meant are refused: exit code 2, one line that names them."""

import pytest
from kv_sim_refusals import GOOD, line, refused

OPTIONS = {
    ("--capacity", "64"): "--capacity 64: 64 what? Expected 20000blocks, 10Mtokens, 64GiB or 64GB",
    ("--capacity", "64g"): "--capacity 64g: 'g' can mean GB (powers of 1000) or GiB (powers of 1024): say which",
    ("--capacity", "64G"): "--capacity 64G: 'G' can mean GB (powers of 1000) or GiB (powers of 1024): say which",
    ("--capacity", "64k"): "--capacity 64k: 'k' can mean KB (powers of 1000) or KiB (powers of 1024): say which",
    ("--capacity", "64Mbit"): (
        "--capacity 64Mbit: 'Mbit' would be bits: say MB (powers of 1000) or MiB (powers of 1024)"
    ),
    ("--capacity", "64Gb"): "--capacity 64Gb: 'Gb' would be bits: say GB (powers of 1000) or GiB (powers of 1024)",
    ("--capacity", "64gigs"): (
        "--capacity 64gigs: unknown unit 'gigs'; expected 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    ("--capacity", "64xtokens"): (
        "--capacity 64xtokens: unknown unit 'xtokens'; expected 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    (
        "--capacity",
        "64bit",
    ): "--capacity 64bit: unknown unit 'bit'; expected 20000blocks, 10Mtokens, 64GiB or 64GB",
    (
        "--capacity",
        "64Tib",
    ): "--capacity 64Tib: 'Tib' would be bits: say TB (powers of 1000) or TiB (powers of 1024)",
    ("--capacity", "GiB"): (
        "--capacity GiB: expected none, or a size such as 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    ("--capacity", "5blocks,None"): (
        "--capacity None: expected none, or a size such as 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    ("--gpu-capacity", "0"): "--gpu-capacity 0: 0 what? Expected 20000blocks, 10Mtokens, 64GiB or 64GB",
    ("--gpu-capacity", "off"): (
        "--gpu-capacity off: expected none, or a size such as 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    ("--disk-capacity", "none"): (
        "--disk-capacity none: expected a size such as 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    ("--capacity", "1e100blocks"): (
        "--capacity 1e100blocks: expected a size such as 20000blocks, 10Mtokens, 64GiB or 64GB"
    ),
    (
        "--capacity",
        "64GiB",
    ): "--capacity 64GiB: the bytes of a token are unknown; give --model or --bytes-per-token",
    ("--capacity", "100tokens"): "--capacity 100tokens: less than one block of 512 tokens",
    ("--capacity", "1MiB", "--bytes-per-token", "131072"): (
        "--capacity 1MiB: less than one block of 512 tokens, which takes 64 MiB"
    ),
    ("--gpu-capacity", "1"): "--gpu-capacity 1: 1 what? Expected 20000blocks, 10Mtokens, 64GiB or 64GB",
    ("--policy", "lruu"): "unknown eviction_policy 'lruu'; known: arc, lru, s3fifo, sieve; did you mean 'lru'?",
    ("--model", "lama"): (
        "--model: unknown model 'lama'; known: deepseek-v3, kimi-k2, llama-3.1-405b, llama-3.1-70b, llama-3.1-8b, "
        "llama-3.2-3b, mistral-7b, mixtral-8x7b, qwen2.5-14b, qwen2.5-32b, qwen2.5-72b, qwen2.5-7b, "
        "qwen3-235b-a22b, qwen3-30b-a3b, qwen3-32b, qwen3-8b; any other: the path of its config.json, or "
        "--bytes-per-token"
    ),
    ("--kv-dtype", "fp7", "--model", "qwen3-8b"): (
        "--kv-dtype: unknown dtype 'fp7'; known: bf16, fp16, fp8, int8; did you mean 'fp8'?"
    ),
    ("--model", "qwen3-8b", "--bytes-per-token", "7"): "--model and --bytes-per-token: give one of them",
    ("--bytes-per-token", "0"): "--bytes-per-token: expected 1 to 1099511627776, got 0",
    ("--bytes-per-token", "2TiB"): "--bytes-per-token: expected 1 to 1099511627776, got 2199023255552",
    ("--bytes-per-token", "128k"): (
        "--bytes-per-token 128k: 'k' can mean KB (powers of 1000) or KiB (powers of 1024): say which"
    ),
    ("--bytes-per-token", "5000.5"): "--bytes-per-token 5000.5: 5000.5 what? Expected for example 64GiB or 64GB",
    ("--bytes-per-token", "many"): "--bytes-per-token many: expected a size such as 64GiB or 64GB",
    ("--bytes-per-token", "1" + "0" * 400): f"--bytes-per-token: expected 1 to 1099511627776, got 1{'0' * 400}",
    ("--format", "moncake"): (
        "--format: unknown format 'moncake'; known: aibrix, aiperf, aiperf-inputs, aiperf-turns, atif, "
        "azure, bailian, baseten, baseten-text, bedrock, bench, burstgpt, chatgpt, claude-ai, claude-code, cline, "
        "codex, continue, conversations, conversations-dated, copilot-cli, deepseek, dynamo, gemini-cli, goose, "
        "guidellm, har, langfuse, langsmith, librechat, litellm, lm-studio, lmbench, lmcache, mooncake, "
        "mooncake-lengths, open-webui, openai, openai-table, opencode, otel, pi, recorded, sagemaker, servegen, "
        "sglang, sglang-log, sglang-metrics, splitwise, vidur, vllm, weka; "
        "did you mean 'mooncake'?"
    ),
    ("--time-unit", "m"): "--time-unit: unknown unit 'm'; known: ms, ns, s, us; did you mean 'ms'?",
    ("--block-size", "0"): "--block-size: expected at least 1, got 0",
    ("--block-size", "100000001"): "--block-size: expected at most 100000000, got 100000001",
    ("--requests", "0"): "--requests: expected at least 1, got 0",
    ("--seed", "7"): "--seed is for --assume-sharing, which isn't given",
    ("--kv-dtype", "fp8", "--bytes-per-token", "7"): "--kv-dtype needs --model, which isn't given",
    ("--stagger", "-1"): "--stagger: expected at least 0 seconds, got -1",
    ("--stagger", "nan"): "--stagger: expected at least 0 seconds, got nan",
    ("--stagger", "inf"): "--stagger: expected at least 0 seconds, got inf",
    ("--jobs", "0"): "--jobs: more than 0, got 0",
    ("--assume-sharing", "some"): (
        "--assume-sharing some: expected 'none' or 'zipf[:prefixes=100,tokens=1024,skew=1,share=0.8]'"
    ),
    ("--assume-sharing", "zipf:share=2"): (
        "--assume-sharing zipf:share=2: prefixes is at least 1, share at most 1"
    ),
    ("--assume-sharing", "zipf:prefixes=0"): (
        "--assume-sharing zipf:prefixes=0: prefixes is at least 1, share at most 1"
    ),
    ("--assume-sharing", "zipf:tokens=1.5"): (
        "--assume-sharing zipf:tokens=1.5: tokens: expected a number of at least 0, got '1.5'"
    ),
    ("--assume-sharing", "zipf:skew=-1"): (
        "--assume-sharing zipf:skew=-1: skew: expected a number of at least 0, got '-1'"
    ),
    ("--assume-sharing", "zipf:prefixes=1e9"): (
        "--assume-sharing zipf:prefixes=1e9: prefixes: expected a number of at least 0, got '1e9'"
    ),
    ("--assume-sharing", "zipf:share"): (
        "--assume-sharing zipf:share: share: expected a number of at least 0, got ''"
    ),
    ("--assume-sharing", "zipf:shares=1"): (
        "--assume-sharing zipf:shares=1: unknown setting 'shares'; known: prefixes, share, skew, tokens; "
        "did you mean 'share'?"
    ),
    ("--assume-sharing", "none:share=1"): (
        "--assume-sharing none:share=1: expected 'none' or 'zipf[:prefixes=100,tokens=1024,skew=1,share=0.8]'"
    ),
    ("--html", "/nowhere/report.html"): "--html /nowhere/report.html: there is no such folder",
    ("--json", "/nowhere/report.json"): "--json /nowhere/report.json: there is no such folder",
}


@pytest.mark.parametrize("options", list(OPTIONS), ids=" ".join)
def test_an_option(tmp_path, capsys, options):
    file = tmp_path / "trace.jsonl"
    file.write_text(GOOD + "\n")
    assert refused(capsys, "replay", file, *options) == OPTIONS[options]


def test_options_of_one_command(tmp_path, capsys):
    file = tmp_path / "trace.jsonl"
    file.write_text(GOOD + "\n")
    assert refused(capsys, "size", file, "--points", "1") == "--points: expected at least 2, got 1"
    said = refused(capsys, "size", file, "--points", "3", "--capacity", "5blocks")
    assert said == "--points and --capacity: give one of them"
    assert refused(capsys, "replay", file, "--store-threshold", "-1") == (
        "--store-threshold: expected at least 0, got -1"
    )
    assert refused(capsys, "replay", file, "--write-oracle", "/nowhere/x") == (
        "--write-oracle /nowhere/x: there is no such folder"
    )
    two = tmp_path / "two.jsonl"
    two.write_text(line(input_length=1024, hash_ids=[1, 2]) + line(input_length=1024, hash_ids=[3, 2]))
    assert refused(capsys, "replay", two, "--ids", "prefix") == (
        f"{two}: --ids prefix, but these aren't prefix ids: id 2 comes after 1 and after 3 ({two}:2)"
    )
