"""An HTTP/1.1 sender that knows whether a byte has left.

::

    sender = Sender()
    seen = await sender.send(Request(endpoint, b"/hooks", [(b"Content-Type", b"application/json")], body))

``seen`` is a :class:`~redrive.webhooks.observation.Response` as soon as a whole response head came back, and
a :class:`~redrive.webhooks.observation.Failure` with its phase otherwise. ``failure.sent`` is False exactly
when the request write was never called.

``request`` what is asked; ``dial`` (with ``resolver``, ``proxy`` and ``tls``) how a connection is made;
``protocol`` one exchange on one connection; ``pool`` who may have which connection; ``sender`` all of it.
"""

from redrive.webhooks.sender.request import (
    Endpoint,
    Guard,
    IPAddress,
    Prepared,
    Proxy,
    Request,
    Template,
    Timeouts,
    Tls,
)
from redrive.webhooks.sender.resolver import Resolver, SystemResolver
from redrive.webhooks.sender.sender import Sender

__all__ = [
    "Endpoint",
    "Guard",
    "IPAddress",
    "Prepared",
    "Proxy",
    "Request",
    "Resolver",
    "Sender",
    "SystemResolver",
    "Template",
    "Timeouts",
    "Tls",
]
