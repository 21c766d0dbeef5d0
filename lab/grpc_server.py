"""A gRPC server: grpc_server.py ADDRESS PORT SERVICE_US SEED. A call's message is the number of bytes to respond with.

Service times are constant:US or exponential:US; calls are served in parallel. A response begins with the client's port.
"""

from __future__ import annotations

import asyncio
import random
import sys

import grpc


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Responds to any method."""

    def __init__(self, service: str, seed: int) -> None:
        self._kind, mean_us = service.split(":")
        if self._kind not in ("constant", "exponential"):
            raise ValueError(f"not a distribution of this server: {service}")
        self._mean_s = float(mean_us) * 1e-6
        self._random = random.Random(seed)

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Called by grpc."""
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        constant = self._kind == "constant"
        await asyncio.sleep(self._mean_s if constant else self._random.expovariate(1 / self._mean_s))
        port = int(context.peer().rpartition(":")[2])
        return port.to_bytes(2, "big") + b"x" * (int(request) - 2)


async def main(address: str, port: int, service: str, seed: int) -> None:
    """Serve until stopped."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(service, seed),))
    server.add_insecure_port(f"{address}:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
