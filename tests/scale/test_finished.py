"""What tasks have finished survives a run that breaks off, and makes nothing but values."""

import pickle
import signal
from pathlib import Path

import numpy as np
import pytest
import zstandard

from wirelag.errors import WirelagError
from wirelag.scale.finished import Finished, name_of, packed, unpacked
from wirelag.stats.distribution import Distribution


def test_results_are_there_again(tmp_path: Path) -> None:
    path, names = str(tmp_path / "run.resume"), [name_of("task", i) for i in range(3)]
    first = Finished(path)
    for i, name in enumerate(names[:2]):
        first.add(name, packed({"place": i}))
    first.close(keep=False)
    again = Finished(path)
    assert [name in again for name in names] == [True, True, False]
    assert [again.result(name) for name in names[1::-1]] == [{"place": 1}, {"place": 0}]
    again.close(keep=True)


@pytest.mark.parametrize("lost", [1, 40, 75])
def test_a_record_that_breaks_off_is_done_again(tmp_path: Path, lost: int) -> None:
    path, names = tmp_path / "run.resume", [name_of(i) for i in range(2)]
    first = Finished(str(path))
    for name in names:
        first.add(name, packed(b"some result"))
    first.close(keep=True)
    path.write_bytes(path.read_bytes()[:-lost])
    again = Finished(str(path))
    assert [name in again for name in names] == [True, False]
    again.add(names[1], packed("anew"))
    again.close(keep=True)
    last = Finished(str(path))
    assert [last.result(name) for name in names] == [b"some result", "anew"]
    last.close(keep=True)


def test_results_of_another_version_are_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import wirelag

    before = name_of("task", 1)
    monkeypatch.setattr(wirelag, "__version__", "0.0.9")
    assert name_of("task", 1) != before


def test_a_full_disk_is_said_and_what_is_there_is_kept(tmp_path: Path) -> None:
    """The line names the file of finished tasks, not standard output."""
    import resource

    path, name = tmp_path / "run.resume", name_of("task")
    kept = Finished(str(path))
    kept.add(name, packed("some result"))
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, before[1]))
    try:
        with pytest.raises(
            WirelagError, match=r"run\.resume: cannot keep what is finished \(File too large\); free some"
        ):
            kept.add(name_of("other"), packed(bytes(range(256)) * 9))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    kept.close(keep=True)
    again = Finished(str(path))
    assert again.result(name) == "some result"
    assert len(again) == 1
    again.close(keep=True)


def test_another_file_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(b"\xd4\xc3\xb2\xa1 and so on")
    with pytest.raises(WirelagError, match=r"capture\.pcap: this is no file of finished tasks"):
        Finished(str(path))
    assert path.read_bytes() == b"\xd4\xc3\xb2\xa1 and so on"


def test_an_unnamed_file_goes_with_its_run() -> None:
    run = Finished()
    run.close(keep=False)
    assert not Path(str(run.path)).exists()


class Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("this must not run",)


@pytest.mark.parametrize("value", [Runs(), np.testing.assert_equal, [open]])
def test_only_values_are_made(value: object) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is no value of wirelag"):
        unpacked(zstandard.compress(pickle.dumps(value)))


def test_a_distribution_travels_small_and_whole() -> None:
    delays = Distribution()
    delays.add(np.array([5, 1000, 10**6, 10**6], np.int64))
    data, total = packed(delays), Distribution()
    total.merge(unpacked(data))
    assert len(data) < 1000
    assert np.array_equal(total.weights, delays.weights)
    assert (total.samples, total.sum_ns, total.sum_squares) == (delays.samples, delays.sum_ns, delays.sum_squares)


@pytest.mark.parametrize(
    "what", [("os", "system"), ("wirelag.capture.host_clock", "subprocess"), ("wirelag.capture.host_clock", "apart_ns")]
)
def test_nothing_runs_when_results_are_read(what: tuple[str, str]) -> None:
    """Neither what another module has, nor what a module of wirelag imports or does."""
    module, name = (f"\x8c{chr(len(text))}{text}".encode("latin-1") for text in what)
    with pytest.raises(pickle.UnpicklingError, match="is no value of wirelag"):
        unpacked(zstandard.compress(b"\x80\x05" + module + name + b"\x93."))
