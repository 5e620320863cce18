"""Tests real MQTT clients against the real program. Run it through tests/interop/run, which installs the clients."""

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Tuple

from . import matrix, table
from . import scenarios_v5  # noqa: F401  registers its scenarios
from .broker import Broker
from .clients import CACHE, CLIENTS, SHUTDOWN, Client
from .message import Failed, Refused
from .scenarios import SCENARIOS, Scenario
from .table import VERSION_NAMES, Column, Results
from .trial import Trial

# Number of scenarios per client, and of clients, that run at the same time. Most of the time they wait.
SCENARIOS_AT_ONCE = 6
COLUMNS_AT_ONCE = 3
# The suite requires at least this many different clients.
CLIENTS_MIN = 5

_printing = threading.Lock()


def say(text: str) -> None:
    with _printing:
        print(f"interop: {text}", file=sys.stderr, flush=True)


def main() -> int:
    options = arguments()
    clients = [client for client in CLIENTS if not options.client or client.name.lower() in options.client]
    if not clients:
        say(f"there is no such client; there are: {', '.join(client.name.lower() for client in CLIENTS)}")
        return 2
    begin = time.monotonic()
    try:
        ready = install(clients)
        if not options.client and len(ready) < CLIENTS_MIN:
            raise Failed(f"{len(ready)} clients only, {CLIENTS_MIN} are promised; install Go or a JDK with Maven")
        directory = tempfile.mkdtemp(prefix="tidewire-interop-")
        installed = time.monotonic()
        report = Report()
        run(ready, directory, options, report)
    except Failed as failed:
        say(str(failed))
        return 1
    report.write(options.output, f"{installed - begin:.0f} s to install, {time.monotonic() - installed:.0f} s to run")
    if report.failures:
        say(f"the logs of the broker and the clients are in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/interop/run", description=__doc__)
    parser.add_argument("--client", action="append", help="only this one, such as 'paho go'; can be repeated")
    parser.add_argument("--scenario", action="append", help="only this one; can be repeated")
    parser.add_argument("--output", default=os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "interop.md"))
    return parser.parse_args()


def install(clients: List[Client]) -> List[Client]:
    say(f"installing clients into {CACHE}, if they are not there yet")
    ready = []
    for client in clients:
        if missing := client.missing():
            say(f"{client.name} is left out: there is no {' and no '.join(missing)} here")
        else:
            ready.append(client)
    with ThreadPoolExecutor(2) as pool:
        for client, done in [(client, pool.submit(client.prepare)) for client in ready]:
            try:
                done.result()
            except Failed as failed:
                raise Failed(f"{client.name} cannot be installed: {failed}") from None
    return ready


class Report:
    def __init__(self) -> None:
        self.results: Results = {}
        self.failures: List[str] = []
        self.reasons: Dict[str, None] = {}
        self.columns: List[Column] = []
        self.matrix: Optional[str] = None
        self._lock = threading.Lock()

    def add(self, scenario: str, column: Column, failure: Optional[str]) -> None:
        with self._lock:
            self.results[(scenario, column)] = "FAIL" if failure else "ok"
            if failure:
                self.failures.append(f"{column[0]}, MQTT {VERSION_NAMES[column[1]]}, {scenario}: {failure}")

    def leave_out(self, scenario: str, column: Column, reason: str) -> None:
        with self._lock:
            self.results[(scenario, column)] = "–"
            self.reasons[f"{column[0]}, {scenario}: {reason}"] = None

    def write(self, path: str, times: str) -> None:
        names = [scenario.name for scenario in SCENARIOS if any(key[0] == scenario.name for key in self.results)]
        if any(key[0] == SHUTDOWN for key in self.results):
            names.append(SHUTDOWN)
        text = [table.features(self.columns, names, self.results)]
        if self.matrix:
            text.append("Received by every column from every row, at QoS 0, 1 and 2:\n\n" + self.matrix)
        if self.reasons:
            text.append("`–`: the client cannot do it.\n\n" + "\n".join(f"- {reason}" for reason in self.reasons))
        if self.failures:
            text.append("Failures:\n\n" + "\n".join(f"- {failure}" for failure in self.failures))
        counts = list(self.results.values())
        text.append(f"{counts.count('ok')} ok, {counts.count('FAIL')} failed, {counts.count('–')} left out; {times}.")
        whole = "\n\n".join(text) + "\n"
        print(whole, flush=True)
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("# Real clients against tidewire\n\n" + whole)
        say(f"the table is in {path}")


def run(clients: List[Client], directory: str, options: argparse.Namespace, report: Report) -> None:
    report.columns = [(client.name, version) for client in clients for version in client.versions]
    broker = Broker(os.environ["TIDEWIRE_BIN"], directory)
    drivers: Dict[str, Any] = {}
    try:
        drivers = {client.name: client.start(directory) for client in clients}
        by_name = {client.name: client for client in clients}
        with ThreadPoolExecutor(COLUMNS_AT_ONCE) as pool:
            work = lambda column: run_column(by_name[column[0]], drivers[column[0]], column, broker, options, report)
            list(pool.map(work, report.columns))
        if not options.scenario:
            report.matrix = matrix.run(report, drivers, broker)
            shutdown(by_name, drivers, broker, report)
    finally:
        for driver in drivers.values():
            driver.stop()
        code = broker.stop()
    if code:
        report.failures.append(f"tidewire ended with exit code {code}")


def run_column(
    client: Client, driver: Any, column: Column, broker: Broker, options: argparse.Namespace, report: Report
) -> None:
    def one(scenario: Scenario) -> None:
        if reason := client.lack(scenario.name, column[1]):
            report.leave_out(scenario.name, column, reason)
        else:
            trial = Trial(driver, column[1], broker, client.keep_alive_min)
            report.add(scenario.name, column, attempt(scenario.run, trial))

    wanted = [scenario for scenario in SCENARIOS if column[1] in scenario.versions]
    if options.scenario:
        wanted = [scenario for scenario in wanted if scenario.name in options.scenario]
    with ThreadPoolExecutor(SCENARIOS_AT_ONCE) as pool:
        list(pool.map(one, wanted))


def attempt(scenario: Any, trial: Trial) -> Optional[str]:
    """Returns the failure message, or None."""
    try:
        scenario(trial)
        return None
    except (Failed, Refused) as failed:
        return str(failed)
    except Exception as error:  # A client must not end the others' tests.
        return f"{type(error).__name__}: {error}"
    finally:
        trial.close()


def shutdown(clients: Dict[str, Client], drivers: Dict[str, Any], broker: Broker, report: Report) -> None:
    """All clients see the end of their connection; MQTT 5 clients receive the reason code."""
    trials: List[Tuple[Column, Trial, Any]] = []
    for column in report.columns:
        if reason := clients[column[0]].lack(SHUTDOWN, column[1]):
            report.leave_out(SHUTDOWN, column, reason)
            continue
        trial = Trial(drivers[column[0]], column[1], broker)
        try:
            trials.append((column, trial, trial.connect("last", relay=True, subscribe=[(trial.topic("x"), 0)])))
        except (Failed, Refused) as failed:
            report.add(SHUTDOWN, column, f"cannot connect: {failed}")
    broker.terminate()
    for column, trial, peer in trials:

        def hears(_trial: Trial) -> None:
            reason = peer.closed()
            if column[1] == 5 and reason not in (None, 0x8B):
                raise Failed(f"the broker left with reason {reason}")

        report.add(SHUTDOWN, column, attempt(hears, trial))


if __name__ == "__main__":
    sys.exit(main())
