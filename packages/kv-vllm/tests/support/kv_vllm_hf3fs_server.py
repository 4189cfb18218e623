"""vLLM's metadata server of a 3FS, and who asks it, without a socket."""

import asyncio
import logging

import requests
from requests.adapters import BaseAdapter
from vllm.distributed.kv_transfer.kv_connector.v1.hf3fs.hf3fs_metadata_server import (
    Hf3fsGlobalMetadataClient,
    Hf3fsMetadataServer,
)

logging.getLogger().setLevel(logging.WARNING)
"""Importing it has set it to INFO, for all that runs in this process."""


class AskedHere(BaseAdapter):
    """What is posted comes to the server without a socket."""

    def __init__(self, app):
        super().__init__()
        self._app = app

    def send(self, request, **kwargs):
        """Ask the server."""
        asked = {"type": "http.request", "body": request.body, "more_body": False}
        told = []

        async def receive():
            return asked

        async def send(message):
            told.append(message)

        scope = {"type": "http", "method": request.method, "path": request.path_url, "query_string": b""}
        headers = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
        asyncio.run(self._app({**scope, "headers": headers}, receive, send))
        response = requests.Response()
        response.request, response.url, response.status_code = request, request.url, told[0]["status"]
        response._content = b"".join(message.get("body", b"") for message in told[1:])
        return response

    def close(self):
        """Nothing is open."""


SERVERS = {}
"""The folder with the files -> the server that knows what is in them. There is one, the youngest."""


def server_of(connector):
    """That of a connector's folder."""
    folder = connector._storage_path
    if folder not in SERVERS:
        SERVERS.clear()
        SERVERS[folder] = Hf3fsMetadataServer()
    return SERVERS[folder]


class Client(Hf3fsGlobalMetadataClient):
    """vLLM's, which asks that server."""

    def _post(self, endpoint, json_data):
        [server] = SERVERS.values()
        self._session.mount("http://", AskedHere(server.app))
        return super()._post(endpoint, json_data)
