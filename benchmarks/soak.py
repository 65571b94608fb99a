"""Devices in a lab under random faults: is a round lost, does anything hang, does memory grow?

A lab of forty devices trains one run of 200 rounds after another, while devices
are killed, stopped and cut off, the server is killed with -9 and started again, its disk is full
for ten seconds, and clocks jump by up to a day. Which fault comes when follows from the seed. After
the last one everybody must answer again. Needs root, as the lab and the small disk do. The clock
that jumps is the wall clock, of the server or of all devices, by a library that is preloaded into
them (it needs cc); the machine's own clock is left alone.

    python benchmarks/soak.py --minutes 15
    python benchmarks/soak.py --minutes 15 --mode asynchronous
    python benchmarks/soak.py --minutes 15 --mode asynchronous --liars 3 --robust

With `--liars` so many devices lie, each time by chance: they send -10 times their update, or a
million times, or next to nothing, or a gradient norm of 1e30. A run whose loss has risen at its end
is a problem.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from mmap import mmap
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tables import print_table

from fedpace.checks import FloatArray
from fedpace.devices.lab import launch
from fedpace.devices.lab.launch import ip_batch
from fedpace.devices.lab.register import read_lab
from fedpace.studies.store import Store

SETUP = """
name = "soak"

[data]
kind = "synthetic"
sizes = "power-law"
clients = {devices}
samples = {samples}
smallest = 20
features = 500
seed = 1

[training]
k = {k}
mode = "{mode}"
local_steps = 5
batch = 8
schedule = "inverse:0.001"

[stop]
rounds = {rounds}
"""
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static long ahead(void) {
  static const volatile long *place;
  static long none;
  if (!place) {
    const char *file = getenv("SOAK_CLOCK");
    int handle = file ? open(file, O_RDONLY) : -1;
    void *found = handle < 0 ? MAP_FAILED
                             : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, handle, 0);
    place = found == MAP_FAILED ? &none : found;
  }
  return *place;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += ahead();
  return failed;
}
time_t time(time_t *place) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (place) *place = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
"""
DAY = 86_400
LIES = (-10.0, 1e6, 1e-30, 1.0)
# Seconds without a finished round after which something hangs. No fault lasts longer than fifteen.
# Those in which the lab was ready, and had no core, do not count; but all do after so many times
# as long.
HANGS, AT_MOST = 120.0, 10
# Seconds after which a process holds what it holds, and between two looks.
SETTLED, LOOK_AGAIN = 20.0, 0.25
DISK = "96m"
FULL_DISK = 10.0
# One device of so many is never killed: it shows whether the memory of a device grows.
SPARED = 10
WEIGHTS = {
    "device killed": 3,
    "device stopped": 3,
    "link cut": 3,
    "server killed -9": 1,
    "disk full": 0.5,
    "clock jumps": 1,
}


