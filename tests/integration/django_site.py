"""A site of Django whose plain views serve MCP, in the threads where Django runs them, and count in the session."""

import json
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from mcp_sessions import DataError, MCPSessionMiddleware, current_session, require_session

KEYS = "a secret of the integration tests, at least 32 bytes long"
settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="x", ALLOWED_HOSTS=["*"])


def counted() -> int:
    """Count in Django's thread, or in one that the view starts."""
    return require_session().data.sync.increment("n")


def in_a_plain_thread() -> int:
    session, numbers = require_session(), list[int]()
    thread = threading.Thread(target=lambda: numbers.append(session.data.sync.increment("n")))
    thread.start()
    thread.join()
    return numbers[0]


def answered(request: HttpRequest, content: Any) -> JsonResponse:
    return JsonResponse({"jsonrpc": "2.0", "id": json.loads(request.body)["id"], "result": {"content": content}})


def plain(request: HttpRequest) -> JsonResponse:
    if current_session() is None:
        return answered(request, "nobody")
    return answered(request, [counted(), in_a_plain_thread()])


async def asynchronous(request: HttpRequest) -> JsonResponse:
    numbers = [await sync_to_async(counted, thread_sensitive=sensitive)() for sensitive in (True, False)]
    try:
        return answered(request, counted())
    except DataError as error:
        return answered(request, [*numbers, str(error)])


urlpatterns = [path("plain", plain), path("async", asynchronous)]
app = MCPSessionMiddleware(get_asgi_application(), path=None, keys=KEYS, admission="own")
