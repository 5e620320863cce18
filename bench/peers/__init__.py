"""Other brokers to compare tidewire with, with the settings that a careful operator would choose on this machine.

Versions are fixed. Brokers from package registries are installed on first use into ~/.cache/tidewire-peers, which can be
deleted at any time. Each broker listens on loopback only, and stores nothing on disk if it can be configured so, unless
`keeps` requests persistence. Limits of queues and windows are high, so that the comparison measures speed and not settings.
Uses the standard library only.
"""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidewire-peers"


class Missing(Exception):
    """The reason why a broker cannot be installed on this machine."""


class Peer:
    """A broker: its installation, and the command that serves MQTT on a port of loopback."""

    name = ""
    version = ""
    # Settings that differ from the defaults, for the report.
    settings = ""
    # Its guarantee with persistent sessions; empty if this file cannot configure persistence.
    keeps = ""

    def install(self):
        """Installs the program. Raises `Missing` if that is impossible."""

    def command(self, port, directory, keeps=False):
        """Returns the command line. `directory` is empty and for this broker only. `keeps`: sessions and messages must
        survive a restart."""
        raise NotImplementedError

    def environment(self):
        return {}


class Mosquitto(Peer):
    name = "mosquitto"
    settings = "persistence false, max_queued_messages 100000, max_inflight_messages 100, set_tcp_nodelay true"
    keeps = "persistence true: a snapshot every 30 minutes and at the end"

    def install(self):
        os.environ["PATH"] += ":/usr/sbin:/usr/local/sbin"
        if not shutil.which("mosquitto"):
            raise Missing("apt-get install mosquitto")
        # `-h` ends with an error code and prints the version first.
        usage = subprocess.run(["mosquitto", "-h"], text=True, capture_output=True, check=False).stdout
        self.version = usage.split()[2]

    def command(self, port, directory, keeps=False):
        config = directory / "mosquitto.conf"
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence {str(keeps).lower()}\n"
            f"persistence_location {directory}/\nmax_queued_messages 100000\n"
            "max_inflight_messages 100\nset_tcp_nodelay true\n"
        )
        return ["mosquitto", "-c", str(config)]


class CargoPeer(Peer):
    crate = ""
    # Build with the dependency versions of its release.
    is_locked = True

    def install(self):
        self.program = CACHE / f"{self.crate}-{self.version}" / "bin" / self.crate
        if self.program.exists():
            return
        if not shutil.which("cargo"):
            raise Missing("cargo")
        say(f"building {self.crate} {self.version}; this takes some minutes")
        root = str(self.program.parent.parent)
        environment = {key: value for key, value in os.environ.items() if key not in ("CARGO_TARGET_DIR", "RUSTFLAGS")}
        command = ["cargo", "install", "--quiet", "--no-track", "--root", root, self.crate, "--version", self.version]
        run(command + (["--locked"] if self.is_locked else []), environment)


class Rumqttd(CargoPeer):
    name = crate = "rumqttd"
    version = "0.20.0"
    # Its dependency metrics 0.22.1 no longer compiles; 0.22.4 does.
    is_locked = False
    settings = "its own configuration file, segments of 100 MiB, max_inflight_count 100"

    def command(self, port, directory, keeps=False):
        config = directory / "rumqttd.toml"
        config.write_text(
            "id = 0\n[router]\nid = 0\nmax_connections = 20000\nmax_outgoing_packet_count = 200\n"
            "max_segment_size = 104857600\nmax_segment_count = 10\n"
            f'[v4.1]\nname = "v4-1"\nlisten = "127.0.0.1:{port}"\nnext_connection_delay_ms = 0\n'
            "[v4.1.connections]\nconnection_timeout_ms = 60000\nmax_payload_size = 20480\nmax_inflight_count = 100\n"
            "dynamic_filters = true\n"
            f'[console]\nlisten = "127.0.0.1:{free_port()}"\n'
        )
        return [str(self.program), "-q", "-c", str(config)]


