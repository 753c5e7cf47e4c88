"""A real Apache Kafka for tests: one node that is broker and controller (KRaft), from its jars on Maven Central.

It listens on free ports of 127.0.0.1, one without and one with SASL/PLAIN, and makes no topics by itself. Its caches
and intervals are small, so that retention and compaction show within a second.

    with running(tmp_path) as server:
        admin = AdminClient({"bootstrap.servers": server.address})
        server.restart()                    # same data, same port
        server.kill(); server.start()       # as a crash
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.servers.cache import UnavailableError, end_with_parent, missing
from tests.servers.maven import jars, java
from tests.servers.ports import free_port

if TYPE_CHECKING:
    from tests.servers.tls import ServerFiles

VERSION = "4.3.1"
USER, PASSWORD = "penstock", "not-to-be-shown"
PATIENCE = 60.0

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
num.recovery.threads.per.data.dir=2
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
log.retention.check.interval.ms=300
log.initial.task.delay.ms=300
log.segment.delete.delay.ms=100
message.max.bytes=1048588
"""

_JAVA = (
    "-Xmx320m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip


_TLS = """
listener.name.sasl.ssl.keystore.type=PEM
listener.name.sasl.ssl.keystore.location={file}
"""


class KafkaServer:
    """One node, its data in `place`. `address` is what clients are given, `sasl_address` the one with a password."""

    def __init__(self, place: Path, tls: ServerFiles | None = None) -> None:
        """With `tls` the listener with a password speaks it, and is advertised as that of `localhost`."""
        self._place = place
        self._classes = jars(
            f"kafka-{VERSION}", f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36"
        )
        self._process: subprocess.Popen[bytes] | None = None
        port, sasl, control = (free_port() for _ in range(3))
        self.address, self.sasl_address = f"127.0.0.1:{port}", f"127.0.0.1:{sasl}"
        self._port = port
        self._settings = place / "server.properties"
        text = _SETTINGS.format(
            port=port, sasl=sasl, control=control, data=place / "data", user=USER, password=PASSWORD
        )
        if tls is not None:
            self.sasl_address = f"localhost:{sasl}"
            text = text.replace("SASL:SASL_PLAINTEXT", "SASL:SASL_SSL") + _TLS.format(file=tls.both)
            text = text.replace(
                f",SASL://127.0.0.1:{sasl}\nlistener.", f",SASL://localhost:{sasl}\nlistener."
            )
        self._settings.write_text(text)
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        self._run("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._settings))

    def start(self) -> None:
        with (self._place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._settings)),
                stdout=log,
                stderr=log,
                cwd=self._place,
                preexec_fn=end_with_parent,
            )
        until = time.monotonic() + PATIENCE
        while not _is_open(self._port):
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise UnavailableError(f"Kafka did not start:\n{self._log()}")
            time.sleep(0.05)
        self._await_leaders(until)

    def _await_leaders(self, until: float) -> None:
        """The port opens first; then partitions find out that they have a leader, after a crash rather slowly."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "start", "log_level": 1})
        while True:
            try:
                topics = consumer.list_topics(timeout=10).topics
                for topic, partition in [(name, p) for name in topics for p in topics[name].partitions]:
                    consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            except KafkaException as error:
                if time.monotonic() > until:
                    raise UnavailableError(f"Kafka does not come up: {error}") from None
                time.sleep(0.1)
            else:
                consumer.close()
                return

    def settle(self, until: float = 60.0) -> None:
        """Wait until what was committed is marked so in all partitions, which happens behind the answer to a commit.

        A single broker that is killed in between may never mark it: its coordinator of transactions starts again before
        it knows of the topics, and takes them for deleted. A cluster has another one by then.
        """
        own = {"bootstrap.servers": self.address, "group.id": "settle", "log_level": 1}
        every = Consumer({**own, "isolation.level": "read_uncommitted"})
        marked = Consumer({**own, "isolation.level": "read_committed"})
        try:
            topics = every.list_topics(timeout=10).topics
            places = [TopicPartition(name, p) for name in topics for p in topics[name].partitions]
            end = time.monotonic() + until
            for place in places:
                while every.get_watermark_offsets(place, timeout=10) != marked.get_watermark_offsets(
                    place, timeout=10
                ):
                    assert time.monotonic() < end, f"a transaction stays open in {place}"
                    time.sleep(0.02)
        finally:
            every.close()
            marked.close()

    def stop(self) -> None:
        """End it in order, so far as it does that soon."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """As a crash: kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def _command(self, *arguments: str) -> list[str]:
        return [java(), *_JAVA, "-cp", f"{self._classes}{os.sep}*", *arguments]

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(self._command(*arguments), capture_output=True, timeout=PATIENCE, check=False)
        if done.returncode:
            raise UnavailableError(f"Kafka does not format its storage:\n{done.stderr.decode()}")

    def _log(self) -> str:
        return "\n".join((self._place / "log").read_text(errors="replace").splitlines()[-20:])


@contextmanager
def running(place: Path, tls: ServerFiles | None = None) -> Iterator[KafkaServer]:
    """A server in the empty directory `place`; where it cannot be had, the test is skipped, or in CI fails."""
    try:
        server = KafkaServer(place, tls)
        server.start()
    except UnavailableError as error:
        missing("Kafka", error)
    try:
        yield server
    finally:
        server.kill()


def _is_open(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0
