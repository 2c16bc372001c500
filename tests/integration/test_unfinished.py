"""Clients that begin requests and never end them: they take little memory, and others are served meanwhile."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import SERVICE, CodeBatch, HashCountClient
from support.raw_http2 import UnfinishedCalls
from support.service_process import ServiceProcess
from support.waiting import PATIENCE, until

MIB = 1 << 20
CONNECTIONS, CALLS = 20, 40
# 16 unfinished requests of 4 MB and 800 windows of 64 KB are 115 MB; without a limit it is 3,200 MB.
MOST_BYTES = 500 * MIB
METHODS = [
    "/leco.v1.HashCountService/Count",
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]


@pytest.mark.parametrize("method", METHODS)
def test_requests_that_never_end_take_little_memory_and_others_are_served(method: str) -> None:
    with ServiceProcess() as service, ExitStack() as stack:
        channel = stack.enter_context(open_channel(service.address, service=SERVICE))
        client = HashCountClient(channel, run="normal", code_width=1, attempt_seconds=PATIENCE)
        served = 0

        def count() -> None:
            nonlocal served
            [result] = client.count([CodeBatch("e", served, np.zeros((2, 1), np.uint8))])
            assert result.counts is not None, result.detail
            assert result.counts.tolist() == [2 * served + 1, 2 * served + 2]
            served += 1

        count()
        hostile = [
            stack.enter_context(UnfinishedCalls(service.address, method, calls=CALLS)) for _ in range(CONNECTIONS)
        ]

        def gave_way() -> bool:
            assert service.memory_bytes() < MOST_BYTES
            count()
            return sum(each.ended for each in hostile) >= 100

        until(gave_way)
        assert served > 1