class Rmqtt(CargoPeer):
    name, crate = "rmqtt", "rmqttd"
    version = "0.24.0"
    settings = "no plugins, max_inflight 100, max_mqueue_len 100000"

    def install(self):
        if not shutil.which("protoc"):
            raise Missing("apt-get install protobuf-compiler")
        super().install()

    def command(self, port, directory, keeps=False):
        config = directory / "rmqtt.toml"
        config.write_text(
            f'[plugins]\ndir = "{directory}"\ndefault_startups = []\n[log]\nto = "console"\nlevel = "error"\n'
            f'[rpc]\nserver_addr = "127.0.0.1:{free_port()}"\n'
            f'[listener.tcp.external]\naddr = "127.0.0.1:{port}"\nmax_connections = 100000\nmax_handshaking_limit = 5000\n'
            "allow_anonymous = true\nmax_inflight = 100\nmax_mqueue_len = 100000\nmqueue_rate_limit = \"1000000,1s\"\n"
        )
        return [str(self.program), "-f", str(config)]


class GoPeer(Peer):
    package = binary = ""

    def install(self):
        directory = CACHE / f"{self.name}-{self.version}"
        self.program = directory / self.binary
        if self.program.exists():
            return
        if not shutil.which("go"):
            raise Missing("go")
        say(f"building {self.name} {self.version}")
        run(["go", "install", f"{self.package}@v{self.version}"], {**os.environ, "GOBIN": str(directory), "GOFLAGS": "-mod=mod"})


class Mochi(GoPeer):
    name, version = "mochi", "2.7.9"
    package, binary = "github.com/mochi-mqtt/server/v2/cmd", "cmd"
    settings = "its own command with default settings"

    def command(self, port, directory, keeps=False):
        address = "127.0.0.1:{}".format
        return [str(self.program), "-tcp", address(port), "-ws", address(free_port()), "-info", address(free_port())]


class Nats(GoPeer):
    name, version = "nats", "2.15.2"
    package, binary = "github.com/nats-io/nats-server/v2", "nats-server"
    settings = "JetStream with its file store, which MQTT needs; max_ack_pending 1000"

    def command(self, port, directory, keeps=False):
        config = directory / "nats.conf"
        config.write_text(
            f'server_name: peer\nlisten: "127.0.0.1:{free_port()}"\njetstream {{ store_dir: "{directory}/js" }}\n'
            f'mqtt {{ listen: "127.0.0.1:{port}", max_ack_pending: 1000 }}\n'
        )
        return [str(self.program), "-c", str(config)]


class HiveMq(Peer):
    name, version = "hivemq", "2025.5"
    settings = "Community Edition, embedded, in-memory persistence, queue limit 100000, heap 2 GiB"
    keeps = "file persistence with RocksDB, without its own syncs"

    def install(self):
        self.directory = CACHE / f"hivemq-{self.version}"
        if (self.directory / "target" / "classes").exists():
            return
        for program in ("java", "mvn"):
            if not shutil.which(program):
                raise Missing(program)
        say(f"downloading HiveMQ CE {self.version}")
        shutil.copytree(HERE / "hivemq", self.directory, dirs_exist_ok=True)
        run(["mvn", "--quiet", "--batch-mode", "-f", str(self.directory / "pom.xml"), "process-classes"], dict(os.environ))

    def command(self, port, directory, keeps=False):
        (directory / "config.xml").write_text(
            '<?xml version="1.0"?><hivemq><listeners><tcp-listener>'
            f"<port>{port}</port><bind-address>127.0.0.1</bind-address></tcp-listener></listeners>"
            "<mqtt><queued-messages><max-queue-size>100000</max-queue-size></queued-messages>"
            "<receive-maximum><server-receive-maximum>1000</server-receive-maximum></receive-maximum></mqtt>"
            f"<persistence><mode>{'file' if keeps else 'in-memory'}</mode></persistence>"
            "<anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics></hivemq>"
        )
        target = self.directory / "target"
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.nio", "sun.nio.ch")]
        path = f"{target}/classes:{target}/dependency/*"
        return ["java", "-Xmx2g", *opens, "-cp", path, "Main", str(directory)]


PEERS = {peer.name: peer for peer in (Mosquitto(), Rumqttd(), Rmqtt(), Mochi(), Nats(), HiveMq())}


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def run(command, environment):
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Missing(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
