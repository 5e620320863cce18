"""Starts the brokers that the scripts in this directory measure, each as a new process on loopback, and runs `tidewire bench`.

Uses the standard library only. Brokers store nothing on disk, and tidewire has the policy `memory`, unless the caller
requests persistence.
"""

import json
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import PEERS, Missing, free_port

ROOT = Path(__file__).resolve().parent.parent
# Connections of the largest scenario, and other open files of a process.
FILES_NEEDED = 15_000 + 200
# A minimal server that only forwards and acknowledges, as a lower bound: crates/bench/examples/floor.rs.
FLOOR = "floor"


class Broker:
    """A running broker. `ready_s` is the time from its start until it accepted a connection."""

    def __init__(self, name, target, keeps="", sets=(), environment=None, before=None):
        """`keeps` requests persistence: for tidewire the durability policy, for other brokers any true value. `environment`
        contains additional variables. `before` is called with the data directory before the start."""
        self.name = name
        self.ports = {kind: free_port() for kind in ("plain TCP", "TLS", "WebSocket", "secure WebSocket")}
        self.port = self.ports["plain TCP"]
        self.api_port = free_port()
        self.directory = tempfile.mkdtemp(prefix="tidewire-bench-")
        command = self._command(target, keeps, sets)
        if before:
            before(self.directory)
        start = time.monotonic()
        variables = os.environ | (environment or {})
        # Other brokers may write so much that a file would slow them down.
        self.errors = tempfile.TemporaryFile() if name == "tidewire" else None
        errors = self.errors or subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            self._wait_until_it_listens()
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - start

    def _command(self, target, keeps, sets):
        if self.name == "tidewire":
            return self._tidewire(target, [f"durability.policy={keeps or 'memory'}", *sets])
        if self.name == FLOOR:
            file = [str(Path(self.directory) / "kept")] if keeps else []
            return [str(example(target, "tidewire-bench", FLOOR)), f"127.0.0.1:{self.port}", *file]
        return PEERS[self.name].command(self.port, Path(self.directory), keeps=bool(keeps))

    def _tidewire(self, target, more):
        self.certificate, key = Path(self.directory) / "certificate.pem", Path(self.directory) / "key.pem"
        self_signed(self.certificate, key)
        secure = {"tls": "TLS", "wss": "secure WebSocket"}
        sets = [
            f"listeners.tcp.default.bind=127.0.0.1:{self.port}",
            f"listeners.ws.default.bind=127.0.0.1:{self.ports['WebSocket']}",
            *(f"listeners.{kind}.default.bind=127.0.0.1:{self.ports[name]}" for kind, name in secure.items()),
            *(f"listeners.{kind}.default.cert_file={self.certificate}" for kind in secure),
            *(f"listeners.{kind}.default.key_file={key}" for kind in secure),
            f"api.bind=127.0.0.1:{self.api_port}",
            f"node.data_dir={self.directory}",
            # The same as for the other brokers. The default of 1000 would drop QoS 1 messages for subscribers that are slower
            # than their publishers.
            "mqtt.max_queued_messages=100000",
            "mqtt.max_queued_bytes=unlimited",
            *more,
        ]
        return [str(target / "tidewire"), "--quiet", *set_flags(sets)]

    def _wait_until_it_listens(self):
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(self._last_error() or f"{self.name} ended with exit code {self.process.returncode}")
                if time.monotonic() > end:
                    sys.exit(f"{self.name} did not listen on port {self.port} within 30 s")
                time.sleep(0.001)

    def _last_error(self):
        """Returns the last line that tidewire has written to its standard error."""
        if not self.errors:
            return ""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip().split("\n")[-1][-300:]

    def resident_mib(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024

    def load(self, target, *args):
        """Runs a scenario of `tidewire bench` against the broker. Returns the JSON result."""
        done, result = self.try_load(target, *args)
        if done.returncode:
            sys.exit(f"{' '.join(done.args)}: {done.stdout[-2000:]}{done.stderr.strip()}")
        return result

    def try_load(self, target, *args, port=None):
        """Like `load`, on any port. Returns the finished program, and its JSON result or `None`. There can be a result
        although the program has failed, for example because some clients were rejected."""
        path = Path(self.directory) / "result.json"
        path.unlink(missing_ok=True)
        command = [str(target / "tidewire"), "bench", "run", *args, "--host", "127.0.0.1", "--port", str(port or self.port)]
        command += ["--broker-pid", str(self.process.pid), "--json", str(path)]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        return done, json.loads(path.read_text()) if path.exists() else None

    def settle(self):
        """Waits until the broker has processed the remaining data of the load, so that it does not disturb the next run."""
        end = time.monotonic() + 60
        before = self._ticks()
        while time.monotonic() < end:
            time.sleep(0.5)
            now = self._ticks()
            if now - before <= 1:
                return
            before = now
        print(f"{self.name} is still busy one minute after the end of the load", file=sys.stderr)

    def written_bytes(self):
        """Returns the number of bytes that the process has written to disk."""
        return int(re.search(r"^write_bytes: (\d+)", Path(f"/proc/{self.process.pid}/io").read_text(), re.MULTILINE).group(1))

    def files(self):
        """Returns the number of files in the data directory and the disk space that they use, in bytes."""
        found = [path.stat() for path in Path(self.directory).rglob("*") if path.is_file()]
        return len(found), sum(status.st_blocks * 512 for status in found)

    def cpu_s(self):
        return self._ticks() / os.sysconf("SC_CLK_TCK")

    def _ticks(self):
        """Returns the CPU time in clock ticks."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.errors:
            self.errors.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class OtherLoad:
    """Measures the CPU time of all processes but the broker and the load, which is a child of this process."""

    def __init__(self, broker):
        self.broker, self.start_s = broker, time.monotonic()
        self.before_s = self._cpu_s()

    def _cpu_s(self):
        own = os.times()
        return busy_s() - self.broker.cpu_s() - own.children_user - own.children_system

    def cores(self):
        return max(0.0, (self._cpu_s() - self.before_s) / (time.monotonic() - self.start_s))


def busy_s():
    """Returns the seconds for which the cores of the machine were busy."""
    total = Path("/proc/stat").read_text().split("\n")[0]
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(int, total.split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def median(values, shape):
    """Returns the formatted median. Empty if a value is missing."""
    return shape.format(statistics.median(values)) if values and None not in values else ""


def set_flags(options):
    """Returns the flags that set these options: `--set`, and key and value."""
    return [part for option in options for part in ("--set", option)]


def self_signed(certificate, key):
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
    output(*command, "-keyout", str(key), "-out", str(certificate))


def prepare(target, peers=()):
    """Installs these peers, raises limits, and builds tidewire if needed. Returns the directory with the programs."""
    for name in peers:
        try:
            PEERS[name].install()
        except Missing as missing:
            sys.exit(f"{name} is missing: {missing}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FILES_NEEDED:
        sys.exit(f"the limit of open files is {most}, but {FILES_NEEDED} are needed: run ulimit -n {FILES_NEEDED} as root")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if target:
        return target
    print("building the release profile; this takes some minutes", file=sys.stderr)
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "tidewire"], cwd=ROOT, check=True)
    return Path(json.loads(output("cargo", "metadata", "--no-deps", "--format-version", "1"))["target_directory"]) / "release"


def example(target, package, name):
    """Returns the path of a compiled example. Builds it next to the programs in `target` if it is missing."""
    path = target / "examples" / name
    if not path.exists():
        command = ["cargo", "build", "--release", "--quiet", "-p", package, "--example", name]
        subprocess.run([*command, "--target-dir", str(target.parent)], cwd=ROOT, check=True)
    return path


def output(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True, cwd=ROOT).stdout.strip()
