"""Two hosts as network namespaces under torchrun: a run that ends well, and one whose link is cut.

    python tools/two_hosts.py        # needs root and `ip` (package iproute2); else it is skipped

Each namespace is a host with one rank; torchrun's c10d rendezvous joins them over a virtual link.
Then the link goes down in the middle of training: both hosts must end by themselves, with an exit
code that is not 0 and a message that names the lost host, and leave no process and no port behind.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from graphplan.files import write_noun

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "processes" / "faulty.py"
PORT = 29417
AIM_S = 15.0
"""From the cut to the end of the last process."""
TOLD = (
    "lost contact with the store",
    "no sign of life",
    "does not come from rank",
    "cannot be sent",
)


class Host:
    """A network namespace with one end of the link."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"graphplan-{os.getpid()}-{number}"
        self.link = f"gp{os.getpid() % 100000}n{number}"
        self.address = f"10.213.7.{number + 1}"
        self.process: subprocess.Popen[str] | None = None

    def run(self, *words: str) -> None:
        """Run `ip` inside the namespace."""
        call_ip("-n", self.name, *words)

    def start(self, plan: Path, *, rendezvous: str, steps: int) -> None:
        """Start torchrun with this host's rank."""
        launch = ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", rendezvous]
        launch += ["--rdzv-id", plan.parent.name, "--local-addr", self.address]
        # torchrun compares host names, which both namespaces share.
        launch += ["--rdzv-conf", f"is_host={int(self.number == 0)}"]
        work = ["-m", "graphplan_runtime", str(plan), str(MODEL), "--device", "cpu"]
        work += ["--steps", str(steps)]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, "-m", *launch, *work],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": self.link, "PYTHONPATH": str(ROOT)},
        )

    def finish(self, timeout_s: float) -> tuple[int, str]:
        """Exit code and output."""
        assert self.process is not None
        try:
            text, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            return 0, f"still running after {timeout_s:.0f} s\n{error.output!r}"
        return self.process.returncode, text

    def list_left(self) -> list[str]:
        """Processes and open ports of the namespace."""
        pids = call_ip("netns", "pids", self.name).split()
        ports = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
        listening = subprocess.run(
            ["ip", "netns", "exec", self.name, "cat", *map(str, ports)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return [f"process {pid}" for pid in pids] + [
            f"port {int(line.split()[1].rpartition(':')[2], 16)}"
            for line in listening.splitlines()
            if len(line.split()) > 3 and line.split()[3] == "0A"
        ]


def call_ip(*words: str) -> str:
    """What `ip` prints."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
    return done.stdout


def connect_hosts(hosts: tuple[Host, Host]) -> None:
    """Two namespaces and a virtual cable between them; nothing else of this machine is reached."""
    for host in hosts:
        call_ip("netns", "add", host.name)
    first, second = hosts
    call_ip("link", "add", first.link, "netns", first.name, "type", "veth",
            "peer", "name", second.link, "netns", second.name)  # fmt: skip
    for host in hosts:
        host.run("address", "add", f"{host.address}/24", "dev", host.link)
        host.run("link", "set", host.link, "up")
        host.run("link", "set", "lo", "up")


def remove_hosts(hosts: tuple[Host, Host]) -> None:
    """End what still runs there, then the namespaces."""
    for host in hosts:
        if host.process is not None and host.process.poll() is None:
            host.process.kill()
        for pid in subprocess.run(
            ["ip", "netns", "pids", host.name], capture_output=True, text=True, check=False
        ).stdout.split():
            os.kill(int(pid), 9)
        subprocess.run(["ip", "netns", "delete", host.name], capture_output=True, check=False)


def write_plan(folder: Path) -> Path:
    """One stage on each host."""
    from graphplan.frontend import load_model_file, trace_model_file
    from tests.processes.plans import plan_by_hand

    graph = trace_model_file(load_model_file(MODEL)).graph
    plan = plan_by_hand(
        graph,
        {op.name: int(op.name not in ("linear", "tanh")) for op in graph.ops},
        devices=[(0,), (1,)],
        batch_size=8,
        micro_batch_size=2,
    )
    path = folder / "plan.json"
    write_noun(plan, path)
    return path


def train_through(hosts: tuple[Host, Host], plan: Path) -> list[str]:
    """A run over the link that ends well; what is wrong with it."""
    for host in hosts:
        host.start(plan, rendezvous=f"{hosts[0].address}:{PORT}", steps=5)
    found = []
    for host in hosts:
        code, text = host.finish(120)
        if code != 0 or "still running" in text:
            found.append(f"host {host.number} ended with {code}:\n{text}")
    return found or check_left(hosts)


def cut_link(hosts: tuple[Host, Host], plan: Path) -> list[str]:
    """A run whose link is cut; what is wrong with how it ends."""
    for host in hosts:
        host.start(plan, rendezvous=f"{hosts[0].address}:{PORT}", steps=10_000_000)
    wait_for_step(hosts)
    hosts[0].run("link", "set", hosts[0].link, "down")
    cut = time.monotonic()
    found = []
    for host in hosts:
        code, text = host.finish(240)
        seconds = time.monotonic() - cut
        told = [line for line in text.splitlines() if any(word in line for word in TOLD)]
        print(f"host {host.number} ended {seconds:.1f} s after the cut with exit code {code}:")
        print(f"  {told[0] if told else text[-2000:]}")
        if code == 0 or not told:
            found.append(f"host {host.number} does not tell what happened.")
        if seconds > AIM_S:
            found.append(f"host {host.number} took {seconds:.1f} s, the aim is {AIM_S:.0f} s.")
    return found + check_left(hosts)


def wait_for_step(hosts: tuple[Host, Host]) -> None:
    """Until rank 0, on either host, has trained for two seconds."""
    deadline, begun = time.monotonic() + 120, None
    selector = selectors.DefaultSelector()
    for host in hosts:
        assert host.process is not None and host.process.stdout is not None
        selector.register(host.process.stdout, selectors.EVENT_READ)
    while time.monotonic() < deadline:
        for key, _ in selector.select(timeout=1):
            line = key.fileobj.readline()  # type: ignore[union-attr]
            if "step" in line and "loss" in line:
                begun = begun or time.monotonic()
                if time.monotonic() - begun > 2:
                    return
    raise SystemExit("the run did not start")


def check_left(hosts: tuple[Host, Host]) -> list[str]:
    """What a run has left behind."""
    return [f"host {host.number} still has {each}" for host in hosts for each in host.list_left()]


def main() -> int:
    """Both runs."""
    hosts = (Host(0), Host(1))
    try:
        connect_hosts(hosts)
    except (OSError, subprocess.CalledProcessError) as error:
        remove_hosts(hosts)
        print(f"skipped: network namespaces cannot be made here ({error})")
        return 0
    try:
        with tempfile.TemporaryDirectory(prefix="graphplan-") as folder:
            plan = write_plan(Path(folder))
            wrong = train_through(hosts, plan)
            print("5 steps over the link: " + ("fine" if not wrong else "failed"))
            wrong += cut_link(hosts, plan) if not wrong else []
    finally:
        remove_hosts(hosts)
    print("\n".join(wrong) or "fine")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
