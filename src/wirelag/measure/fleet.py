"""A question about many captures, on many machines: tasks, what became of them, and the captures as one input.

Every question that can be divided has a module `<question>_many`, which says what a task is and how parts are put
together. Here is what they share: reading a piece in a task, planning pieces of similar size, running tasks once each,
and going on after a run that was broken off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self

from wirelag.capture.files import Capture
from wirelag.capture.parts import PartFile, SplitError
from wirelag.capture.pcap import CaptureFile, CaptureStatistics
from wirelag.capture.remote import stamp_of
from wirelag.capture.streams import is_remote
from wirelag.errors import SettingError, WirelagError
from wirelag.measure.looking import WARM_NS, KeySample, Look, look, sharing
from wirelag.measure.pieces import Piece, Read
from wirelag.packets.filters import Filter
from wirelag.units import format_duration, many, size_bytes

if TYPE_CHECKING:
    from wirelag.capture.source import PacketSource
    from wirelag.measure.copies import Copies
    from wirelag.packets.batch import PacketBatch
    from wirelag.scale.engine import Engine, Failure, Task
    from wirelag.scale.finished import Finished

LEAST_TASK: Final = 128 << 20  # bytes of captures
MOST_TASK: Final = 1 << 30
TASKS: Final = 256  # that a question is divided into, unless they would be shorter or longer than that
LOOKS: Final = 16  # captures that one task looks at

Progress = Callable[[int, int], None]
"""Told how many bytes are done, and of how many."""


class Fleet:
    """Where a question is worked on, and the file that remembers what is done.

    `on` is "local" (all cores of this machine), "dask://HOST:PORT" or a client of Dask. `resume` names a file of
    finished tasks: what it holds is not done again. `task_size` is how many bytes of captures a task should read.
    """

    def __init__(
        self,
        on: Any,
        resume: str | None = None,
        task_size: int | str | None = None,
        progress: Progress | None = None,
        workers: int | None = None,
    ) -> None:
        self._on, self._resume, self._progress, self._workers = on, resume, progress, workers
        self.task_size = None if task_size is None else size_bytes(task_size, "task_size")
        if self.task_size is not None and self.task_size < 1 << 16:
            raise SettingError("task_size", "must be at least 64KiB")
        self._stack = ExitStack()
        self._engine: Engine | None = None
        self._finished: Finished | None = None
        self._is_told = resume is not None  # the user knows the file of what is finished
        self.tasks = self.done_before = self.bytes_returned = 0

    @classmethod
    def of(cls, on: Any) -> Fleet:
        """What a caller passed as `on`."""
        return on if isinstance(on, Fleet) else cls(on)

    def __enter__(self) -> Self:
        from wirelag.scale.engine import engine
        from wirelag.scale.finished import Finished

        self._finished = Finished(self._resume)
        try:
            self._engine = self._stack.enter_context(engine(self._on, self._workers))
        except BaseException:
            self._finished.close(keep=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        assert self._finished is not None
        self._finished.close(keep=self._is_told)
        self._stack.close()

    def run(self, tasks: Sequence[Task], depends: Any) -> Iterator[Any | Failure]:
        """The value of each task, in order, or why it has none; `depends`: what else results depend on."""
        from wirelag.scale.engine import Failure, GoneError
        from wirelag.scale.finished import name_of

        assert self._finished is not None
        assert self._engine is not None
        names = [name_of(task.function.__name__, task.arguments, depends) for task in tasks]
        left = [place for place, name in enumerate(names) if name not in self._finished]
        whole, done = sum(task.size for task in tasks), 0
        done += whole - sum(tasks[place].size for place in left)
        failed: dict[bytes, Failure] = {}
        self.tasks += len(tasks)
        self.done_before += len(tasks) - len(left)
        told = 0  # tasks whose values were handed on: while others run
        if self._progress is not None and whole:
            self._progress(done, whole)
        try:
            for place, result in self._engine.run([tasks[place] for place in left]):
                name = names[left[place]]
                if isinstance(result, Failure):
                    failed[name] = result
                else:
                    self.bytes_returned += len(result)
                    self._finished.add(name, result)
                done += tasks[left[place]].size
                if self._progress is not None and whole:
                    self._progress(done, whole)
                while told < len(names) and (names[told] in failed or names[told] in self._finished):
                    yield failed.get(names[told]) or self._finished.result(names[told])
                    told += 1
        except (GoneError, KeyboardInterrupt) as error:
            if self._progress is not None and whole:
                self._progress(whole, whole)  # no bar stays behind
            count = sum(name in self._finished for name in names)
            text = f"{str(error) or 'stopped'} after {count:,} of {many(len(tasks), 'task')}"
            if self._is_told or len(self._finished):
                self._is_told = True
                text += "; what is finished is kept: run the same command again with "
                text += f"--resume {self._finished.path}"
            raise type(error)(text) from None
        for name in names[told:]:
            yield failed.get(name) or self._finished.result(name)

    # ---- captures ----

    def look_at(self, files: Sequence[tuple[str, str]], tunnels: bool, split: bool) -> list[Look]:
        """Look at captures, and find where large ones can be split."""
        from wirelag.scale.engine import Failure, Task

        length = self._length(files) if split else None
        at_once = LOOKS if len(files) > TASKS else 1
        stamped = [(path, name, stamp_of(path)) for path, name in files]
        some = (tuple(stamped[start : start + at_once]) for start in range(0, len(files), at_once))
        tasks = [Task("look", look_at_some, (several, tunnels, length)) for several in some]
        looks: list[Look] = []
        for task, found in zip(tasks, self.run(tasks, None), strict=True):
            if isinstance(found, Failure):
                looks += [Look(path, name, problem=f"{name}: {found.why}") for path, name, _ in task.arguments[0]]
            else:
                looks += found
        return looks

    def _length(self, files: Sequence[tuple[str, str]]) -> int:
        """How many bytes a task should read; it depends on the captures alone, so that another run has the same."""
        if self.task_size is not None:
            return self.task_size
        import os

        # Sizes of captures elsewhere are not known yet: as much as a task may read.
        if any(is_remote(path) for path, _ in files):
            return MOST_TASK // 4
        whole = sum(os.path.getsize(path) for path, _ in files if os.path.isfile(path))
        return min(max(whole // TASKS, LEAST_TASK), MOST_TASK)

    def length_for(self, looks: Sequence[Look]) -> int:
        """The same, once sizes are known."""
        if self.task_size is not None:
            return self.task_size
        return min(max(sum(one.size for one in looks) // TASKS, LEAST_TASK), MOST_TASK)


def look_at_some(files: Sequence[tuple[str, str, str]], tunnels: bool, length: int | None) -> bytes:
    """A task: look at some captures."""
    from wirelag.scale.finished import packed

    return packed([replace(look(path, name, tunnels, length), stamp=stamp) for path, name, stamp in files])


def captures_of(source: PacketSource) -> list[tuple[str, str]]:
    """The captures of a source that other machines can open, each with its name."""
    from wirelag.capture.source import are_packets, each_of, is_interface, list_files
    from wirelag.capture.streams import STANDARD_INPUT

    if are_packets(source) or (isinstance(source, str) and is_interface(source)):
        raise SettingError("on", "other processes read captures by their names: give paths or URLs")
    several = each_of(source)  # type: ignore[arg-type]
    if any(not isinstance(one, str) and not hasattr(one, "__fspath__") for one in several) or STANDARD_INPUT in several:
        raise SettingError("on", "other processes read captures by their names: give paths or URLs")
    import os

    files = list_files(source)  # type: ignore[arg-type]
    return [(path if is_remote(path) else os.path.abspath(path), name) for path, name in files]


def absolute(wanted: Filter, looks: Iterable[Look]) -> Filter:
    """A filter whose times no longer depend on where a capture begins."""
    from wirelag.capture.files import absolute as made_absolute

    return made_absolute(wanted, [one.first_ns for one in looks]) if wanted.relative else wanted


# ---- running ----


def run_pieces(
    fleet: Fleet,
    name: str,
    function: Callable[..., bytes],
    plan: Sequence[tuple[Piece, ...]],
    *how: Any,
    take: Callable[[Any], None],
    first: Sequence[Task] = (),
    check: Callable[[Any], None] = lambda found: None,
) -> list[FileRead]:
    """Give `take` what `function(pieces, *how)` returns for each bundle, in order; tell what became of captures.

    A task that failed costs its captures. What `first` return goes to `check`; nothing else waits for them.
    """
    from wirelag.scale.engine import Failure, Task

    tasks = [Task(name, function, (some, *how), sum(piece.size for piece in some)) for some in plan]
    read: list[FileRead] = []
    values = fleet.run([*first, *tasks], None)
    for found in islice(values, len(first)):
        if found is not None and not isinstance(found, Failure):
            check(found)
    for some, found in zip(plan, values, strict=True):
        if isinstance(found, Failure):
            lost = (one for piece in some for one in piece.reads if not one.warm)
            nothing = CaptureStatistics()
            read += [FileRead(one.name, one.index, nothing, error=f"{one.name}: {found.why}") for one in lost]
            continue
        take(found)
        read += found.files
    return read


def readable(looks: Sequence[Look]) -> list[Look]:
    """Those that can be read; an error if there is none."""
    good = [one for one in looks if not one.problem]
    if not good:
        raise WirelagError("\n".join(one.problem for one in looks))
    return good


# ---- reading, in a task ----


@dataclass
class FileRead:
    """What reading a capture, or a part of it, left."""

    name: str
    index: int
    statistics: CaptureStatistics
    packets_before: int = 0
    warnings: list[str] = field(default_factory=list)
    error: str = ""
    split: bool = True  # False: it was not split at a record
    keys: KeySample = field(default_factory=KeySample)

    @property
    def place(self) -> str:
        """The name that numbers of packets count from."""
        return f"{self.name}\0{self.index}"


class Reading:
    """The packets of a piece, and what became of its captures."""

    def __init__(self, piece: Piece, wanted: Filter, tunnels: bool) -> None:
        self._piece = piece
        self._how: dict[str, Any] = {"filter": wanted, "tunnels": tunnels}
        self.files: list[FileRead] = []
        self.warmed_ns: int | None = None  # for how long it was warmed up; None: there was nothing before it

    def batches(self, warm_up: Callable[[PacketBatch], None]) -> Iterator[PacketBatch]:
        """The packets that count; those before them go to `warm_up`. A capture that cannot be read costs no other."""
        if self._piece.merged:
            yield from self._merged()
            return
        warm = _Warm(warm_up)
        for read in self._piece.reads:
            try:
                yield from self._one(read, warm)
            except SplitError:
                self.files.append(FileRead(read.name, read.index, CaptureStatistics(), split=False))
            except WirelagError as error:
                if not read.warm:
                    self.files.append(FileRead(read.name, read.index, CaptureStatistics(), error=str(error)))
        self.warmed_ns = warm.length_ns

    def _one(self, read: Read, warm: _Warm) -> Iterator[PacketBatch]:
        how = self._how | {"name": read.name}
        file = CaptureFile(read.path, **how) if read.part is None else PartFile(read.path, read.part, **how)
        about = FileRead(read.name, read.index, CaptureStatistics())
        file.place = about.place
        for batch in file:
            if read.warm or not getattr(file, "own", True):
                warm.add(batch)
                continue
            warm.end(batch)
            about.keys.add(batch)
            yield batch
        if not read.warm:
            about.statistics, about.warnings = file.statistics, file.warnings
            about.packets_before = getattr(file, "packets_before", 0)
            self.files.append(about)

    def _merged(self) -> Iterator[PacketBatch]:
        names = {read.path: read.name for read in self._piece.reads}
        keys = KeySample()
        try:
            capture = Capture(list(names), names=names, **self._how)
            for file in capture.files:
                file.place = FileRead(file.name, 0, CaptureStatistics()).place
            for batch in capture:
                keys.add(batch)
                yield batch
        except WirelagError as error:
            self.files += [FileRead(name, 0, CaptureStatistics(), error=str(error)) for name in names.values()]
            return
        for file in capture.files:
            self.files.append(FileRead(file.name, 0, file.statistics, warnings=file.warnings, keys=keys))


class _Warm:
    """The packets before those that count: the last `WARM_NS` of them."""

    def __init__(self, warm_up: Callable[[PacketBatch], None]) -> None:
        self._warm_up = warm_up
        self._first_ns: int | None = None
        self.length_ns: int | None = None

    def add(self, batch: PacketBatch) -> None:
        if not len(batch):
            return
        if self._first_ns is None:
            self._first_ns = int(batch.time_ns[0])
        self._warm_up(batch)

    def end(self, batch: PacketBatch) -> None:
        if self._first_ns is not None and self.length_ns is None and len(batch):
            self.length_ns = int(batch.time_ns[0]) - self._first_ns


# ---- what was read, as one input ----


class ReadElsewhere(Capture):
    """Captures that tasks have read, as the input of a result."""

    def __init__(
        self, files: Sequence[tuple[str, str]], read: Iterable[FileRead], wanted: Filter, tunnels: bool
    ) -> None:
        self.order, self.ended = "time", True
        self.files = [CaptureFile(path, filter=wanted, tunnels=tunnels, name=name) for path, name in files]
        self.first_ns = [None] * len(self.files)
        self.parts: dict[str, list[FileRead]] = {name: [] for _, name in files}
        for one in read:
            self.parts[one.name].append(one)
        for several in self.parts.values():
            several.sort(key=lambda one: one.index)
        self._statistics = CaptureStatistics()
        for several in self.parts.values():
            for one in several:
                self._statistics = self._statistics + one.statistics

    @property
    def statistics(self) -> CaptureStatistics:
        """Counts over all captures."""
        return self._statistics

    @property
    def warnings(self) -> list[str]:
        """What could not be read, one line each."""
        return list(dict.fromkeys(line for several in self.parts.values() for one in several for line in one.warnings))

    @property
    def errors(self) -> list[str]:
        """Captures that could not be read at all."""
        return [one.error for several in self.parts.values() for one in several if one.error]

    @property
    def unsplit(self) -> set[str]:
        """Captures that were not split at records."""
        return {name for name, several in self.parts.items() if not all(one.split for one in several)}

    def numbers(self) -> Mapping[str, int]:
        """What to add to the numbers of packets of each place."""
        found = {}
        for several in self.parts.values():
            before = 0
            for one in several:
                found[one.place] = before - one.packets_before
                before += one.statistics.packets
        return found

    def keys_of(self, piece: Piece) -> KeySample:
        """A sample of the connections of a piece."""
        return KeySample.of_all(one.keys for read in piece.reads for one in self.parts[read.name])

    def apart(self, planned: Sequence[Piece]) -> list[str]:
        """Warnings about captures that share connections, and were not read by one meter."""
        group: dict[str, int] = {}  # what one meter read, or what continues it and was warmed up
        for number, piece in enumerate(planned):
            first = group.get(piece.reads[0].name, number)
            group |= dict.fromkeys((read.name for read in piece.reads), first)
        found = sharing(((name, one.keys) for name, parts in self.parts.items() for one in parts), group)
        if not found:
            return []
        one, other = found[0]
        more = f" (and {len(found) - 1:,} other pairs)" if len(found) > 1 else ""
        return [
            f"{one} and {other}{more} share connections, but were measured apart: responses in one to requests in the "
            "other are missing; measure these captures without --on, or call them alike but for a number"
        ]


def copy_tasks(looks: Sequence[Look], wanted: Filter, tunnels: bool) -> list[Task]:
    """Tasks that look for two captures that hold the same packets: the first that finds some tells as `find_copies`."""
    from wirelag.measure.copies import MOST_PAIRS, by_time
    from wirelag.scale.engine import Task

    good = [one for one in looks if not one.problem]
    good = by_time(good, [one.first_ns for one in good])
    only_neighbours = len(good) > MOST_PAIRS
    tasks = []
    for start in range(0, len(good) - 1, LOOKS if only_neighbours else MOST_PAIRS):
        some = good[start : start + LOOKS + 1] if only_neighbours else good
        files = tuple((one.path, one.name, one.stamp) for one in some)
        tasks.append(Task("copies", find_copies_task, (files, wanted, tunnels, only_neighbours)))
    return tasks


def find_copies(fleet: Fleet, looks: Sequence[Look], wanted: Filter, tunnels: bool) -> Copies | None:
    """Two captures that hold the same packets, if there are any."""
    from wirelag.scale.engine import Failure

    every = (found for found in fleet.run(copy_tasks(looks, wanted, tunnels), None) if not isinstance(found, Failure))
    return next((found for found in every if found is not None), None)


def find_copies_task(
    files: Sequence[tuple[str, str, str]], wanted: Filter, tunnels: bool, only_neighbours: bool
) -> bytes:
    """A task: whether captures hold the same packets."""
    from wirelag.measure import copies
    from wirelag.scale.finished import packed

    several = [CaptureFile(path, filter=wanted, tunnels=tunnels, name=name) for path, name, _ in files]
    return packed(copies.find_copies(several, only_neighbours))


def how_divided(tasks: int, planned: Sequence[Piece], warmed_ns: Sequence[int]) -> str:
    """How a question was divided, as a note."""
    text = f"divided into {many(tasks, 'task')}"
    if not (continuing := sum(piece.continues for piece in planned)):
        return f"{text}: each connection is in one of them" if tasks > 1 else text
    if not warmed_ns:
        return f"{text}; {continuing:,} of them continue another, and no packets before them were asked for"
    return (
        f"{text}; {continuing:,} of them continue another and were warmed up on the packets before, for "
        f"{format_duration(min(warmed_ns))} or more ({format_duration(WARM_NS)} if a quarter of a task holds them): a "
        f"delay across an edge that is longer than this is not timed"
    )
