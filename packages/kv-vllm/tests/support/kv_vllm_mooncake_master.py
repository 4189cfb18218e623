"""Mooncake's real store on this machine: its master over TCP, and vLLM's MooncakeStoreConnector with an end."""

import json
import socket
import subprocess
import sys
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector

SEGMENT_BYTES = 1 << 24
"""The least that it takes."""


@contextmanager
def master(folder):
    """Run one; what is yielded is what a client is set up with."""
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    typed = [str(Path(sys.executable).with_name("mooncake_master")), f"--rpc_port={port}", "--metrics_port=0"]
    with Path(folder, "master.log").open("wb") as log:
        process = subprocess.Popen([*typed, "--enable_metric_reporting=false"], stdout=log, stderr=log)
        try:
            _wait_for(port, monotonic() + 30)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(port, deadline):
    while monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        sleep(0.05)
    raise AssertionError("Mooncake's master doesn't listen")


def write_config(folder, address):
    """Where ``MOONCAKE_CONFIG_PATH`` shall lead."""
    sizes = {"global_segment_size": SEGMENT_BYTES, "local_buffer_size": SEGMENT_BYTES}
    said = {"metadata_server": "P2PHANDSHAKE", "master_server_address": address, "protocol": "tcp", **sizes}
    path = Path(folder, "mooncake.json")
    path.write_text(json.dumps(said))
    return str(path)


class Real(MooncakeStoreConnector):
    """vLLM's over Mooncake's library, ending what it has begun: vLLM's leaves what asks, and what answers."""

    def shutdown(self):
        if self.connector_scheduler is not None:
            self.connector_scheduler.client.close()
        super().shutdown()
