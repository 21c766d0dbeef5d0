"""Real parts: worker processes of Dask, an object store, a worker that is killed, a scheduler that ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wirelag
from tests.support.command import WIRELAG, as_process
from tests.support.fleets import independent, rotated, simulated
from tests.support.waiting import until
from wirelag.errors import WirelagError
from wirelag.measure.fleet import Fleet
from wirelag.scale.engine import engine

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dask, Flask and their friends; processes end at any time


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("cluster") / "site.pcap", 12_000)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket of an object store on this machine."""
    import logging

    import fsspec
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in (("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "y"), ("AWS_ENDPOINT_URL", address)):
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    store = fsspec.filesystem("s3")
    store.mkdir("captures")
    yield store
    server.stop()


def text(result: Any) -> str:
    return json.dumps(result.to_dict())


def of_both(client: Any, *paths: Path) -> tuple[str, str]:
    """The answers of worker processes, and of one machine."""
    files = [str(path) for path in paths]
    many = wirelag.rtt(files, by="server", interval="500ms", on=Fleet(client, task_size="256KiB"))
    return text(many), text(wirelag.rtt(files, by="server", interval="500ms"))


def test_processes_answer_as_one_machine_does(client: Any, whole: Path) -> None:
    many, one = of_both(client, *rotated(whole, 3))
    assert many == one


@pytest.mark.acceptance
def test_processes_answer_the_same_for_parts_and_for_independent_captures(client: Any, whole: Path) -> None:
    for paths in ([whole], independent(whole, 3)):
        many, one = of_both(client, *paths)
        assert many == one


@pytest.mark.acceptance
def test_objects_of_a_store(bucket: Any, whole: Path) -> None:
    """A pattern of names, a truncated object, one that is no capture; workers that know the store's address."""
    from distributed import Client, LocalCluster

    files = independent(whole, 3)
    for i, path in enumerate(files):
        bucket.put_file(str(path), f"captures/2026-11-0{i}/{path.name}")
    cut = files[2].read_bytes()[:-9]
    bucket.pipe("captures/2026-11-02/east.pcap", cut)
    bucket.pipe("captures/2026-11-03/broken.pcap", b"\0" * 999)
    files[2].write_bytes(cut)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as own,
        Client(own) as c,
    ):
        many = wirelag.rtt("s3://captures/2026-11-*/*.pcap", by="server", on=Fleet(c, task_size="256KiB"))
    one = wirelag.rtt([str(path) for path in files], by="server")
    (error,), (warning,) = many.errors, many.warnings
    assert error.startswith("s3://captures/2026-11-03/broken.pcap: ")
    assert warning.startswith("s3://captures/2026-11-02/east.pcap: the file ends in the middle of a record")
    told = text(many).replace("s3://captures/2026-11-00/", "").replace("s3://captures/2026-11-01/", "")
    told = told.replace("s3://captures/2026-11-02/", "").replace(f', "errors": {json.dumps([error])}', "")
    assert told == text(one).replace(f"{files[0].parent}/", "")


@pytest.mark.acceptance
def test_a_killed_worker_counts_once(client: Any, cluster: Any, tmp_path: Path) -> None:
    """kill -9 in the middle: its tasks are done again, elsewhere, and their packets count once."""
    path = simulated(tmp_path / "long.pcap", 400_000)
    fleet = Fleet(client, task_size="1MiB")
    killed: list[int] = []

    def kill(done: int, whole: int) -> None:
        if not killed:  # the first task is done, and others run
            worker = next(iter(cluster.workers.values()))
            killed.append(worker.process.pid if hasattr(worker, "process") else worker.pid)
            os.kill(killed[0], signal.SIGKILL)

    fleet._progress = kill
    many = wirelag.rtt(str(path), by="server", on=fleet)
    assert killed
    assert text(many) == text(wirelag.rtt(str(path), by="server"))


@pytest.mark.acceptance
def test_a_scheduler_that_ends_leaves_a_line_and_a_file(tmp_path: Path) -> None:
    """The command says one line and exits with 2; with --resume it goes on with another scheduler."""
    path = simulated(tmp_path / "long.pcap", 400_000)
    state = tmp_path / "run.resume"
    command = ["rtt", path, "--task-size", "1MiB", "--resume", state, "--format", "json"]
    with Processes() as first:

        def some_done() -> bool:
            return state.exists() and state.stat().st_size > 100_000

        done = threading.Thread(target=first.end_when, args=(some_done,))
        done.start()
        ran = as_process(*command, "--on", first.address, code=2)
        done.join()
    assert ran.stderr.count("\n") == 1
    assert "went away after" in ran.stderr
    assert f"--resume {state}" in ran.stderr
    with Processes() as second:
        ran = as_process(*command, "--on", second.address)
    assert json.loads(ran.stdout) == wirelag.rtt(str(path)).to_dict()


@pytest.mark.acceptance
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reaches_the_command_alone(tmp_path: Path, number: signal.Signals) -> None:
    """^C goes to all processes of a terminal: one line, no process or file is left, and --resume goes on.

    So does SIGTERM, which goes to the command, or to all processes of a unit.
    """
    path = simulated(tmp_path / "long.pcap", 400_000)
    state = tmp_path / "run.resume"
    command = ["rtt", str(path), "--on", "local", "--task-size", "1MiB", "--resume", str(state), "--format", "json"]
    process = subprocess.Popen(
        [*WIRELAG, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: state.exists() and state.stat().st_size > 100_000, "tasks that are done")
    os.killpg(process.pid, number)
    said = process.communicate()[1]
    assert process.returncode == 128 + number
    assert said.count("\n") == 1
    assert said.startswith("wirelag: stopped after ")
    assert f"--resume {state}" in said
    assert json.loads(as_process(*command).stdout) == wirelag.rtt(str(path)).to_dict()


def test_a_command_that_is_ended_while_workers_start_leaves_nothing(tmp_path: Path) -> None:
    capture = simulated(tmp_path / "site.pcap", 300)
    places = tmp_path / "temporary"
    places.mkdir()
    process = subprocess.Popen(
        [*WIRELAG, "rtt", str(capture), "--on", "local"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(places)},
    )  # fmt: skip
    until(lambda: any(places.glob("wirelag-*.resume")), "the file of what is finished")
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    assert process.returncode == 143
    assert said.startswith("wirelag: stopped ")
    assert said.count("\n") == 1
    assert not [*places.glob("wirelag-*")]


class Processes:
    """A scheduler and a worker, as operators start them."""

    def __init__(self) -> None:
        from tests.support.ports import free_port

        port = free_port()
        self.address = f"dask://127.0.0.1:{port}"
        dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.scheduler = subprocess.Popen([*dask, "--no-dashboard"], **quiet)
        self.worker = subprocess.Popen([*worker, "--no-nanny", "--no-dashboard"], **quiet)

    def __enter__(self) -> "Processes":
        from distributed import Client

        with Client(self.address.replace("dask", "tcp"), timeout="60s") as client:
            client.wait_for_workers(1, timeout=60)
        return self

    def end_when(self, ready: Any) -> None:
        """End the scheduler as soon as something is so."""
        while not ready() and self.scheduler.poll() is None:
            time.sleep(0.01)
        self.scheduler.kill()

    def __exit__(self, *error: object) -> None:
        for one in (self.scheduler, self.worker):
            one.kill()
            one.wait()


@pytest.mark.acceptance
def test_nobody_at_the_address() -> None:
    from tests.support.ports import free_port

    address = f"dask://127.0.0.1:{free_port()}"
    with pytest.raises(WirelagError, match="no scheduler answers there"), engine(address, patience="100ms"):
        pass
