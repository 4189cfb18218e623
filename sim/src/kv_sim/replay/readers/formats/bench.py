"""Results of ``vllm bench serve --save-detailed`` and SGLang's ``bench_serving --output-details``: a run a record.

Each request has its lengths, and in newer versions the time at which it was sent, in seconds. No ids.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.fields import number, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record
from kv_sim.replay.readers.required import list_at


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    inputs, outputs = (list_at(record[field], field) for field in ("input_lens", "output_lens"))
    times, errors = (
        None if record.get(field) is None else list_at(record[field], field) for field in ("start_times", "errors")
    )
    for field, found in (("output_lens", outputs), ("start_times", times), ("errors", errors or None)):
        if found is not None and len(found) != len(inputs):
            raise MalformedError(f"{field}: expected {len(inputs)}, as many as input_lens, got {len(found)}")
    model = text_of(record, "model_id")
    sent: list[int | float | None] = [None] * len(inputs)
    order = list(range(len(inputs)))
    if times is not None:  # requests that were sent together may be in any order
        found = [number({"start_times": time}, "start_times") for time in times]
        sent, order = [*found], sorted(order, key=found.__getitem__)
    for index in order:
        yield Record(
            sent[index],
            whole({"input_lens": inputs[index]}, "input_lens"),
            whole({"output_lens": outputs[index]}, "output_lens"),
            None,
            model=model,
            has_failed=bool(errors and errors[index]),
        )


BENCH = Format("bench", Container.JSON, ("input_lens", "output_lens"), _parse)
