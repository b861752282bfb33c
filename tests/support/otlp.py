"""A receiver of OTLP over HTTP, as in observability tools: it decodes what an exporter sends, and keeps it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class Received:
    """One span."""

    name: str
    trace: bytes
    is_error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Receiver:
    """What was sent to it."""

    url: str = ""  # without a path
    paths: set[str] = field(default_factory=set)
    headers: Message = field(default_factory=Message)  # of the last request
    spans: list[Received] = field(default_factory=list)

    def take(self, path: str, headers: Message, body: bytes) -> None:
        """Keep the spans of one request."""
        self.paths.add(path)
        self.headers = headers
        body = decompress(body) if headers.get("content-encoding") == "gzip" else body
        for of in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in (span for scoped in of.scope_spans for span in scoped.spans):
                is_error = span.status.code == Status.STATUS_CODE_ERROR
                attributes, resource = _values(span.attributes), _values(of.resource.attributes)
                self.spans.append(Received(span.name, span.trace_id, is_error, attributes, resource))


def _values(attributes: Any) -> dict[str, Any]:
    """Return attributes by name; those that are lists stay as they are encoded."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive on a free port of this machine within the block."""
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.take(self.path, self.headers, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()
