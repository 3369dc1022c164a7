"""The CONNECT request (RFC 9110, 9.3.6), spoken on a bare socket before TLS or HTTP take it over."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Final

from redrive.webhooks.observation import Failure, Fault, Phase
from redrive.webhooks.sender.request import IPAddress

MAX_ANSWER: Final = 16_384
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?")


async def open_tunnel(
    sock: socket.socket, address: IPAddress, port: int, authorization: bytes | None
) -> Failure | None:
    """Ask the proxy at ``sock`` for a tunnel to ``address``. None when it stands.

    A refusal of our own credentials (407) is ours; any other answer but 2xx is the proxy's refusal. Raises
    OSError where the connection breaks; has no deadline of its own.
    """
    loop = asyncio.get_running_loop()
    authority = (f"[{address}]" if address.version == 6 else f"{address}").encode() + b":%d" % port
    ask = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n" % (authority, authority)
    if authorization is not None:
        ask += b"Proxy-Authorization: %b\r\n" % authorization
    await loop.sock_sendall(sock, ask + b"\r\n")
    answer = b""
    while True:
        end = answer.find(b"\r\n\r\n")
        if end >= 0:
            match = _STATUS.match(answer)
            if match is None:
                return _refused(Fault.MALFORMED, "not_http_1")
            status = int(match[1])
            if not 100 <= status < 200:
                break
            answer = answer[end + 4 :]  # an interim answer
            continue
        if len(answer) > MAX_ANSWER:
            return _refused(Fault.MALFORMED, "head_too_large")
        data = await loop.sock_recv(sock, 4096)
        if not data:
            return _refused(Fault.LOST, "eof")
        answer += data
    if status == 407:
        return _refused(Fault.OURS, "proxy_407")
    if not 200 <= status < 300:
        return _refused(Fault.REFUSED, f"proxy_{status}")
    if len(answer) > end + 4:
        return _refused(Fault.MALFORMED, "unsolicited")  # nobody may speak in the tunnel before we do
    return None


def _refused(fault: Fault, detail: str) -> Failure:
    return Failure(Phase.PROXY, fault, sent=False, detail=detail)
