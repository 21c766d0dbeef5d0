"""A damaged store is rescued whole or not at all, also without file descriptors, or killed meanwhile."""

import asyncio
import os
import pickle
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, recent
from tests.support.effort import FULL
from tests.support.filled_store import COUNT, filled, found
from tests.support.waiting import until, until_soon
from wirelag.collector import loop, upkeep
from wirelag.collector.health import Health
from wirelag.collector.loop import Collector
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.sqlite_pages import Pages
from wirelag.collector.upkeep import Upkeep
from wirelag.estimators.finecomb import Finecomb
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.protocol.messages import encode
from wirelag.protocol.results import Ends
from wirelag.protocol.session import Rounds

DAMAGE = sqlite3.DatabaseError("of a page")
DAMAGE.sqlite_errorcode = sqlite3.SQLITE_CORRUPT


@contextmanager
def few_files(free: int) -> Iterator[None]:
    """This process can open `free` more files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + free, before[1]))
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(free):
            os.close(held.pop())
        yield
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def damaged(folder: Path) -> int:
    """How many files were set aside."""
    return sum(".damaged-" in path.name and not path.name.endswith(("-wal", "-shm")) for path in folder.iterdir())


@pytest.mark.every(4)
@pytest.mark.parametrize("free", [0, 4, 5, 6, 7])
def test_a_rescue_without_file_descriptors_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """A file that cannot be opened looks to SQLite like one that cannot be read; then the next attempt saves all."""
    monkeypatch.setattr(upkeep, "PAUSES", 0)
    path = tmp_path / "store.db"
    filled(path)
    with closing(SqliteStore(str(path))) as store:
        keeper = Upkeep(store, Health(), Counter())
        keeper.doubt(DAMAGE)
        store.close()  # what it had open is taken by others, such as connections that waited
        with few_files(free):
            done = keeper.rescue()
        assert done == (free >= 7)
        until(lambda: done or keeper.rescue(), "a rescue with enough of them")
        assert len(found(store)) == 3 * COUNT
    assert damaged(tmp_path) == 1


@pytest.mark.parametrize("page", ["1", "series", "results", "messages", *(["any"] if FULL else [])])
def test_an_overwritten_page_costs_its_own_rows_alone(tmp_path: Path, page: str) -> None:
    """Also one that leads to all others: of the tables, or of the names of tables."""
    path = tmp_path / "store.db"
    filled(path)
    with closing(SqliteStore(str(path))) as store:
        whole = found(store)
    with closing(sqlite3.connect(path)) as base:
        roots = dict(base.execute("select name, rootpage from sqlite_master").fetchall())
    data = path.read_bytes()
    numbers = range(1, len(data) // 4096 + 1) if page == "any" else [roots.get(page, 1)]
    for number in numbers:
        for file in tmp_path.iterdir():
            file.unlink()
        at = 4096 * (number - 1) + (100 if number == 1 else 0)
        path.write_bytes(data[:at] + random.Random(number).randbytes(600) + data[at + 600 :])
        with closing(SqliteStore(str(path))) as store:
            with suppress(sqlite3.DatabaseError):
                store.check()
            assert store.rescued is not None or store.rescue(DAMAGE) is not None
            saved = found(store)
        assert saved.items() <= whole.items()
        results_and_messages = sum(len(row) > 6 for row in Pages(data).rows(number))
        assert len(whole) - len(saved) <= results_and_messages
    assert damaged(tmp_path) == 1


def test_two_rescues_in_a_second_keep_both_files(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    filled(path)
    with closing(SqliteStore(str(path))) as store:
        for _ in range(3):
            assert store.rescue(DAMAGE) is not None
        assert len(found(store)) == 3 * COUNT
    assert damaged(tmp_path) == 3


def test_a_kill_at_any_step_of_a_rescue_costs_nothing(tmp_path: Path) -> None:
    """Before and after each file that it renames."""
    path = tmp_path / "store.db"
    filled(path)
    killed = 0
    for step in range(9):
        child = os.fork()
        if child == 0:
            try:
                _rescue_until(str(path), step)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        with closing(SqliteStore(str(path))) as store:
            assert len(found(store)) == 3 * COUNT, step
        assert not list(tmp_path.glob("*.rescued-*")), step
    assert 3 < killed < 9


def _rescue_until(path: str, step: int) -> None:
    """Rescue a store in a process that ends like one that is killed."""
    rename, left = os.rename, step

    def counted(source: str, target: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    with closing(SqliteStore(path)) as store:
        os.rename = counted  # type: ignore[assignment]
        store.rescue(DAMAGE)


def test_a_check_that_could_not_be_done_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without file descriptors; until then nothing is deleted, since damage may hide rows."""
    monkeypatch.setattr(loop, "CHECK_AGAIN_S", 0.05)
    path = tmp_path / "store.db"
    filled(path)

    async def work() -> None:
        collector = Collector(Rounds([]), SqliteStore(str(path)))
        path.rename(tmp_path / "elsewhere")
        running = asyncio.create_task(collector.run([]))
        await until_soon(lambda: collector.counted["store check failed"] > 1, "checks that fail")
        assert not collector._checked.is_set()
        (tmp_path / "elsewhere").rename(path)
        await until_soon(lambda: collector.counted["store checked"], "the check")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await collector.close()

    asyncio.run(work())


IMPORTED = """
import pickle, sys
from wirelag.collector.loop import Collector
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.sqlite_pages import Pages
from wirelag.protocol.results import Ends
from wirelag.protocol.session import Rounds
collector = Collector(Rounds([Ends("A>B", "A", "B")]), SqliteStore(sys.argv[1]))
collector._ask_for = lambda asks: None
before = set(sys.modules)
for messages in pickle.load(sys.stdin.buffer):
    collector._take(messages)
assert not collector.counted["internal errors"]
print(sorted(set(sys.modules) - before))
"""


def test_nothing_is_imported_for_a_message(tmp_path: Path) -> None:
    """Without file descriptors that would fail, and the message would count as a bad one."""
    kinds: tuple[Lda | Rda | Finecomb, ...] = (Lda(64, (0,), tail=64), RDA, Finecomb())
    sent = [[encode(one) for end in pair(recent(4, 100, 3), kind) for one in end.messages(0, 3)] for kind in kinds]
    command = [sys.executable, "-c", IMPORTED, str(tmp_path / "store.db")]
    done = subprocess.run(command, input=pickle.dumps(sent), capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_a_message_is_not_dropped_for_what_its_collector_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the operating system: it is not acknowledged, and its agent sends it again."""
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        collector = Collector(Rounds([Ends("A>B", "A", "B")]), store)
        message = encode(pair(recent(4, 100, 3), Lda(64, (0,), tail=64))[0].messages(0, 1)[0])
        with monkeypatch.context() as patch:
            patch.setattr(collector.rounds, "take", lambda *_: os.open(tmp_path / "none", os.O_RDONLY))
            assert collector._take([message]) is None
        assert collector._take([message]) is not None
        assert collector.counted["internal errors"] == 0
        assert len(list(store.messages_since(0))) == 1
