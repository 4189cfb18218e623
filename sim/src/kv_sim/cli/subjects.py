"""``kv-sim subjects``: the connectors that the testbed knows, with what they claim."""

import argparse
import json
from collections.abc import Mapping

from kv_sim.console.output import FINE, say
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.subject import PEERS, SHARES, Subject, Trait


def subjects(options: argparse.Namespace) -> int:
    """Run the command."""
    for text in subject_lines(SUBJECTS):
        say(text)
    return FINE


def subject_lines(subjects: Mapping[str, Subject]) -> list[str]:
    """The known subjects, with what they claim, and the option that another connector needs to be driven so."""
    width = max(map(len, subjects))
    lines = []
    for name, subject in subjects.items():
        traits = ", ".join(trait.value for trait in Trait if trait in subject.traits) or "none"
        children = subject.extra_config.get("connectors")
        inside = f" over {', '.join(child['kv_connector'] for child in children)}" if children else ""
        lines.append(f"{name:<{width}}  {subject.kv_connector}{inside} ({subject.module_path or 'installed'})")
        lines.append(f"{'':<{width}}  claims: {traits}")
        if subject.serves_peers or subject.shares_store:
            option = SHARES if subject.shares_store else PEERS[subject.engines]
            lines.append(f"{'':<{width}}  as with: {option}")
        extra = {key: value for key, value in subject.extra_config.items() if key != "connectors"}
        if extra:
            lines.append(f"{'':<{width}}  extra config: {json.dumps(extra)}")
    return lines
