"""The demo of a server: words by WebSocket, several clients at once, and clients that do what they should not."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
from types import ModuleType
from typing import Any

import pytest

from returnn_tf.cli.listen.listener import StreamingRecogniser
from returnn_tf.cli.runs.config import in_folder
from returnn_tf.cli.transcribe.model import find_model
from tests.cli.test_listen import trained  # noqa: F401 (a fixture)
from tests.cli.tones import RATE, tones
from tests.demos.demo_modules import demo_modules

pytest.importorskip("websockets", reason="needs the extra 'server'")


@pytest.fixture(scope="module")
def recogniser(trained: Any) -> StreamingRecogniser:  # noqa: F811
    model = find_model(str(trained / "out"), "server")
    with in_folder(model.folder):
        return StreamingRecogniser(model.config)


@pytest.fixture(scope="module")
def server() -> ModuleType:
    (module,) = demo_modules("server", "server")
    return module


def _run(server: ModuleType, recogniser: StreamingRecogniser, client: Any) -> Any:
    async def both() -> Any:
        async with await server.start(recogniser, RATE, 0) as running:
            (socket,) = running.sockets
            return await client("127.0.0.1:%d" % socket.getsockname()[1])

    return asyncio.run(both())


def _pieces(text: str) -> list[bytes]:
    content = (tones(text) * 2**15).astype("<i2").tobytes()
    return [content[start : start + 1000] for start in range(0, len(content), 1000)]


async def _say(address: str, text: str) -> list[dict[str, Any]]:
    """Send audio, and return all answers."""
    from websockets.asyncio.client import connect

    async with connect("ws://" + address) as socket:
        for piece in _pieces(text):
            await socket.send(piece)
        await socket.send("end")
        return [json.loads(answer) async for answer in socket]


def test_two_clients_at_once(server: ModuleType, recogniser: StreamingRecogniser) -> None:
    async def client(address: str) -> Any:
        return await asyncio.gather(_say(address, "cadb"), _say(address, "bad"))

    for answers, text in zip(_run(server, recogniser, client), ("cadb", "bad")):
        first, *partial, last = answers
        assert first == {"sample_rate": RATE}
        assert all(text.startswith(each["text"]) for each in partial)
        assert last["final"] and last["text"] == text and not partial[0]["final"]


@pytest.mark.parametrize("kind", ["half a sample", "text", "goes away", "nothing", "too much"])
def test_bad_clients(
    server: ModuleType, recogniser: StreamingRecogniser, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log, and the next client is served."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed

    message, logged = {
        "half a sample": (b"abc", "sent 3 bytes, which end within a sample"),
        "text": ("hello", "sent the text 'hello'"),
        "goes away": (_pieces("ab")[0], "went away after 0.1 s of audio"),
        "nothing": ("end", "0.0 s of audio"),
        "too much": (bytes(1 << 21), "went away after 0.0 s of audio"),
    }[kind]

    async def client(address: str) -> Any:
        socket = await connect("ws://" + address)
        await socket.recv()
        await socket.send(message)
        if kind == "goes away":
            await asyncio.sleep(0.05)
            socket.transport.abort()
        else:
            with pytest.raises(ConnectionClosed):
                while True:
                    await socket.recv()
        answers = await _say(address, "bad")
        for _ in range(200):  # the line about a client that is gone comes when the server sees it
            if logged in caplog.text:
                break
            await asyncio.sleep(0.01)
        return answers

    with caplog.at_level(logging.INFO, "server"):
        answers = _run(server, recogniser, client)
    assert answers[-1]["text"] == "bad"
    lines = [record.getMessage() for record in caplog.records if record.name == "server"]
    assert len(lines) == 2 and any(logged in line for line in lines), lines


def test_page(server: ModuleType, recogniser: StreamingRecogniser) -> None:
    """The page, nothing else, and no WebSocket for pages of other servers."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus

    async def client(address: str) -> Any:
        page, missing = await asyncio.gather(_status(address, "/"), _status(address, "/server.py"))
        with pytest.raises(InvalidStatus) as refused:
            await connect("ws://" + address, origin="http://other.example")
        return page, missing, refused.value.response.status_code

    assert _run(server, recogniser, client) == ((200, True), (404, False), 403)


async def _status(address: str, path: str) -> tuple[int, bool]:
    """Ask for a page; return the status, and whether it is one of HTML."""

    def ask() -> tuple[int, bool]:
        connection = http.client.HTTPConnection(address)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, b"<title>" in answer.read()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)
