"""The clients under test: how each is installed and started, and which features it lacks.

Versions are pinned in the files next to each driver. The cache directory contains the installed clients under the hash
of those files, so a second run installs nothing."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

from .driver import Driver
from .message import Failed
from .mosquitto import Tools

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidewire-interop")


@dataclass
class Client:
    name: str
    versions: Tuple[int, ...]
    # Installs the client into a directory and returns the command that runs its driver.
    install: Callable[[str, str], List[str]]
    folder: str = ""
    # Maps a scenario, or scenario and version, to the reason why the client skips it.
    lacks: Dict[Any, str] = field(default_factory=dict)
    # Seconds.
    keep_alive_min: int = 1
    # The client is skipped if one of these programs is missing. Other programs are required; tests/interop/run installs them.
    needs: Tuple[str, ...] = ()
    command: List[str] = field(default_factory=list)

    def lack(self, scenario: str, version: int) -> Optional[str]:
        return self.lacks.get(scenario) or self.lacks.get((scenario, version))

    def missing(self) -> List[str]:
        return [program for program in self.needs if not shutil.which(program)]

    def prepare(self) -> None:
        source = os.path.join(HERE, "clients", self.folder)
        self.command = self.install(source, os.path.join(CACHE, f"{self.folder}-{_fingerprint(source)}"))

    def start(self, logs: str) -> Any:
        log = os.path.join(logs, f"{self.name.replace(' ', '-').lower()}.log")
        return Driver(self.name, self.command, log) if self.command else Tools(log)


def _fingerprint(source: str) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for folder, folders, files in os.walk(source):
        folders.sort()
        for name in sorted(files):
            digest.update(name.encode())
            with open(os.path.join(folder, name), "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()[:16]


def _install_mosquitto(_source: str, _target: str) -> List[str]:
    if not shutil.which("mosquitto_sub"):
        raise Failed("mosquitto_sub is missing; install it with: apt-get install mosquitto-clients")
    return []


def _install_paho_python(source: str, target: str) -> List[str]:
    python = os.path.join(target, "bin", "python3")

    def build(work: str) -> None:
        _run([sys.executable, "-m", "venv", work])
        requirements = os.path.join(source, "requirements.txt")
        pip = ["-m", "pip", "install", "--quiet", "--require-hashes", "--disable-pip-version-check"]
        _run([os.path.join(work, "bin", "python3"), *pip, "-r", requirements])

    # A virtual environment contains its own path, so it cannot be moved.
    _once(target, build, is_movable=False)
    return [python, os.path.join(source, "driver.py")]


def _install_mqttjs(source: str, target: str) -> List[str]:
    def build(work: str) -> None:
        _copy(source, work)
        _run(["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"], work)

    _once(target, build)
    return ["node", os.path.join(target, "driver.js")]


def _install_paho_go(source: str, target: str) -> List[str]:
    def build(work: str) -> None:
        os.makedirs(work, exist_ok=True)
        _run(["go", "build", "-trimpath", "-mod=readonly", "-o", os.path.join(work, "driver"), "."], source)

    _once(target, build)
    return [os.path.join(target, "driver")]


def _install_rumqttc(source: str, target: str) -> List[str]:
    def build(work: str) -> None:
        # Builds a copy, so that the project's .cargo and target directory have no effect.
        _copy(source, work)
        environment = {key: value for key, value in os.environ.items() if key not in ("CARGO_TARGET_DIR", "RUSTFLAGS")}
        _run(["cargo", "build", "--quiet", "--locked"], work, environment)

    _once(target, build)
    return [os.path.join(target, "target", "debug", "interop-rumqttc")]


def _install_hivemq(source: str, target: str) -> List[str]:
    def build(work: str) -> None:
        _copy(source, work)
        _run(["mvn", "--quiet", "--batch-mode", "process-classes"], work)

    _once(target, build)
    classes = os.path.join(target, "target")
    # The driver runs for seconds, so it uses only the quick compiler and a small heap.
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Xshare:auto"]
    return ["java", *flags, "-cp", f"{classes}/classes:{classes}/dependency/*", "Driver"]


def _once(target: str, build: Callable[[str], None], is_movable: bool = True) -> None:
    """Installs atomically: an interrupted installation leaves nothing that looks finished."""
    done = os.path.join(target, ".installed")
    if os.path.exists(done):
        return
    work = f"{target}.{os.getpid()}" if is_movable else target
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    build(work)
    if is_movable:
        shutil.rmtree(target, ignore_errors=True)
        os.rename(work, target)
    with open(done, "w", encoding="utf-8"):
        pass


def _copy(source: str, target: str) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target", "node_modules"))


def _run(command: List[str], folder: str = ".", environment: Any = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except FileNotFoundError:
        raise Failed(f"{command[0]} is missing") from None
    if done.returncode:
        tail = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise Failed(f"`{' '.join(command[:3])} …` failed, is there a network?\n{tail}")


ALIAS_OUT = "topic alias to the client"
UNRESOLVED = "hands the alias to its user instead of the topic"
# The last scenario uses all clients together.
SHUTDOWN = "end of the broker"
NO_TRANSPORT = {
    name: "built with TCP only, which keeps its dependencies small"
    for name in ("TLS", "mutual TLS", "WebSocket", "secure WebSocket")
}

NO_QUIC = {
    name: "speaks no QUIC"
    for name in (
        "QUIC",
        "mutual QUIC",
        "QUIC, large message",
        "QUIC, another address",
        "QUIC, data streams",
        "QUIC, will",
    )
}

CLIENTS = [
    Client(
        "mosquitto",
        (3, 4, 5),
        _install_mosquitto,
        keep_alive_min=5,
        lacks={
            ("no will after DISCONNECT", 5): "leaves with reason 0x04, which asks for the will",
            "wildcards, unsubscribe": "unsubscribes only while connecting",
            "WebSocket": "speaks TCP only",
            "secure WebSocket": "speaks TCP only",
            **NO_QUIC,
            "overlapping identifiers": "one identifier per process",
            "reason of UNSUBACK": "does not print it",
            "assigned client id": "does not print it",
            "session expiry in DISCONNECT": "does not tell Session Present",
            "no local": "has no such option",
            "retain handling": "has no such option",
            ALIAS_OUT: UNRESOLVED,
        },
    ),
    Client("paho Python", (3, 4, 5), _install_paho_python, "paho-python", lacks={ALIAS_OUT: UNRESOLVED}),
    Client("MQTT.js", (3, 4, 5), _install_mqttjs, "mqttjs", lacks=NO_QUIC),
    Client(
        "rumqttc",
        (4, 5),
        _install_rumqttc,
        "rumqttc",
        keep_alive_min=5,
        lacks={
            ALIAS_OUT: UNRESOLVED,
            "session expiry in DISCONNECT": "sends no properties with DISCONNECT",
            **NO_TRANSPORT,
            **NO_QUIC,
        },
    ),
    Client(
        "paho Go",
        (3, 4, 5),
        _install_paho_go,
        "paho-go",
        needs=("go",),
        lacks={
            ALIAS_OUT: UNRESOLVED,
            "overlapping identifiers": "keeps the last identifier of a message only",
            "properties of wills": "leaves the content type of a will out",
            **NO_QUIC,
        },
    ),
    Client(
        "HiveMQ Java",
        (4, 5),
        _install_hivemq,
        "hivemq",
        needs=("javac", "mvn"),
        lacks={
            "subscription identifiers": "chooses and hides them",
            "overlapping identifiers": "chooses and hides them",
            **NO_QUIC,
        },
    ),
]