class Soak:
    """A lab, its server, the faults that are on, and what was seen."""

    def __init__(
        self,
        folder: Path,
        devices: int,
        *,
        mode: str,
        rounds: int,
        seed: int,
        liars: int = 0,
        robust: bool = False,
        time_scale: float = 0.05,
    ) -> None:
        self.folder, self.rounds, self.robust = folder, rounds, robust
        self.time_scale = time_scale
        self.liars = {*range(devices - liars, devices)}
        self.name, self.state, self.out = f"soak-{os.getpid()}", folder / "state", folder / "out"
        self.setup = folder / "soak.toml"
        k = max(2, devices // 4)
        text = SETUP.format(devices=devices, samples=100 * devices, k=k, mode=mode, rounds=rounds)
        self.setup.write_text(text)
        self.rng = random.Random(seed)
        self.problems: list[str] = []
        self.faults: Counter[str] = Counter()
        self.server: subprocess.Popen[bytes] | None = None
        self.down: set[str] = set()  # why the server is not to run
        self.lives = 0
        self.hit: set[int] = set()  # devices that have a fault
        self.killed: set[int] = set()
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.seen: tuple[str, FloatArray] = ("", np.empty(0))
        self.running: dict[str, int] = {}  # the process of each device
        self.done, self.began = 0, 0.0
        self.longest = (0.0, 0.0)  # time without a round, and how much of it without a core
        self.delays: dict[int, float] = {}
        self.go_on()
        self.server_memory: list[int] = []
        self.fell: list[float] = []  # the last loss of each run, in parts of its first

    def fedpace(self, *args: object) -> list[str]:
        lab = ("--name", self.name, "--state", self.state)
        return [sys.executable, "-m", "fedpace", "lab", *map(str, (*args, *lab))]

    def bring_up(self) -> None:
        """Start the lab; every device's clock is the one in the file `devices`."""
        times = ("--times", "uniform:0.187:7.159", "--time-scale", self.time_scale)
        subprocess.run(self.fedpace("up", "--setup", self.setup, *times), check=True)
        self.lab = read_lab(self.name, self.state)
        self.running = launch.running_devices(self.name)
        for device in self.liars:
            pid = self.running[self.lab.device_names[device]]
            command = command_of(pid)
            os.kill(pid, signal.SIGKILL)
            self.start_device(device, [sys.executable, __file__, "--as-liar", *command[3:]])

    def start_server(self) -> None:
        """Start the server, or go on from where it was ended."""
        more = ("--schemes", "pace", "--seeds", 5000, "--evaluate-every", 20, "--patience", 60)
        robust = ("--robust",) if self.robust else ()
        environment = {**os.environ, "SOAK_CLOCK": str(self.folder / "server")}
        with (self.folder / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                self.fedpace("run", self.setup, *more, *robust, "--out", self.out),
                stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        self.began = time.monotonic()
        self.lives += 1

    def kill_server(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None

    def go_on(self) -> None:
        """Count from now for how long no round is finished, and for how long there is no core."""
        self.progressed, self.starved = time.monotonic(), 0.0

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.due, (time.monotonic() + seconds, next(self._numbers), do))

    def look(self) -> None:
        """Do what is due, keep the server up, and see how far it is."""
        while self.due and self.due[0][0] <= time.monotonic():
            heapq.heappop(self.due)[2]()
        if self.server is not None and self.server.poll() is not None:
            if "No space left" not in (line := self.last_line()):
                self.problems.append(f"the server ended, {self.server.returncode}: {line}")
            self.server = None
        if self.server is None and not self.down:
            self.start_server()
        if self.server is not None and time.monotonic() - self.began > SETTLED:
            self.server_memory.append(launch.memory(self.server.pid))
        self.look_at_cores()
        self.look_at_rounds()

    def last_line(self) -> str:
        lines = (self.folder / "server.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def look_at_cores(self) -> None:
        """Add for how long anybody was ready, and had no core, since the last look."""
        server = [] if self.server is None else [self.server.pid]
        now = {pid: delayed(pid) for pid in (*server, *self.running.values())}
        more = (seconds - self.delays.get(pid, 0.0) for pid, seconds in now.items())
        self.starved += max((0.0, *more))
        self.delays = now

    def look_at_rounds(self) -> None:
        """See that what was done stays done, and that something is being done."""
        now = self.standing()
        if now is not None:
            self.compare(*now)
        stored = len(Store(self.out).keys()) if self.out.exists() else 0
        current = self.seen[1].size - 1 if now is not None else 0
        done = stored * self.rounds + max(current, 0)
        waited = time.monotonic() - self.progressed
        if done > self.done:
            without = min(waited, self.starved)  # several may have been ready, one after another
            self.done, self.longest = done, max(self.longest, (waited, without))
            self.go_on()
        elif waited - self.starved > HANGS or waited > AT_MOST * HANGS:
            is_up = f"up for {time.monotonic() - self.began:.0f} s"
            raise TimeoutError(
                f"no round was finished for {waited:.0f} s, {self.starved:.0f} s of them without "
                f"a core; the server is {'down' if self.server is None else is_up}, and the last "
                f"that one said is: {self.last_line()}"
            )

    def standing(self) -> tuple[str, FloatArray] | None:
        """Return the run that is under way, and its clock after each of its rounds."""
        with contextlib.suppress(ValueError, FileNotFoundError):  # none, or not any more
            (path,) = (self.out / "checkpoints").glob("[!.]*.npz")
            with np.load(path) as file:
                return path.stem, file["rows-seconds"]
        return None

    def compare(self, key: str, seconds: FloatArray) -> None:
        before, known = self.seen
        if before and key != before:
            stored = list(Store(self.out).runs(keys={before}))
            later = [row.seconds for run in stored for row in run.history.rows]
        else:
            later = seconds.tolist()
        if known.tolist() != later[: known.size]:
            self.problems.append(f"rounds of {before} were lost: {known.size}, then {len(later)}")
        self.seen = key, seconds

    # Faults: each begins, and says after how many seconds what ends it.

    def one_device(self, kind: str) -> int | None:
        free = [i for i in range(self.lab.devices) if i not in self.hit]
        if kind == "device killed":
            free = [i for i in free if i % SPARED]
        if not free:
            return None
        device = self.rng.choice(free)
        self.hit.add(device)
        return device

    def fault(self, kind: str, scale: float) -> None:
        """Begin a fault; its end comes later. Without a client left to hit, there is none."""
        lasts = scale * self.rng.uniform(1, 12)
        if kind == "server killed -9":
            self.kill_server()
            self.down.add(kind)
            self.later(lasts / 3, lambda: self.down.discard(kind))
        elif kind == "disk full":
            if kind in self.down or (self.out / "full").exists():
                return
            self.fill()
            self.down.add(kind)  # it ends by itself, and does not start again before there is room
            self.later(scale * FULL_DISK, self.make_room)
        elif kind == "clock jumps":
            clock = self.folder / self.rng.choice(["server", "devices"])
            set_clock(clock, self.rng.choice([-1, 1]) * self.rng.randrange(60, DAY))
            self.later(lasts, lambda: set_clock(clock, 0))
        elif (device := self.one_device(kind)) is not None:
            self.device_fault(kind, device, lasts)
        else:
            return
        self.faults[kind] += 1

    def device_fault(self, kind: str, device: int, lasts: float) -> None:
        pid, link = self.running[self.lab.device_names[device]], self.lab.names.veth(device)
        if kind == "device killed":
            command = command_of(pid)
            os.kill(pid, signal.SIGKILL)
            self.killed.add(device)
            end: Callable[[], object] = partial(self.start_device, device, command)
        elif kind == "device stopped":
            os.kill(pid, signal.SIGSTOP)
            end = partial(os.kill, pid, signal.SIGCONT)
        else:
            ip_batch([f"link set {link} down"])
            end = partial(ip_batch, [f"link set {link} up"])

        def over() -> None:
            end()
            self.hit.discard(device)

        self.later(lasts, over)

    def start_device(self, device: int, command: list[str]) -> None:
        inside = ["ip", "netns", "exec", self.lab.names.namespace(device)]
        name = self.lab.device_names[device]
        log = self.state / self.name / "logs" / f"{name}.log"
        self.running[name] = launch.start(inside + command, lab=self.name, device=name, log=log)

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.out / "full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))

    def make_room(self) -> None:
        (self.out / "full").unlink(missing_ok=True)
        self.down.discard("disk full")

    def device_memory(self) -> dict[int, int]:
        names = self.lab.device_names
        return {i: launch.memory(self.running[name]) for i, name in enumerate(names)}

    def answered_since(self, rounds: int) -> set[int]:
        """Return who answered after so many rounds of all."""
        found: set[int] = set()
        runs = [run.history.rows for run in Store(self.out).runs()]
        for index, rows in enumerate(runs):
            after = rounds - index * self.rounds
            found.update(int(i) for row in rows if row.round > after for i in row.clients)
        return found

    def check_stored(self) -> int:
        """Return how many runs are stored; each must hold all of its rounds, in order."""
        runs = list(Store(self.out).runs())
        for run in runs:
            rounds = [row.round for row in run.history.rows]
            if rounds != list(range(self.rounds + 1)):
                self.problems.append(f"{run.scheme}, seed {run.seed}: not all rounds are there")
            losses = [row.loss for row in run.history.rows if row.evaluated]
            self.fell.append(losses[-1] / losses[0])
            if not self.fell[-1] < 1:
                self.problems.append(f"{run.scheme}, seed {run.seed}: its loss has risen")
        return len(runs)


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]


def join_as_liar(arguments: list[str]) -> None:
    """Run `fedpace ARGUMENTS` on a device that lies about its updates."""
    from fedpace.__main__ import main as fedpace
    from fedpace.backends.local import LocalTrainer

    train, rng = LocalTrainer.train, random.Random(os.getpid())

    def lie(*args: object, **how: object) -> object:
        update, norm = train(*args, **how)  # type: ignore[arg-type]
        factor = rng.choice(LIES)
        return factor * update, 1e30 if factor == 1.0 else norm

    LocalTrainer.train = lie  # type: ignore[method-assign,assignment]
    sys.argv = ["fedpace", *arguments]
    fedpace()


def delayed(pid: int) -> float:
    """Return for how many seconds a main thread was ready, and had no core; 0 when it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def set_clock(file: Path, ahead: int) -> None:
    """Let the clock of the readers of this file be ahead by this many seconds."""
    with file.open("r+b") as handle, mmap(handle.fileno(), 8) as place:
        ctypes.c_long.from_buffer(place).value = ahead


def soak(lab: Soak, minutes: float, every: float, say: Callable[[str], None]) -> dict[str, str]:
    """Let faults happen for some minutes; return what there is to report."""
    scale = min(1.0, every / 5)
    lab.start_server()
    lab.go_on()
    while not lab.done:
        lab.look()
        time.sleep(LOOK_AGAIN)
    begin = time.monotonic()
    lab.go_on()
    at_first = lab.device_memory()
    end, first = begin + 60 * minutes, list(WEIGHTS)
    lab.rng.shuffle(first)
    fault_at = begin
    said = begin
    while time.monotonic() < end:
        lab.look()
        if time.monotonic() >= fault_at:
            kind = first.pop() if first else lab.rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
            lab.fault(kind, scale)
            fault_at = time.monotonic() + lab.rng.expovariate(1 / every)
        if time.monotonic() - said > 60:
            said = time.monotonic()
            say(f"{(said - begin) / 60:.0f} min: {lab.done} rounds, {lab.faults.total()} faults")
        time.sleep(LOOK_AGAIN)
    while lab.due:  # whatever is broken is mended
        lab.look()
        time.sleep(LOOK_AGAIN)
    healed, all_of_them = lab.done, set(range(lab.lab.devices))
    lab.go_on()
    quiet = time.monotonic()
    target = lab.done // lab.rounds + 2  # one run that begins after the last fault
    while lab.done < target * lab.rounds:
        lab.look()
        time.sleep(LOOK_AGAIN)
    if silent := all_of_them - lab.liars - lab.answered_since(healed):
        lab.problems.append(f"after the last fault these never answered: {sorted(silent)}")
    at_last = lab.device_memory()
    if not lab.server_memory and lab.server is not None:
        lab.server_memory.append(launch.memory(lab.server.pid))
    logs = [lab.folder / "server.log", *(lab.state / lab.name / "logs").glob("*.log")]
    for log in logs:
        if "Traceback" in log.read_text(errors="replace"):
            lab.problems.append(f"{log.name} has a traceback")
    stay = sorted(all_of_them - lab.killed)
    return {
        "minutes of faults": f"{minutes:g}",
        "rounds done": f"{lab.done:,}",
        "runs stored, whole": f"{lab.check_stored():,}",
        "last loss over first, median and most": f"{median(lab.fell):.3f}, {max(lab.fell):.3f}",
        "faults": ", ".join(f"{kind} {times}" for kind, times in sorted(lab.faults.items())),
        "longest time without a round, of it without a core": "{:.1f} s, {:.1f} s".format(
            *lab.longest
        ),
        "a whole run after the last fault": f"{time.monotonic() - quiet:.0f} s, all answered"
        if not silent
        else f"without {len(silent)}",
        "server, first and last 20 s after its start, most": megabytes(
            lab.server_memory[0], lab.server_memory[-1], max(lab.server_memory)
        ),
        f"{len(stay)} devices never killed, median at first and at last": megabytes(
            *(median(each[i] for i in stay) for each in (at_first, at_last)) if stay else (0,)
        ),
        "the same, largest": megabytes(
            *(max(each[i] for i in stay) for each in (at_first, at_last)) if stay else (0,)
        ),
        "starts of the server": f"{lab.lives}",
        "rounds lost, unforeseen ends": f"{len(lab.problems)}",
    }


def megabytes(*values: float) -> str:
    return " → ".join(f"{value / 1e6:.1f}" for value in values) + " MB"


@contextmanager
def prepared(devices: int, **how: Any) -> Iterator[Soak]:
    """Make the small disk, the clock and the lab, and remove them after."""
    folder = Path(tempfile.mkdtemp(prefix="fedpace-soak-"))
    made = Soak(folder, devices, **how)
    made.out.mkdir()
    for clock in ("server", "devices"):
        (folder / clock).write_bytes(bytes(8))
    (folder / "clock.c").write_text(CLOCK)
    library = str(folder / "clock.so")
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", library, folder / "clock.c", "-ldl"], check=True
    )
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(made.out)]
    subprocess.run(mount, check=True)
    os.environ |= {"LD_PRELOAD": library, "SOAK_CLOCK": str(folder / "devices")}
    try:
        made.bring_up()
        yield made
    finally:
        made.kill_server()
        subprocess.run(made.fedpace("down"), check=False)
        del os.environ["LD_PRELOAD"]
        subprocess.run(["umount", made.out], check=True)
        if not made.problems:
            shutil.rmtree(folder)


def main() -> int:
    if sys.argv[1:2] == ["--as-liar"]:
        join_as_liar(sys.argv[2:])
        return 0
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=15.0, help="of faults")
    parser.add_argument("--devices", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=200, help="of each run")
    parser.add_argument("--every", type=float, default=5.0, help="mean seconds between faults")
    parser.add_argument("--mode", choices=["synchronous", "asynchronous"], default="synchronous")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--liars", type=int, default=0)
    parser.add_argument("--robust", action="store_true", help="run with training.server=clip:2")
    parser.add_argument("--time-scale", type=float, default=0.05, help="more needs less of a core")
    options = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ("cc", "ip", "tc"))):
        print("soak.py needs root, cc, ip and tc", file=sys.stderr)
        return 2
    names = ("mode", "rounds", "seed", "liars", "robust", "time_scale")
    with prepared(options.devices, **{name: getattr(options, name) for name in names}) as made:
        try:
            found = soak(made, options.minutes, options.every, lambda line: print(line, flush=True))
            print_table(("of the soak", ""), found.items())
        except TimeoutError as error:
            made.problems.append(str(error))
        for problem in made.problems:
            print(f"problem: {problem}; see {made.folder}")
    return 1 if made.problems else 0


if __name__ == "__main__":
    sys.exit(main())
