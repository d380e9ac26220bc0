"""A thousand requests that no client would send: the server answers each or hangs up, and serves the next one."""

import json
import random
import socket

from tests.server.live import ANN, LiveServer, agent_server

REQUESTS = 1_000
SEED = 20261115
PATHS = [
    "/start", "/resume", "/interrupt", "/abort", "/submit-tool-result", "/chat", "/chat/s/submit-tool-result",
    "/chat/s/interrupt", "/sse?sessionId=s", "/status?sessionId=s", "/sessions", "/sessions/s/snapshot", "/nowhere",
]  # fmt: skip
GOOD = {"agentType": "director", "message": "hello", "sessionId": "s"}
ODD_VALUES = [
    None,
    True,
    -1,
    1e308,
    2**70,
    "",
    "x" * 300,
    "\x00",
    [],
    {},
    [[]],
    {"$ref": "#"},
    "\ud83d\ude00",
    {"a": None},
]


def broken_json(chance: random.Random) -> bytes:
    text = json.dumps(GOOD)
    match chance.randrange(6):
        case 0:
            return text[: chance.randrange(len(text))].encode()
        case 1:
            return text.replace(chance.choice('{":,}'), chance.choice(["", "}}", "\x00", "'"])).encode()
        case 2:
            return chance.randbytes(chance.randrange(200))
        case 3:
            return text.encode(chance.choice(["utf-16", "utf-32", "utf-7", "cp037"]))
        case 4:
            return b'{"a":' * chance.randrange(1, 3_000)
        case _:
            return text.encode() + text.encode()


def wrong_types(chance: random.Random) -> bytes:
    body = {**GOOD, chance.choice(["agentType", "message", "sessionId", "state", "id", "messages", "kind", "mode"]): 0}
    for name in list(body):
        if chance.random() < 0.5:
            body[name] = chance.choice(ODD_VALUES)
    return json.dumps(body).encode()


def head(chance: random.Random, method: str, path: str, *lines: str) -> bytes:
    ending = chance.choice(["\r\n"] * 9 + ["\n"])
    token = f"authorization: Bearer {ANN}"
    return ending.join([f"{method} {path} HTTP/1.1", "host: x", token, "connection: close", *lines, "", ""]).encode()


def request(chance: random.Random) -> tuple[bytes, bool]:
    """The bytes of a request, and whether it is complete as HTTP: only then is an answer owed."""
    path = chance.choice(PATHS)
    method = chance.choice(["POST"] * 6 + ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"])
    body = chance.choice([broken_json, wrong_types])(chance)
    kind = chance.choice(
        ["application/json"] * 5
        + ["application/json; charset=utf-16", "text/plain", "application/xml", "multipart/form-data", "", "\x7f"]
    )
    typed = f"content-type: {kind}"
    match chance.randrange(8):
        case 0:
            # Announces more than it sends.
            return head(chance, method, path, typed, f"content-length: {len(body) + 50}") + body, False
        case 1:
            return head(
                chance, method, path, typed, f"content-length: {chance.choice(['-1', 'x', '1e3', '9' * 40])}"
            ) + body, False
        case 2:
            # Chunked framing that breaks off or lies about its sizes.
            size = chance.choice(["ffffffff", "zz", "-1", f"{len(body) + 9:x}", "0"])
            return head(
                chance, method, path, typed, "transfer-encoding: chunked"
            ) + f"{size}\r\n".encode() + body, False
        case 3:
            good = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
            return head(chance, method, path, typed, "transfer-encoding: chunked") + good, bool(body)
        case 4:
            lines = [f"x-{number}: {'y' * chance.randrange(2_000)}" for number in range(chance.randrange(60))]
            return head(chance, method, path, typed, *lines, f"content-length: {len(body)}") + body, False
        case 5:
            return chance.randbytes(chance.randrange(1, 300)), False
        case 6:
            odd = path + chance.choice(
                ["?sessionId=%ff%fe", "?limit=" + "9" * 50, "/%00", "/..%2f..", "?offset=-1", "#x"]
            )
            return head(chance, method, odd, typed, f"content-length: {len(body)}") + body, True
        case _:
            return head(chance, method, path, typed, f"content-length: {len(body)}") + body, True


def answer_to(port: int, raw: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = b""
        try:
            while len(answer) < 100_000 and (piece := connection.recv(65_536)):
                answer += piece
        except ConnectionResetError:
            pass
    return answer


def test_a_thousand_malformed_requests_neither_crash_nor_hang_a_server() -> None:
    chance = random.Random(SEED)
    answers: dict[bytes, int] = {}
    with LiveServer(agent_server(executor={"janitor_seconds": None})) as live, live.client() as client:
        for number in range(REQUESTS):
            raw, complete = request(chance)
            answer = answer_to(live.port, raw)
            status = answer[9:12]
            answers[status] = answers.get(status, 0) + 1
            assert not status.startswith(b"5"), (number, raw[:300], answer[:300])
            if complete and b"\x7f" not in raw[:400] and b"\r\n" in raw[:40]:
                assert answer.startswith(b"HTTP/1.1 "), (number, raw[:300], answer[:300])
        assert client.get("/readyz").json() == {"status": "ok"}
        assert client.post("/start", json={"agentType": "director", "message": "hello"}).status_code == 200
    assert answers.get(b"400", 0) > REQUESTS // 10, answers
