"""A lossy link between two network namespaces of this machine, for TCP and UDP alike.

Each namespace has a TUN device. A process of this script moves the packets between the devices: it loses a share of them, and
delays the others. The kernel's module for this (netem) is missing on many virtual machines. Needs root, and `ip` and
`nsenter`. Python moves about 30,000 packets per second, which bounds what a measurement can ask for.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import socket
import struct
import subprocess
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
MTU = 1500
NETWORK = "10.77.0"
DEVICE = "lossy0"


class LossyLink:
    """`loss` is the share of packets lost in each direction, `delay_s` the time of a packet in one direction. The losses are
    the same in each run with the same seed and the same packets."""

    def __init__(self, loss, delay_s, seed=1):
        self.addresses = [f"{NETWORK}.1", f"{NETWORK}.2"]
        self._pids, devices = [], []
        try:
            for address in self.addresses:
                pid, device = namespace(address)
                self._pids.append(pid)
                devices.append(device)
            self._pids.append(fork(lambda: relay(devices, loss, delay_s, seed)))
        except BaseException:
            self.close()
            raise
        for device in devices:
            os.close(device)

    def command(self, side, *command):
        """Returns a command that runs in the namespace of one side: 0 has the first address, 1 the second."""
        return ["nsenter", f"--net=/proc/{self._pids[side]}/ns/net", *map(str, command)]

    def close(self):
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pids = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def fork(run):
    """Runs a function in a child process. Returns its id."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(1)
    return pid


def namespace(address):
    """Starts a process that keeps a new network namespace. Returns its id and the TUN device of the namespace."""
    ours, theirs = socket.socketpair()

    def keep():
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot create a network namespace; run as root")
        device = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        for command in (
            ["link", "set", "lo", "up"],
            ["address", "add", f"{address}/24", "dev", DEVICE],
            ["link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", "10000", "up"],
        ):
            subprocess.run(["ip", *command], check=True)
        socket.send_fds(theirs, [b"ready"], [device])
        while True:
            signal.pause()

    pid = fork(keep)
    theirs.close()
    _, devices, _, _ = socket.recv_fds(ours, 16, 1)
    if not devices:
        os.waitpid(pid, 0)
        raise SystemExit("cannot create a network namespace with a TUN device; the lines above have the reason")
    return pid, devices[0]


def relay(devices, loss, delay_s, seed):
    """Moves packets between two devices until it is killed."""
    others = {devices[0]: devices[1], devices[1]: devices[0]}
    chances = {device: random.Random(seed + number) for number, device in enumerate(devices)}
    waiting, number = [], 0
    for device in devices:
        os.set_blocking(device, False)
    while True:
        timeout = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(devices, [], [], timeout)
        now = time.monotonic()
        for device in readable:
            for _ in range(64):
                try:
                    packet = os.read(device, 65536)
                except BlockingIOError:
                    break
                if chances[device].random() >= loss:
                    number += 1
                    heapq.heappush(waiting, (now + delay_s, number, others[device], packet))
        while waiting and waiting[0][0] <= now:
            _, _, device, packet = heapq.heappop(waiting)
            try:
                os.write(device, packet)
            except (BlockingIOError, OSError):
                pass  # The queue of the device is full, or it cannot take the packet: it is lost.
