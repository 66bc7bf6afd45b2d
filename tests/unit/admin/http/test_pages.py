"""Files of the dashboard, and nothing besides."""

from pathlib import Path

import pytest
from starlette.responses import Response
from starlette.types import Message

from postroad.admin.http.pages import PagesEndpoint
from tests.support.cases import each


@pytest.fixture
def pages(tmp_path: Path) -> PagesEndpoint:
    (tmp_path / "secret.txt").write_text("secret")
    static = tmp_path / "static"
    (static / "js").mkdir(parents=True)
    (static / "index.html").write_text("<p>hello</p>")
    (static / "js" / "main.js").write_text("1;")
    (static / "style.css").write_text("p {}")
    return PagesEndpoint(static)


async def get(pages: PagesEndpoint, path: str, **headers: str) -> Response:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    said = [(name.replace("_", "-").encode(), it.encode()) for name, it in headers.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/{path}",
        "headers": said,
        "path_params": {"path": path},
    }
    await pages(scope, receive, send)
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(it.get("body", b"") for it in sent[1:])
    return Response(body, sent[0]["status"], told)


@each(
    ("", "text/html; charset=utf-8"),
    ("index.html", "text/html; charset=utf-8"),
    ("js/main.js", "text/javascript; charset=utf-8"),
    ("style.css", "text/css; charset=utf-8"),
)
async def test_files(path: str, kind: str, pages: PagesEndpoint) -> None:
    reply = await get(pages, path)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == kind
    assert reply.headers["cache-control"] == "no-cache"
    again = await get(pages, path, if_none_match=reply.headers["etag"])
    assert (again.status_code, again.body) == (304, b"")


async def test_nothing_besides_the_files_is_served(pages: PagesEndpoint, tmp_path: Path) -> None:
    for path in (
        "../secret.txt",
        "js/../../secret.txt",
        "js",
        "js/",
        "/index.html",
        "a\0b",
        "..\\secret.txt",
    ):
        reply = await get(pages, path)
        assert reply.status_code == 404, path
        assert b"secret\n" not in reply.body, path
    reply = await get(PagesEndpoint(tmp_path / "missing"), "")
    assert reply.status_code == 404
