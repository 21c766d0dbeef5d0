"""What a broker promises, and whether it has room: asked before an agent or a collector uses it."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Final

from wirelag.errors import MissingExtraError
from wirelag.transport import Address, Unreachable
from wirelag.transport.nats import COLLECTOR
from wirelag.transport.nats_line import Line, plain
from wirelag.transport.nats_streams import ASKED, MESSAGES, STREAM

try:
    import nats.errors
    from nats.js.client import JetStreamContext
    from nats.js.errors import APIError, NotFoundError
except ImportError:
    raise MissingExtraError("NATS") from None

_SAFE_REPLICAS: Final = 3
_NEARLY_FULL: Final = 0.9


async def has_stream(address: Address, point: str) -> bool | None:
    """Whether a broker has the collector's stream; None if it does not let this agent ask. Unreachable says why."""
    line = Line(address, point)
    try:
        context = await line.stream()
        await context.stream_info(STREAM)
    except NotFoundError:
        return False
    except (nats.errors.Error, OSError, TimeoutError):
        return None
    finally:
        await line.close()
    return True


async def problem(address: Address) -> str | None:
    """Why a collector could not use a broker now, or what the broker does not promise."""
    line = Line(address, COLLECTOR)
    try:
        context = await line.stream()
        await line.unless_lost(context.account_info())
        replicas = await line.unless_lost(_replicas(context))
        full = await _room(line, context)
    except Unreachable as error:
        return f"which fails now: {error}"
    finally:
        await line.close()
    if full is not None:
        return full
    if replicas >= _SAFE_REPLICAS:
        return None
    return f"whose stream has one copy ({replicas} of {_SAFE_REPLICAS} replicas): what it loses, agents send again"


async def _room(line: Line, context: JetStreamContext) -> str | None:
    """Whether the broker has room: of streams that exist, how full they are; for others it is asked, by making them."""
    tried: list[str] = []
    try:
        for config in (MESSAGES, ASKED):
            try:
                found = await context.stream_info(str(config.name))
            except NotFoundError:
                tried.append(f"wirelag-check-{secrets.token_hex(4)}")
                await context.add_stream(config.evolve(name=tried[-1], subjects=[f"{tried[-1]}.none"]))
                continue
            except (nats.errors.Error, TimeoutError) as error:
                raise line.unreachable(plain(error)) from None
            most = found.config.max_bytes or -1
            if most > 0 and found.state.bytes > _NEARLY_FULL * most:
                return (
                    f"whose stream {config.name} is nearly full ({found.state.bytes >> 20} of {most >> 20} MiB): "
                    f"a full one takes no more, and agents keep their messages; start the collector, or raise max_bytes"
                )
    except APIError as error:
        wanted = sum(int(one.max_bytes or 0) for one in (MESSAGES, ASKED)) >> 20
        return (
            f"which has no room for the streams ({error.description}): they need {wanted} MiB; raise max_file_store in "
            f"its jetstream block, or make smaller streams beforehand"
        )
    finally:
        for name in tried:
            with suppress(nats.errors.Error, TimeoutError):
                await context.delete_stream(name)
    return None


async def _replicas(context: JetStreamContext) -> int:
    try:
        return (await context.stream_info(STREAM)).config.num_replicas or 1
    except NotFoundError:
        return 1  # as the collector makes it
