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
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


@dataclass(frozen=True)
class Received:
    """One span; ids are hexadecimal."""

    name: str
    trace: str
    id: str
    parent: str  # empty for a root
    kind: str  # without its prefix, as "SERVER"
    is_error: bool
    attributes: dict[str, Any]
    links: dict[str, dict[str, Any]]  # the attributes of each, by the id of the span that it leads to
    resource: dict[str, Any]
    scope: str  # the instrumentation that made it


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
        self.spans += _spans(ExportTraceServiceRequest.FromString(body))


def _spans(sent: ExportTraceServiceRequest) -> Iterator[Received]:
    for of in sent.resource_spans:
        for scoped in of.scope_spans:
            for span in scoped.spans:
                yield Received(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    span.status.code == Status.STATUS_CODE_ERROR,
                    _values(span.attributes),
                    {link.span_id.hex(): _values(link.attributes) for link in span.links},
                    _values(of.resource.attributes),
                    scoped.scope.name,
                )


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
