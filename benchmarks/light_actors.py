"""Actors without a policy, many in one process: `python benchmarks/light_actors.py`, which fleet.py starts and talks to.

Each has connections of its own to the learner and to hashcount, and speaks the whole protocol: Join, Parameters, Count, Push
with credits, and from the beginning after a lost connection, as `LearnerClient` does. What it sends was recorded; only numbers,
versions and names of episodes are its own. torch is not loaded here. One JSON object comes in on a line, and one goes out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import sys
import time
from collections import Counter, deque
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import numpy as np

from leco.rpc import hashcount_client, learner_client
from leco.rpc.channel import channel_options
from leco.v1 import hash_count_pb2, hash_count_pb2_grpc, learner_pb2, learner_pb2_grpc, trajectory_pb2

if TYPE_CHECKING:
    from collections.abc import Coroutine

    Call = grpc.aio.StreamStreamCall[bytes, learner_pb2.PushResponse]

PUSH, PARAMETERS = "/leco.v1.LearnerService/Push", "/leco.v1.LearnerService/Parameters"
EPISODE_UNROLLS = 38  # 3,600 actions
CODES = 64  # that codes are drawn from: of 96, half are distinct
ATTEMPT_SECONDS, PARAMETERS_SECONDS = 5.0, 60.0  # as the real clients wait
PAUSES = (0.05, 5.0)
# A connection for each channel, as if each actor were a process.
ALONE = [("grpc.use_local_subchannel_pool", 1)]


class Recording(NamedTuple):
    """What all actors send.

    unrolls       packed PushRequests without number and version
    environments  trajectories of an actor's unroll
    length        actions in one
    """

    learner: str
    hashcount: str
    unrolls: list[bytes]
    environments: int
    length: int
    software: str

    def push(self, number: int, version: int) -> bytes:
        """A PushRequest. Two packed messages in a row are one with the fields of both."""
        head = trajectory_pb2.Trajectory(number=number, parameters_version=version)
        request = learner_pb2.PushRequest(trajectory=head)
        return self.unrolls[number % len(self.unrolls)] + request.SerializeToString()


class Seen:
    """What all actors went through since it was last asked for. Seconds, unless it says otherwise."""

    def __init__(self) -> None:
        self.acknowledged: list[float] = []  # from a send to its acknowledgement
        self.counted: list[float] = []
        self.fetched: list[float] = []
        self.fetched_bytes = 0
        self.lost: Counter[str] = Counter()  # calls that failed, by status
        self.statuses: Counter[int] = Counter()  # of episodes


class LightActor:
    """One of them."""

    def __init__(self, recording: Recording, seen: Seen, index: int) -> None:
        self._recording, self.seen, self._index = recording, seen, index
        self._random = np.random.default_rng(index)
        self.incarnation = secrets.token_bytes(16)
        self.taken = 0  # the highest number acknowledged
        # When its newest stream had a credit, and an acknowledgement, on the monotonic clock.
        self.credited, self.served = 0.0, 0.0
        self.begun: list[tuple[float, int]] = []  # of each stream: when it was answered, and `taken` before
        self._version, self._number = 0, 0
        self._waiting: deque[tuple[int, int]] = deque()  # numbers and versions that are not acknowledged yet
        self._sent: dict[int, float] = {}  # of them on this stream, and when
        self._credits = 0
        self._call: Call | None = None
        self._changed = asyncio.Condition()
        self._episodes = [f"{self.incarnation.hex()}-{e}-0" for e in range(recording.environments)]
        self._sequence = 0
        self.connect()

    def connect(self) -> None:
        """New connections."""
        options = channel_options(learner_client.SERVICE) + ALONE
        self._learner = grpc.aio.insecure_channel(self._recording.learner, options=options)
        options = channel_options(hashcount_client.SERVICE) + ALONE
        self._hashcount = grpc.aio.insecure_channel(self._recording.hashcount, options=options)
        self._stub = learner_pb2_grpc.LearnerServiceStub(self._learner)
        self._count = hash_count_pb2_grpc.HashCountServiceStub(self._hashcount).Count

    async def cut(self) -> None:
        """Loses its connections, and makes new ones."""
        before = self._learner, self._hashcount
        self.connect()
        await asyncio.gather(*(channel.close() for channel in before))

    async def close(self) -> None:
        """Ends its connections."""
        await asyncio.gather(self._learner.close(), self._hashcount.close())

    async def live(self) -> None:
        """Keeps a stream open, until cancelled."""
        pause = PAUSES[0]
        while True:
            try:
                await self._stream()
            except (grpc.RpcError, asyncio.CancelledError) as error:
                self._failed("Push", error)
            if self._call is not None:
                pause = PAUSES[0]
            self._call = None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, PAUSES[1])

    def _lost(self) -> bool:
        """Whether its own channel was closed, which cancels calls, and not its task."""
        task = asyncio.current_task()
        return task is not None and not task.cancelling()

    async def _stream(self) -> None:
        name = f"light-{self._index}"
        request = learner_pb2.JoinRequest(actor_name=name, software_version=self._recording.software)
        joined = await self._stub.Join(request, timeout=ATTEMPT_SECONDS)
        self.run, self.width = joined.specification.run, joined.specification.code_width
        self._version = self._version or joined.parameters_version
        self._codes = self._random.integers(0, 256, (CODES, self.width), np.uint8)
        call: Call = self._learner.stream_stream(PUSH, response_deserializer=learner_pb2.PushResponse.FromString)()
        hello = learner_pb2.PushHello(run=self.run, incarnation=self.incarnation, actor_name=name)
        await call.write(learner_pb2.PushRequest(hello=hello).SerializeToString())
        self._credits, self._sent = 0, {}
        self.credited = self.served = 0.0
        sending = asyncio.create_task(self._send(call))  # of its own, for one call has one write at a time
        try:
            while isinstance(answer := await call.read(), learner_pb2.PushResponse):
                if call is not self._call:
                    self.begun.append((time.monotonic(), self.taken))
                self._call = call
                await self._hear(answer)
        finally:
            sending.cancel()
        raise grpc.aio.AioRpcError(
            await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), details=await call.details()
        )

    async def _hear(self, answer: learner_pb2.PushResponse) -> None:
        now = time.monotonic()
        self._credits += answer.credits
        if answer.credits:
            self.credited = self.credited or now
        async with self._changed:
            while self._waiting and self._waiting[0][0] <= answer.acknowledged:
                self.taken, _ = self._waiting.popleft()
                if (sent := self._sent.pop(self.taken, None)) is not None:
                    self.seen.acknowledged.append(now - sent)
                self.served = self.served or now
            self._changed.notify_all()

    async def _send(self, call: Call) -> None:
        """Sends what there are credits for, in order, until cancelled. What was sent is always the first of what waits."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._credits > 0 and len(self._sent) < len(self._waiting))
                number, version = self._waiting[len(self._sent)]
                self._credits -= 1
                self._sent[number] = time.monotonic()
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                await call.write(self._recording.push(number, version))  # if it fails, whoever reads hears why

    async def answered(self) -> None:
        """Waits until the stream is open."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._call is not None)

    async def play(self, interval: float, over: asyncio.Event) -> None:
        """An unroll every `interval` seconds, or as soon as the one before is acknowledged."""
        due = time.monotonic() + interval * random.random()
        while not over.is_set():
            if (now := time.monotonic()) < due:
                await asyncio.sleep(min(due - now, 0.5))
                continue
            due = max(due + interval, now)
            await self.unroll()

    async def unroll(self) -> None:
        """What a real actor does at the end of an unroll; returns when the learner has it."""
        await self.answered()
        await self.fetch(newer_than=self._version)
        if self.width:
            await self._counted()
        for _ in range(self._recording.environments):
            self._number += 1
            self._waiting.append((self._number, self._version))
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(lambda: not self._waiting)

    async def fetch(self, *, newer_than: int) -> None:
        """Asks for parameters, and forgets all but their version."""
        begin, size = time.monotonic(), 0
        request = learner_pb2.ParametersRequest(run=self.run, newer_than=newer_than).SerializeToString()
        try:
            fetch: Any = self._learner.unary_stream(PARAMETERS)
            async for part in fetch(request, timeout=PARAMETERS_SECONDS):
                if size == 0:
                    self._version = learner_pb2.ParametersResponse.FromString(part).header.version
                size += len(part)
        except (grpc.RpcError, asyncio.CancelledError) as error:
            self._failed("Parameters", error)
            return
        if size:
            self.seen.fetched.append(time.monotonic() - begin)
            self.seen.fetched_bytes += size

    async def _counted(self) -> None:
        """Has the codes of an unroll counted, and asks again until they are."""
        length, final = self._recording.length, self._sequence + 1 == EPISODE_UNROLLS
        batches = [
            hash_count_pb2.EpisodeBatch(episode_id=episode, sequence=self._sequence, size=length, final=final)
            for episode in self._episodes
        ]
        drawn = self._random.integers(0, CODES, len(batches) * length)
        request = hash_count_pb2.CountRequest(
            run=self.run, code_width=self.width, episodes=batches, codes=self._codes[drawn].tobytes()
        )
        for attempt in count():
            begin = time.monotonic()
            try:
                answer = await self._count(request, timeout=ATTEMPT_SECONDS)
            except (grpc.RpcError, asyncio.CancelledError) as error:
                self._failed("Count", error)
                await asyncio.sleep(min(PAUSES[0] * 2 ** min(attempt, 10), 2.0) * random.uniform(0.5, 1.0))
                continue
            self.seen.counted.append(time.monotonic() - begin)
            self.seen.statuses.update(each.status for each in answer.episodes)
            break
        self._sequence = (self._sequence + 1) % EPISODE_UNROLLS
        if final:
            self._episodes = [f"{name.rpartition('-')[0]}-{self._number}" for name in self._episodes]

    def _failed(self, name: str, error: BaseException) -> None:
        """Notes a lost call; what was cancelled, or can never succeed, goes on upwards."""
        code = "CUT"
        if isinstance(error, grpc.aio.AioRpcError):
            code = error.code().name
            if error.code() not in learner_client.TRANSIENT_CODES:
                sys.exit(f"{name}: {error.details()}")
        elif not self._lost():
            raise error
        self.seen.lost[f"{name} {code}"] += 1


class Fleet:
    """All actors of this process, and what can be asked of them."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._seen = recording, Seen()
        self._actors: list[LightActor] = []
        self._lives: list[asyncio.Task[None]] = []
        self._gone = 0  # trajectories of actors that are closed

    async def open(self, actors: int) -> dict[str, Any]:
        """Has so many actors that have delivered an unroll. Those that are new begin all at once."""
        begin = time.monotonic()
        while len(self._actors) > actors:
            self._lives.pop().cancel()
            self._gone += self._actors[-1].taken
            await self._actors.pop().close()
        fresh = range(len(self._actors), actors)
        for index in fresh:
            self._actors.append(LightActor(self._recording, self._seen, index))
            self._lives.append(asyncio.create_task(self._actors[-1].live()))
        await asyncio.gather(*(self._actors[index].unroll() for index in fresh))
        return {"seconds": time.monotonic() - begin} | self._told()

    async def play(
        self, active: int, interval: float, seconds: float, *, cut_after: float = 0.0, lost: bool = False
    ) -> dict[str, Any]:
        """The first `active` play for so long; perhaps all connections are cut meanwhile.

        If all streams are `lost` meanwhile, they play on until all actors are served on a new one.
        """
        actors, begin, over, cut = self._actors[:active], time.monotonic(), asyncio.Event(), 0.0
        before, streams = [each.taken for each in actors], [len(each.begun) for each in actors]
        playing = [asyncio.create_task(each.play(interval, over)) for each in actors]
        if cut_after:
            await asyncio.sleep(cut_after)
            cut = time.monotonic()
            await asyncio.gather(*(each.cut() for each in self._actors))
        await asyncio.sleep(begin + seconds - time.monotonic())
        while lost and not all(  # noqa: ASYNC110  # many would have to tell
            one.served and len(one.begun) > n for one, n in zip(actors, streams, strict=True)
        ):
            await asyncio.sleep(0.1)
        took = [each.taken - n for each, n in zip(actors, before, strict=True)]
        over.set()
        await asyncio.gather(*playing)  # unrolls that are under way
        return {
            "took": took,
            "taken": self._gone + sum(each.taken for each in self._actors),
            "cut": cut,
            "credited": [each.credited for each in actors],
            "served": [each.served for each in actors],
            "begun": [each.begun for each in self._actors],
        } | self._told()

    async def fetch(self, seconds: float) -> dict[str, Any]:
        """All ask for all parameters, again and again."""
        begin = time.monotonic()

        async def again(actor: LightActor) -> None:
            while time.monotonic() < begin + seconds:
                await actor.fetch(newer_than=0)

        await asyncio.gather(*map(again, self._actors))
        return {"seconds": time.monotonic() - begin} | self._told()

    def _told(self) -> dict[str, Any]:
        seen = vars(self._seen).copy()
        vars(self._seen).update(vars(Seen()))
        return seen


def recorded(folder: Path) -> list[bytes]:
    """What is in its files."""
    return [path.read_bytes() for path in sorted(folder.iterdir())]


async def main() -> None:
    """Does what each line says, until there are no more."""
    first = json.loads(await asyncio.to_thread(sys.stdin.readline))
    fleet = Fleet(Recording(unrolls=recorded(Path(first.pop("unrolls"))), **first))
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        act: Coroutine[Any, Any, dict[str, Any]] = getattr(fleet, asked.pop("do"))(**asked)
        print(json.dumps(await act), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
