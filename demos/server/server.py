#!/usr/bin/env python3
"""A server of speech recognition for browsers on this machine: audio in and words out by WebSocket, while one speaks.

    demos/server/server.py out/streaming_model          and open http://127.0.0.1:8765 in a browser

A connection is one stream of audio. The server begins with the sample rate; the client sends binary messages of
samples (int16, little endian, one channel) and, at the end, the text "end":

    server: {"sample_rate": 16000}
    client: samples, samples, ...                 server: {"text": "set the kit", "seconds": 0.84, "final": false}, ...
    client: "end"                                 server: {"text": "set the kitchen light", ..., "final": true}

It listens on the loopback interface only, and takes browsers only from its own page. It needs the package websockets:
pip install 'returnn_tf[server]'.
"""

from __future__ import annotations

import argparse
import asyncio
import http
import json
import logging
import os
import sys

import numpy as np

from returnn_tf.cli.listen.listener import Listener, StreamingRecogniser, Update
from returnn_tf.cli.runs.config import in_folder
from returnn_tf.cli.transcribe.model import find_model
from returnn_tf.config.errors import UserError

try:
    from websockets.asyncio.server import Server, ServerConnection, serve
    from websockets.datastructures import Headers
    from websockets.exceptions import ConnectionClosed
    from websockets.http11 import Request, Response
except ImportError:
    sys.exit("This server needs the package websockets: pip install 'returnn_tf[server]'")

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = "127.0.0.1"
PORT = 8765
PAUSE = 1.0  # seconds after which an utterance ends
MOST_BYTES = 1 << 20  # of a message: half a minute of audio
log = logging.getLogger("server")


class ProtocolError(Exception):
    """A client sent something that is no part of the protocol."""


async def start(recogniser: StreamingRecogniser, sample_rate: int, port: int = PORT) -> Server:
    """Start the server; to be used with ``async with``.

    :param sample_rate: of the audio that clients send, in Hz
    :param port: 0: any free one
    """
    Listener.warm_up(recogniser, sample_rate)

    async def handle(connection: ServerConnection) -> None:
        await _converse(connection, Listener(recogniser, sample_rate, pause=PAUSE), sample_rate)

    origins = [None, *("http://%s:%d" % (host, port) for host in (HOST, "localhost"))]
    quiet = logging.getLogger("websockets.of.server")  # what it says is in our own line for each client
    quiet.setLevel(logging.CRITICAL)
    return await serve(handle, HOST, port, process_request=_page, origins=origins, max_size=MOST_BYTES, logger=quiet)


def _page(connection: ServerConnection, request: Request) -> Response | None:
    """Answer a browser that asks for the page; None for a WebSocket."""
    if "websocket" in request.headers.get("Upgrade", "").lower():
        return None
    if request.path != "/":
        return connection.respond(http.HTTPStatus.NOT_FOUND, "There is only /\n")
    with open(os.path.join(HERE, "index.html"), "rb") as file:
        body = file.read()
    headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body)), "Connection": "close"}
    return Response(200, "OK", Headers(headers), body)


async def _converse(connection: ServerConnection, listener: Listener, sample_rate: int) -> None:
    """Recognise what one client sends; whatever it does, there is one line in the log, and the server goes on."""
    client = "%s:%s" % connection.remote_address[:2]
    try:
        await connection.send(json.dumps({"sample_rate": sample_rate}))
        async for message in connection:
            if message == "end":
                if listener.seconds:
                    await _send(connection, await asyncio.to_thread(listener.end))
                log.info("%s: %.1f s of audio", client, listener.seconds)
                return
            await _send(connection, await asyncio.to_thread(listener.hear, _samples(message)))
        log.warning("%s: went away after %.1f s of audio, before its end", client, listener.seconds)
    except ConnectionClosed as exc:
        log.warning("%s: went away after %.1f s of audio: %s", client, listener.seconds, exc)
    except (ProtocolError, UserError) as exc:
        log.warning("%s: %s", client, exc)
        await connection.close(1003, str(exc)[:100])


def _samples(message: str | bytes) -> np.ndarray:
    if isinstance(message, str):
        raise ProtocolError('sent the text %r, but samples or "end" were expected' % message[:20])
    if len(message) % 2:
        raise ProtocolError("sent %d bytes, which end within a sample of 2 bytes" % len(message))
    return np.frombuffer(message, "<i2").astype("float32") / 2**15


async def _send(connection: ServerConnection, updates: list[Update]) -> None:
    for update in updates:
        final = update.transcript is not None
        await connection.send(json.dumps({"text": update.text, "seconds": round(update.seconds, 3), "final": final}))


async def _serve(recogniser: StreamingRecogniser, sample_rate: int, port: int) -> None:
    async with await start(recogniser, sample_rate, port) as server:
        print("http://%s:%d is ready; Ctrl-C ends it" % (HOST, port), flush=True)
        await server.serve_forever()


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or prefix of checkpoints, one checkpoint, or a config")
    parser.add_argument("--port", type=int, default=PORT, help="on which it listens (%d)" % PORT)
    args = parser.parse_args()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        model = find_model(args.model, "server")
        with in_folder(model.folder):
            recogniser = StreamingRecogniser(model.config)
        rate = recogniser.audio.features.opts.sample_rate
        if rate is None:
            sys.exit("The config does not say the sample rate of the audio: option sample_rate of audio")
        asyncio.run(_serve(recogniser, rate, args.port))
    except UserError as exc:
        sys.exit("error: %s" % exc)
    except OSError as exc:
        sys.exit("error: port %d: %s. Choose another: --port" % (args.port, exc.strerror or exc))
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
