"""The broker under test: the real program, with every kind of listener on free ports, users, rules and certificates."""

import os
import random
import shutil
import socket
import subprocess
import time
from typing import Dict, List

from .message import Failed

CONFIG = """
[node]
data_dir = "{directory}/data"

[api]
enabled = false

[listeners.tcp.default]
bind = "127.0.0.1:{tcp}"

[listeners.ws.default]
bind = "127.0.0.1:{ws}"

[listeners.tls.default]
bind = "127.0.0.1:{tls}"

[listeners.wss.default]
bind = "127.0.0.1:{wss}"

[listeners.tls.mutual]
bind = "127.0.0.1:{mtls}"
verify_client = "required"

[listeners.quic.default]
bind = "127.0.0.1:{quic}"
max_data_streams = 4

[listeners.quic.mutual]
bind = "127.0.0.1:{mquic}"
verify_client = "required"

[tls]
cert_file = "{directory}/server.pem"
key_file = "{directory}/server.key"
ca_file = "{directory}/ca.pem"

[access]
anonymous = "loopback"
rules = [
  {{ permission = "deny", action = "all", topics = ["denied/#"] }},
  {{ permission = "allow", action = "all", topics = ["#"] }},
]

[access.users]
alice = "{hash}"

[log]
level = "debug"
file = "{directory}/tidewire.log"
"""

TRANSPORTS = ("tcp", "ws", "tls", "wss", "mtls", "quic", "mquic")
# Nothing shows that a UDP port is open. The server opens all ports before it accepts connections.
UDP = ("quic", "mquic")
USER = ("alice", "wonderland")


class Broker:
    def __init__(self, binary: str, directory: str) -> None:
        self.directory = directory
        self.ports: Dict[str, int] = {}
        make_certificates(directory)
        done = subprocess.run([binary, "passwd"], input=USER[1] + "\n", capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"tidewire passwd: {done.stderr.strip()}")
        # Another process may have taken a port that was free before.
        for _ in range(3):
            self.ports = dict(zip(TRANSPORTS, free_ports(len(TRANSPORTS))))
            config = CONFIG.format(directory=directory, hash=done.stdout.strip(), **self.ports)
            with open(f"{directory}/tidewire.toml", "w", encoding="utf-8") as file:
                file.write(config)
            if self._start(binary):
                return
        with open(f"{directory}/tidewire.err", encoding="utf-8") as file:
            raise Failed(f"tidewire does not start: {file.read().strip()}")

    def _start(self, binary: str) -> bool:
        with open(f"{self.directory}/tidewire.err", "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                [binary, "--quiet", "--config", f"{self.directory}/tidewire.toml"],
                stdout=errors,
                stderr=errors,
            )
        end = time.monotonic() + 20
        while time.monotonic() < end and self.process.poll() is None:
            if all(listens(port) for transport, port in self.ports.items() if transport not in UDP):
                return True
            time.sleep(0.02)
        self.process.kill()
        self.process.wait()
        return False

    def credentials(self, transport: str) -> Dict[str, str]:
        files = {}
        if transport in ("tls", "wss", "mtls", "quic", "mquic"):
            files["ca"] = f"{self.directory}/ca.pem"
        if transport in ("mtls", "mquic"):
            files["cert"] = f"{self.directory}/client.pem"
            files["key"] = f"{self.directory}/client.key"
        return files

    def terminate(self) -> None:
        """Sends SIGTERM without waiting."""
        self.process.terminate()

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed("tidewire did not end within 15 s of SIGTERM") from None


def free_ports(count: int) -> List[int]:
    """Returns a free port outside the ephemeral range, because a client could take an ephemeral port before the server."""
    ports: List[int] = []
    while len(ports) < count:
        port = random.randrange(13_000, 14_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        if port not in ports:
            ports.append(port)
    return ports


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def make_certificates(directory: str) -> None:
    """Creates a certificate authority for this run, and a server and a client certificate signed by it."""
    if not shutil.which("openssl"):
        raise Failed("openssl is needed to make certificates; install it with: apt-get install openssl")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    path = lambda name: os.path.join(directory, name)
    openssl(
        "req", "-x509", *key, "-keyout", path("ca.key"), "-out", path("ca.pem"), "-subj", "/CN=throw-away authority",
        "-addext", "keyUsage=critical,keyCertSign",
    )
    # Strict verifiers, such as that of Python 3.13, require these extensions.
    common = "basicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    for name, extensions in (
        ("server", common + "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n"),
        ("client", common + "extendedKeyUsage=clientAuth\n"),
    ):
        with open(path(f"{name}.ext"), "w", encoding="utf-8") as file:
            file.write(extensions)
        request = path(f"{name}.csr")
        openssl("req", *key, "-keyout", path(f"{name}.key"), "-out", request, "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", request, "-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-CAcreateserial",
            "-days", "2", "-out", path(f"{name}.pem"), "-extfile", path(f"{name}.ext"),
        )


def openssl(*args: str) -> None:
    done = subprocess.run(["openssl", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"openssl {args[0]}: {done.stderr.strip()}")
