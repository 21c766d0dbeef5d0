"""The streams that a NATS broker keeps for wirelag, and how messages are read from them.

Laws. A stream that is full accepts no more, and a point that has its share there neither; agents keep the rest. Of a
message's headers only ours are read: the library takes others for what the broker itself says.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from nats.aio.client import Client
from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from wirelag.protocol.messages import MOST_BYTES
from wirelag.transport.http import RUN_HEADER

STREAM: Final = "WIRELAG"
ASKS: Final = "WIRELAG_ASKS"
TELL_HEADER: Final = "Wirelag-Tell"  # the name by which its sender wants to hear that a message is stored
HEADERS: Final = 512  # maximum size of a message's headers
_MOST_OF_SUBJECT: Final = 1024  # messages of a point and a type that the broker keeps; the agent keeps the rest
_MOST_ASKS: Final = 256  # asks that wait for one agent; the oldest go
MESSAGES: Final = StreamConfig(
    name=STREAM,
    subjects=["wirelag.synopsis.*", "wirelag.times.*", "wirelag.status.*"],
    retention=RetentionPolicy.WORK_QUEUE,
    discard=DiscardPolicy.NEW,
    discard_new_per_subject=True,
    max_msgs_per_subject=_MOST_OF_SUBJECT,
    max_bytes=4 << 30,
    max_age=7 * 86400.0,
    max_msg_size=MOST_BYTES + HEADERS,
    duplicate_window=600,
)
ASKED: Final = StreamConfig(
    name=ASKS,
    subjects=["wirelag.ask.*"],
    retention=RetentionPolicy.WORK_QUEUE,
    discard=DiscardPolicy.OLD,
    max_msgs_per_subject=_MOST_ASKS,
    max_bytes=256 << 20,
    max_age=600,
    max_msg_size=MOST_BYTES + HEADERS,
)
_OWN: Final = re.compile(rf"(?<=\r\n)(?:{RUN_HEADER}|{TELL_HEADER}): ?[!-~]{{1,128}}\r\n".encode(), re.IGNORECASE)


class StreamClient(Client):
    """The library's client. A message of a stream has an address for its acknowledgement, the broker's words have none.

    Otherwise any sender could write a status of the broker into its headers, or what the library cannot parse, and end
    the reading of all messages with it.
    """

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if headers and reply:
            own = _OWN.findall(headers)
            headers = b"NATS/1.0\r\n" + b"".join(own) + b"\r\n" if own else b""
        await super()._process_msg(sid, subject, reply, data, headers)


async def ensure(context: JetStreamContext, config: StreamConfig) -> None:
    """Make a stream where there is none of its name."""
    try:
        await context.stream_info(str(config.name))
    except NotFoundError:
        await context.add_stream(config)


async def bound(context: JetStreamContext) -> bool:
    """Give each point a limit in a stream that was made without one; False if it cannot be done now.

    A limit that is below what a subject has would delete messages: it is set once there are few.
    """
    try:
        found = await context.stream_info(STREAM, subjects_filter=">")
    except NotFoundError:
        return True  # the collector makes it
    if (found.config.max_msgs_per_subject or -1) > 0 or found.config.discard != DiscardPolicy.NEW:
        return True  # as its owner wants it
    if max((found.state.subjects or {}).values(), default=0) > _MOST_OF_SUBJECT // 2:
        return False
    with suppress(APIError):  # it may not be ours to change
        await context.update_stream(
            found.config.evolve(max_msgs_per_subject=_MOST_OF_SUBJECT, discard_new_per_subject=True)
        )
    return True
