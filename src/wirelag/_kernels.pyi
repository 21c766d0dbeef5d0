from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Octets: TypeAlias = npt.NDArray[np.uint8] | memoryview[int]
Words: TypeAlias = npt.NDArray[np.uint64] | memoryview[int] | array[int]
Numbers: TypeAlias = npt.NDArray[Any] | memoryview[int] | array[int]
Pair: TypeAlias = tuple[float, float]
Figures: TypeAlias = tuple[
    int,
    int,
    float,
    tuple[float, float, float, float],
    list[float],
    list[tuple[float, float] | None],
    int,
    bytes,
]
LegFigures: TypeAlias = tuple[Figures | None, Figures | None]
Floats: TypeAlias = npt.NDArray[np.float64] | memoryview[float]

BATCH_ROWS: int
CONNECTION_ROW_WORDS: int
BATCH_BYTES: int
MORE: int
FULL: int
BROKEN: int
CONNECTION_BYTES: int
SEGMENT_BYTES: int
WAITING_BYTES: int
SLOT_BYTES: int
BINS: int
DISTRIBUTION_WORDS: int
CROWDS: int
COARSE_BITS: int
FEW_DELAYS: int

def address_text(high: int, low: int) -> str: ...
def columns() -> list[tuple[str, str, int]]: ...
def decode_frame(
    frame: bytes,
    wire_length: int,
    link_type: int,
    tunnels: bool = False,
    fields: int = 15,
    prefix: int = 16,
    seed: int = 0,
) -> dict[str, int] | str: ...

EIGHTHS: int
GROUP_KEY_WORDS: int
GROUP_RECORD_WORDS: int
GROUP_REGISTERS: int
GROUP_LEAST_BYTES: int
GROUP_MOST_BYTES: int

def crowd(
    weights: Words,
    flow_key: npt.NDArray[np.uint64],
    rows: npt.NDArray[np.uint32],
    legs: npt.NDArray[np.uint8],
    delays_ns: npt.NDArray[np.int64],
    of_each: npt.NDArray[np.int64] | None,
) -> None: ...
def slot(
    place: array[int],
    counts: Floats,
    sums: Floats,
    times_ns: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.bool_],
    delays_ns: npt.NDArray[np.int64],
    of_each: npt.NDArray[np.int64] | None,
) -> None: ...
def reach(place: array[int], counts: Floats, sums: Floats, begin_ns: int, end_ns: int, bits: int) -> None: ...
def distribute(
    memory: Words,
    delays_ns: Numbers,
    of_each: Numbers | None,
    legs: npt.NDArray[np.uint8] | None,
) -> None: ...
def classic_filter(program: bytes, frame: bytes, wire_length: int) -> int: ...

class Sighting:
    def __init__(self, capacity: int, seed: int, most_pairs: int, most_kept: int) -> None: ...
    def observe(self, packets: Any) -> None: ...
    def feed(
        self, reader: Reader, data: npt.NDArray[np.uint8], start: int, stop: int, base: int
    ) -> tuple[int, int, int, int]: ...
    def sampled(
        self,
    ) -> tuple[
        npt.NDArray[np.uint64],
        npt.NDArray[np.int64],
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint32],
        npt.NDArray[np.uint64],
    ]: ...
    def pairs(self, keys: npt.NDArray[np.uint64], addresses: npt.NDArray[np.uint64]) -> None: ...
    def take(
        self,
        courses: npt.NDArray[np.uint8],
        forward: int,
        backward: int,
        from_ns: int,
        to_ns: int,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], npt.NDArray[np.uint32], int, int, int]: ...
    @property
    def whole(self) -> bool: ...
    @property
    def pair_count(self) -> int: ...
    @property
    def pair_level(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def packets(self) -> int: ...
    @property
    def prefix_cut(self) -> int: ...
    @property
    def tunnelled(self) -> int: ...
    @property
    def shortened(self) -> int: ...
    @property
    def least_prefix(self) -> int: ...
    @property
    def first_ns(self) -> int: ...
    @property
    def last_ns(self) -> int: ...

class PairCourses:
    def __init__(self, keys: npt.NDArray[np.uint64], courses: npt.NDArray[np.uint8]) -> None: ...
    def of(
        self, source: npt.NDArray[np.uint64], destination: npt.NDArray[np.uint64], courses: npt.NDArray[np.uint8]
    ) -> None: ...

NOT_TOLD: int

class Roles:
    def __init__(self, most: int) -> None: ...
    def add_popular(self, keys: npt.NDArray[np.uint64]) -> None: ...
    def judge(
        self,
        source: npt.NDArray[np.uint64],
        destination: npt.NDArray[np.uint64],
        src_port: npt.NDArray[np.uint16],
        dst_port: npt.NDArray[np.uint16],
        kind: npt.NDArray[np.uint8],
        message: npt.NDArray[np.uint8],
        roles: npt.NDArray[np.uint8],
    ) -> None: ...

class ConnectionSums:
    def __init__(self, most: int) -> None: ...
    def add(
        self,
        flow_key: npt.NDArray[np.uint64],
        time_ns: npt.NDArray[np.int64],
        rows: npt.NDArray[np.uint32],
        legs: npt.NDArray[np.uint8],
        delays_ns: npt.NDArray[np.int64],
        of_each: npt.NDArray[np.int64],
        tags: npt.NDArray[np.uint64],
    ) -> None: ...
    def merge(self, other: ConnectionSums) -> None: ...
    def merge_rows(self, rows: npt.NDArray[np.uint64], bits: int, level: int, first: int, last: int) -> None: ...
    def keep(self, tags: npt.NDArray[np.uint64], other: int) -> None: ...
    def rows(self, out: npt.NDArray[np.uint64]) -> None: ...
    def rows_by_tag(self, out: npt.NDArray[np.uint64]) -> None: ...
    @staticmethod
    def by_crowd_and_time(
        rows: npt.NDArray[np.uint64],
        legs: int,
        crowd_sums: npt.NDArray[np.float64],
        crowd_sizes: npt.NDArray[np.float64],
        slot_sums: npt.NDArray[np.float64],
        slot_sizes: npt.NDArray[np.float64],
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...

class Survey:
    def __init__(self, most: int) -> None: ...
    def observe(self, packets: Any) -> None: ...
    def rows(self, decoder: Decoder) -> Work: ...
    def merge(self, other: Survey) -> None: ...
    def merge_saved(
        self,
        keys: npt.NDArray[np.uint64],
        facts: npt.NDArray[np.uint8],
        level: int,
        kinds: Sequence[int],
        flags: Sequence[int],
    ) -> None: ...
    def conversations(self, keys: npt.NDArray[np.uint64], facts: npt.NDArray[np.uint8]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def kinds(self) -> list[int]: ...
    @property
    def flags(self) -> list[int]: ...

def number_rows(
    words: npt.NDArray[np.uint64],
    width: int,
    numbers: npt.NDArray[np.uint32],
    firsts: npt.NDArray[np.uint32],
) -> int: ...

class GroupTimes:
    def __init__(self, most_cells: int, most_slots: int) -> None: ...
    def add(
        self,
        time_ns: npt.NDArray[np.int64],
        rows: npt.NDArray[np.uint32],
        legs: npt.NDArray[np.uint8],
        delays_ns: npt.NDArray[np.int64],
        of_each: npt.NDArray[np.int64],
        tags: npt.NDArray[np.uint64],
        wanted: int,
    ) -> None: ...
    def counts(self, tag: int, out: npt.NDArray[np.uint32]) -> bool: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def length_ns(self) -> int: ...
    @property
    def left_out(self) -> int: ...

class Groups:
    def __init__(self, bytes: int, key_words: int, words: int) -> None: ...
    def add(
        self,
        keys: npt.NDArray[np.uint64],
        legs: npt.NDArray[np.uint8],
        delays_ns: npt.NDArray[np.int64],
        of_each: npt.NDArray[np.int64],
        tags: npt.NDArray[np.uint64],
    ) -> None: ...
    def merge(self, other: Groups) -> None: ...
    def merge_saved(
        self,
        records: npt.NDArray[np.uint64],
        where: npt.NDArray[np.uint32],
        weights: npt.NDArray[np.uint64],
        squares: npt.NDArray[np.uint64],
        other: npt.NDArray[np.uint64],
        ranks: npt.NDArray[np.uint8],
        floor: int,
        left: int,
    ) -> None: ...
    def places(self, out: npt.NDArray[np.uint32]) -> None: ...
    def records(self, places: Numbers, out: Words) -> None: ...
    def cells(
        self,
        places: npt.NDArray[np.uint32],
        where: npt.NDArray[np.uint32],
        weights: npt.NDArray[np.uint64],
        squares: npt.NDArray[np.uint64],
    ) -> None: ...
    def other(self, out: npt.NDArray[np.uint64]) -> None: ...
    def ranks(self, out: npt.NDArray[np.uint8]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def left(self) -> int: ...
    @property
    def floor(self) -> int: ...
    @property
    def bytes_used(self) -> int: ...

class Reader:
    def __init__(
        self,
        *,
        tunnels: bool = False,
        fields: int = 15,
        prefix: int = 16,
        seed: int = 0,
        nets: Sequence[tuple[int, int, int, int]] = (),
        ports: Sequence[int] = (),
        protocols: Sequence[int] = (),
        from_ns: int = ...,
        to_ns: int = ...,
        relative: bool = False,
        compile: Callable[[int, bool], bytes] | None = None,
    ) -> None: ...
    def feed(
        self,
        data: npt.NDArray[np.uint8],
        start: int,
        stop: int,
        base: int,
        memory: npt.NDArray[np.uint8],
    ) -> tuple[int, int, int, int]: ...
    def statistics(self) -> dict[str, Any]: ...

class Ring:
    def __init__(
        self,
        memory: npt.NDArray[np.uint8],
        block_bytes: int,
        link_type: int,
        *,
        incoming: bool = True,
        outgoing: bool = True,
        hardware: bool = False,
        tunnels: bool = False,
        fields: int = 15,
        prefix: int = 16,
        seed: int = 0,
        nets: Sequence[tuple[int, int, int, int]] = (),
        ports: Sequence[int] = (),
        protocols: Sequence[int] = (),
        from_ns: int = ...,
        to_ns: int = ...,
        relative: bool = False,
        few: bool = False,
    ) -> None: ...
    def take(self, batch: npt.NDArray[np.uint8], ports: npt.NDArray[np.uint32] | None = None) -> int: ...
    def finish(self) -> None: ...
    def statistics(self) -> dict[str, Any]: ...

class Tally:
    def __init__(
        self,
        memory: Words,
        crowds: Words,
        server: array[int],
        server_counts: Floats,
        server_sums: Floats,
        client: array[int],
        client_counts: Floats,
        client_sums: Floats,
    ) -> None: ...
    def figures(self, shares: Sequence[float]) -> LegFigures: ...

class RankedBins:
    def __init__(
        self, bins: npt.NDArray[np.int64], weights: npt.NDArray[np.uint64] | npt.NDArray[np.int64], below: int = 0
    ) -> None: ...
    @property
    def weight(self) -> int: ...
    def quantile(self, q: float) -> float | None: ...
    def bin_at(self, q: float) -> int: ...
    def before(self, bin: int) -> tuple[int, int]: ...

class DelayFigures:
    def __init__(self, bins: Numbers | None, weights: Words, squares: Words, mean: float, std: float) -> None: ...
    def quantile(self, q: float) -> float | None: ...
    def bin_at(self, q: float) -> int: ...
    def weight_from(self, bin: int) -> int: ...
    def share_error(self, below: int) -> float: ...
    def follows_mean(self, below: int) -> float: ...
    @property
    def sum_squares(self) -> int: ...
    @property
    def squared_apart(self) -> float: ...
    @property
    def skewness(self) -> float: ...

class Sure:
    def __init__(
        self,
        figures: DelayFigures,
        sums: Words,
        connections: tuple[Pair | None, tuple[float, float, float] | None] | None,
        times: tuple[Pair | None, tuple[float, float, float] | None] | None,
    ) -> None: ...
    @property
    def why(self) -> int: ...
    @property
    def mean(self) -> Pair | None: ...
    def quantile(self, q: float) -> Pair | None: ...
    def share_above(self, bin: int) -> Pair | None: ...

SKEWED: float

def half95(freedom: float) -> float: ...
def welch(errors: Sequence[Pair]) -> Pair: ...
def bounds(value: float, error: Pair, above: float, chance: tuple[float, float, float, float]) -> Pair: ...
def with_the_mean(
    q: float,
    ends: Pair,
    middle: float,
    floor: float,
    error: Pair | None,
    above: float,
    chance: tuple[float, float, float, float],
) -> Pair: ...
def wilson(share: float, n: float) -> Pair: ...
def share_bounds(share: float, error: Pair, samples: float) -> Pair: ...
def enough_beyond(q: float, wider: float, samples: float, stretches: float) -> bool: ...
def quantile_shares(q: float, error: Pair, samples: float) -> Pair | None: ...
def alike(slots: Numbers, sums: Floats, counts: Floats) -> Pair: ...
def alike_slots(sums: Floats, counts: Floats) -> Pair: ...
def cumulated(bins: Numbers | None, weights: Words, sums: Words) -> tuple[list[float], list[float]]: ...
def quantiles(bins: Numbers | None, weights: Words, sums: Words, shares: Sequence[float]) -> list[float | None]: ...
def heat(parts: Sequence[Words], most: int) -> tuple[int, int, list[list[int]]]: ...
def group_order(
    groups: Groups,
    figure: str,
    q: float,
    fewest: int,
    leg: int,
    values: Floats | None = None,
    samples: Floats | None = None,
) -> tuple[memoryview[int], int, int]: ...
def group_figures(
    groups: Groups, connections: ConnectionSums, places: Numbers, shares: Sequence[float], threads: int
) -> list[LegFigures]: ...
def group_times(
    times: GroupTimes, tag: int, shares: Sequence[float]
) -> tuple[list[list[float | None]], list[int]] | None: ...
def indented(value: Any, before: str, otherwise: Callable[[Any], str]) -> str: ...
def eighth_middles() -> list[int]: ...
def by_octave(bins: Numbers | None, weights: Words) -> list[float]: ...
def bin_above(limit_ns: int) -> int: ...
def crowds_error(weights: Words, alone: float) -> tuple[float, float] | None: ...
def crowds_sum(weights: Words) -> tuple[float, float]: ...
def between(totals: Floats, sizes: Floats, alone: float) -> tuple[float, float] | None: ...
def over_time(sums: Floats, counts: Floats, samples: int) -> tuple[float, float, float, float, float, float] | None: ...
def over_samples(values: Floats, weights: Floats) -> tuple[float, float, float, float, float, float]: ...
def cosines(apart: Floats, most: int) -> list[float]: ...
def slowness(powers: Sequence[float], batches: int, reach: float) -> tuple[float, float, float, float, float]: ...
def words(count: int) -> memoryview[int]: ...
def floats(count: int) -> memoryview[float]: ...
def octets(count: int) -> memoryview[int]: ...
def merge_delays(into: Words, bins: Numbers | None, weights: Words, squares: Words, sums: Words) -> None: ...
def add_words(into: Words, words: Words) -> None: ...
def merge_slots(
    place: array[int], counts: Floats, sums: Floats, others: array[int], more_counts: Floats, more_sums: Floats
) -> None: ...

class Work: ...

class FileRead(Work):
    def __init__(self, file: int, data: Octets, start: int, stop: int, offset: int) -> None: ...
    def bytes(self) -> int: ...

def has_libzstd() -> bool: ...

class Unzstd:
    def __init__(self, file: int, left: int, bytes: int, most: int, ahead: bool) -> None: ...
    def next(self) -> tuple[memoryview[int], int] | None: ...
    def stop(self) -> None: ...
    @property
    def problem(self) -> str: ...

class Decoder:
    def __init__(self, threads: int) -> None: ...
    def beside(self) -> Decoder: ...
    def finish(self, work: Work) -> None: ...
    def decode(
        self,
        reader: Reader,
        data: Octets,
        start: int,
        stop: int,
        all: bool,
        sharded: bool,
        keep: bool,
        until_ns: int,
        most: int,
        legs: int,
        least_ns: int,
        meanwhile: Work | None = None,
        then: Work | None = None,
        next: Work | None = None,
        fridges: FridgeRows | None = None,
    ) -> int: ...
    def proceed(self, reader: Reader) -> tuple[int, int, bool]: ...
    def slowest(self, reader: Reader) -> list[tuple[int, int, int, tuple[int, ...], int]]: ...
    def group(self, by: int, words: int, key_words: int, mask4: int, mask6: tuple[int, int]) -> None: ...
    def span(self) -> tuple[int, int] | None: ...
    def adding_up(
        self,
        groups: Groups | None,
        times: GroupTimes | None,
        legs: int,
        connections: ConnectionSums | None,
        first: int,
        length_ns: int,
        timeline: Sequence[Words],
    ) -> Work: ...
    @property
    def changes(self) -> bool: ...
    @property
    def edge_ns(self) -> int: ...

class Match:
    def __init__(
        self, matchers: int, first_copy: bool, connections: int, segments: int, waiting: int, threads: int = 1
    ) -> None: ...
    def observe(
        self,
        packets: Any,
        row: npt.NDArray[np.uint32],
        delay_ns: npt.NDArray[np.int64],
        leg: npt.NDArray[np.uint8],
        kind: npt.NDArray[np.uint8],
    ) -> int: ...
    def rows(self, decoder: Decoder, tallies: list[Tally]) -> Work: ...
    @property
    def sharded(self) -> bool: ...
    @property
    def evicted(self) -> int: ...
    @property
    def backwards(self) -> int: ...
    @property
    def too_long(self) -> int: ...
    @property
    def again(self) -> int: ...

class Fridge:
    def __init__(
        self,
        matchers: int,
        slots: Sequence[int],
        probabilities: Sequence[int],
        seed: int = 0,
        variant: int = 0,
        stages: int = 1,
        expiry_ns: int = 0,
    ) -> None: ...
    def observe(
        self,
        packets: Any,
        row: npt.NDArray[np.uint32],
        delay_ns: npt.NDArray[np.int64],
        leg: npt.NDArray[np.uint8],
        kind: npt.NDArray[np.uint8],
        fridge: npt.NDArray[np.uint8],
        x: npt.NDArray[np.uint64],
        weight: npt.NDArray[np.int64],
    ) -> int: ...
    def drain(self) -> None: ...
    @property
    def arrivals(self) -> int: ...
    @property
    def backwards(self) -> int: ...
    @property
    def too_long(self) -> int: ...
    def settings(self) -> bytes: ...
    @property
    def slot_bytes(self) -> int: ...

class FridgeRows:
    def __init__(self, open: Fridge, threads: int) -> None: ...
    def rows(self, decoder: Decoder, tallies: Sequence[Tally]) -> Work: ...
    def settle(self, decoder: Decoder, tallies: Sequence[Tally]) -> None: ...
    def replace(self, fresh: Fridge) -> None: ...
    @property
    def stretch(self) -> tuple[int, int]: ...
    def end_stretch(self, weights: Words) -> None: ...

def plan_fridges(
    room: int, fridges: int, rate_per_s: float | None, weights: Words | None
) -> tuple[list[int], list[int]]: ...
def fridge_inflation(
    slots: Sequence[int], probabilities: Sequence[int], rate_per_s: float, weights: Words
) -> float: ...

# one point, both directions: pairs

EXCHANGE_WORDS: int

class Pairs:
    def __init__(self, memory: int, silence_ns: int) -> None: ...
    def observe(
        self,
        packets: Any,
        from_client: npt.NDArray[np.uint8],
        endpoints: npt.NDArray[np.uint64] | None = None,
        frames: npt.NDArray[np.uint64] | None = None,
    ) -> None: ...
    def cut(self, now_ns: int) -> None: ...
    def finish(self) -> None: ...
    def take(self, room: npt.NDArray[np.uint64]) -> int: ...
    def counts(self) -> dict[str, int]: ...
    @property
    def records(self) -> int: ...
    @property
    def memory(self) -> int: ...

# the beginning of a message

def message_head(data: bytes, media_type: str) -> tuple[str, str, str, int] | None: ...

Place = tuple[int, int, int | None]
Opening = tuple[Any, str, str | None, Place, bytes, tuple[bool, int, Any], tuple[int, int, int, int], int, int]

def opening(text: bytes, most_text: int, most_count: int) -> Opening | None: ...

# integers in few bytes, bins of delays

Bins = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

def unsqueeze(
    names: dict[str, Any], body: bytes | memoryview, place: int, free: int, left: int
) -> tuple[dict[str, Any], int, int, int]: ...
def squeeze(values: npt.NDArray[np.uint64 | np.int64], free: int) -> tuple[int, int, bytes]: ...
def squeezed_size(values: npt.NDArray[np.uint64 | np.int64], free: int) -> tuple[int, int, int]: ...
def sample_bins(
    delays_ns: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int, int, int]: ...
def merge_bins(
    bins: npt.NDArray[np.int64],
    weights: npt.NDArray[np.int64],
    more_bins: npt.NDArray[np.int64],
    more_weights: npt.NDArray[np.int64],
) -> Bins: ...
def count_bins(
    bins: npt.NDArray[np.int64],
    weights: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
) -> int: ...
def pack_bins(bins: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> bytes: ...
def unpack_bins(data: bytes) -> Bins: ...

# two points: caches, lda, finecomb

def coins(ids: npt.NDArray[np.uint64], seed: int, purpose: int) -> npt.NDArray[np.uint64]: ...
def number_copies(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]: ...
def thinned(ids: npt.NDArray[np.uint64], most: int, purpose: int) -> tuple[npt.NDArray[np.uint32], int]: ...
def exact_sum(values: npt.NDArray[np.int64]) -> tuple[int, int]: ...
def times_of(
    numbers: npt.NDArray[np.uint64], times_ns: npt.NDArray[np.int64], wanted: npt.NDArray[np.uint64], untold: int
) -> npt.NDArray[np.int64]: ...
def pair(
    up_ids: npt.NDArray[np.uint64], down_ids: npt.NDArray[np.uint64], threads: int = 1
) -> tuple[
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint8],
    npt.NDArray[np.uint8],
    int,
    int,
    int,
    int,
    int,
]: ...
def lda(
    ids: npt.NDArray[np.uint64],
    times_ns: npt.NDArray[np.int64],
    buckets: npt.NDArray[np.uint64],
    rows: int,
    shifts: Sequence[int],
    seed: int,
) -> None: ...
def lda_settings(rows: int, shifts: Sequence[int], seed: int) -> bytes: ...
def coin_key(seed: int, purpose: int) -> int: ...
def finecomb(
    ids: npt.NDArray[np.uint64],
    times_ns: npt.NDArray[np.int64],
    buckets: npt.NDArray[np.uint64],
    rows: int,
    shift: int,
    seed: int,
) -> None: ...
def finecomb_repair(
    up_buckets: npt.NDArray[np.uint64],
    down_buckets: npt.NDArray[np.uint64],
    up_stash_ids: npt.NDArray[np.uint64],
    up_stash_times_ns: npt.NDArray[np.int64],
    down_stash_ids: npt.NDArray[np.uint64],
    down_stash_times_ns: npt.NDArray[np.int64],
    rows: int,
    seed: int,
) -> tuple[npt.NDArray[np.uint8], int]: ...

class Cache:
    def __init__(self, capacity: int, seed: int, about_words: int = 0) -> None: ...
    def observe(
        self,
        ids: npt.NDArray[np.uint64],
        times_ns: npt.NDArray[np.int64],
        about: npt.NDArray[np.uint64] | None = None,
    ) -> None: ...
    def take(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.uint64]]: ...
    def __len__(self) -> int: ...
    @property
    def level(self) -> int: ...

# two points: rda

def rda_fill(
    numbers: npt.NDArray[np.uint64],
    times_ns: npt.NDArray[np.int64],
    buckets: npt.NDArray[np.uint64],
    banks: int,
    seed: int,
) -> None: ...
def rda_decode(
    difference: npt.NDArray[np.uint64],
    banks: int,
    seed: int,
    checked: bool,
    own: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], bool]: ...
def srda_fill(
    numbers: npt.NDArray[np.uint64],
    times_ns: npt.NDArray[np.int64],
    buckets: npt.NDArray[np.uint64],
    banks: int,
    seed: int,
) -> None: ...
def srda_decode(
    difference: npt.NDArray[np.uint64], banks: int, seed: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], bool]: ...
def strata_fill(numbers: npt.NDArray[np.uint64], strata: npt.NDArray[np.uint64], seed: int) -> None: ...
def strata_estimate(difference: npt.NDArray[np.uint64], seed: int) -> int: ...
def minhash(numbers: npt.NDArray[np.uint64], count: int, seed: int) -> npt.NDArray[np.uint64]: ...

FIRST_SYMBOLS: int

def rateless_first(numbers: npt.NDArray[np.uint64], count: int, seed: int) -> npt.NDArray[np.uint64]: ...

class RatelessEncoder:
    def __init__(self, numbers: npt.NDArray[np.uint64], seed: int) -> None: ...
    def symbols(self, count: int) -> npt.NDArray[np.uint64]: ...

class RatelessDecoder:
    def __init__(self, seed: int, check_bits: int = 32, count_bits: int = 64) -> None: ...
    def add(self, difference: npt.NDArray[np.uint64]) -> bool: ...
    def add_words(
        self, up: npt.NDArray[np.uint64], down: npt.NDArray[np.uint64], number_bits: int, check_bits: int
    ) -> bool: ...
    def found(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]: ...
    @property
    def symbols(self) -> int: ...

# two points: an interval

Fated: TypeAlias = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]

def delay_sums(delays_ns: npt.NDArray[np.int64]) -> tuple[int, float, int, int]: ...
def median(delays_ns: npt.NDArray[np.int64]) -> int: ...
def row_totals(
    counts: npt.NDArray[np.int64], sums_ns: npt.NDArray[np.int64], usable: npt.NDArray[np.bool_]
) -> tuple[int, int, int, float]: ...
def unlike_rows(
    counts: npt.NDArray[np.int64],
    sums_ns: npt.NDArray[np.int64],
    usable: npt.NDArray[np.bool_],
    fewest: int,
    far_ns: float,
    spreads: float,
    sigmas: float,
    least_ns: float,
) -> npt.NDArray[np.bool_]: ...
def rows_apart(
    up_rows: npt.NDArray[np.uint64],
    down_rows: npt.NDArray[np.uint64],
    up: Fated,
    down: Fated,
    base_ns: int,
    seed: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]: ...
def carried(
    up_ids: npt.NDArray[np.uint64],
    up_times_ns: npt.NDArray[np.int64],
    down_ids: npt.NDArray[np.uint64],
    down_times_ns: npt.NDArray[np.int64],
    ahead_ns: int,
) -> (
    tuple[
        npt.NDArray[np.int64],
        npt.NDArray[np.int64],
        npt.NDArray[np.uint32],
        npt.NDArray[np.uint32],
        npt.NDArray[np.bool_],
        npt.NDArray[np.bool_],
        int,
        int,
        int,
        int,
        int,
        int,
    ]
    | None
): ...
def looked_up(
    keys: npt.NDArray[np.uint64], values: npt.NDArray[np.int64], wanted: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64] | None: ...
def at_most(ids: npt.NDArray[np.uint64], seed: int, level: int, capacity: int) -> tuple[int, npt.NDArray[np.bool_]]: ...
def looking(
    chosen: npt.NDArray[np.uint64],
    behind: npt.NDArray[np.uint64],
    early: npt.NDArray[np.uint64],
    numbers: npt.NDArray[np.uint64],
    times_ns: npt.NDArray[np.int64],
    untold: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], npt.NDArray[np.bool_]]: ...

# queue

def queue_pass(
    times_ns: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.uint32],
    bytes_per_s: int,
    limit: int,
    red: tuple[int, int, int, int, int],
    rule: tuple[int, int, int, int, int, int, int, int, int, int, int] | None,
    seed: int = 0,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], int]: ...

class Injector:
    refused: int
    def __init__(self, rule: tuple[int, int, int, int, int, int, int, int, int, int, int]) -> None: ...
    def observe(self, times_ns: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]: ...
    def due(self, time_ns: int) -> npt.NDArray[np.int64]: ...

# sim

def sim_frames(
    packets: Any,
    connections: Any,
    rows: npt.NDArray[np.int64],
    crossed: npt.NDArray[np.bool_],
    snaplen: int,
    seed: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
def capture_records(
    time_ns: npt.NDArray[np.int64],
    buffer: npt.NDArray[np.uint8],
    offset: npt.NDArray[np.int64],
    captured: npt.NDArray[np.int64],
    wire: npt.NDArray[np.int64],
    pcapng: bool,
) -> npt.NDArray[np.uint8]: ...
def stable_order(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
def numbers_in_order(
    order: npt.NDArray[np.int64], group: npt.NDArray[np.int32], first: npt.NDArray[np.uint16]
) -> npt.NDArray[np.uint16]: ...
def release_memory() -> None: ...

# rli

FLOW_WORDS: int

def fill_endpoints(
    src: npt.NDArray[np.uint64],
    dst: npt.NDArray[np.uint64],
    src_port: npt.NDArray[np.uint16],
    dst_port: npt.NDArray[np.uint16],
    protocol: npt.NDArray[np.uint8],
    endpoints: npt.NDArray[np.uint64],
) -> None: ...

class Rli:
    def __init__(
        self,
        method: int,
        memory: int,
        bytes_per_s: int,
        buffer: int,
        idle_ns: int,
        bracket_ns: int,
        early_ns: int,
        late_ns: int,
        base_ns: int,
        inactive_ns: int,
        active_ns: int,
        hold: int,
        seed: int,
        burst: int = 0,
    ) -> None: ...
    def observe(
        self,
        time_ns: npt.NDArray[np.int64],
        kind: npt.NDArray[np.uint8],
        size: npt.NDArray[np.uint32],
        key: npt.NDArray[np.uint64],
        id: npt.NDArray[np.uint64],
        sequence: npt.NDArray[np.uint32],
        sent_ns: npt.NDArray[np.int64],
        previous_sent_ns: npt.NDArray[np.int64],
        previous_id: npt.NDArray[np.uint64],
        src: npt.NDArray[np.uint64] | None = None,
        dst: npt.NDArray[np.uint64] | None = None,
        src_port: npt.NDArray[np.uint16] | None = None,
        dst_port: npt.NDArray[np.uint16] | None = None,
        protocol: npt.NDArray[np.uint8] | None = None,
        accepted: npt.NDArray[np.uint8] | None = None,
    ) -> None: ...
    def drain(self, bytes_per_s: int, idle_ns: int, burst: int = 0) -> None: ...
    def cut(self, most: int = ..., settle: bool = ...) -> bool: ...
    def take(self, room: npt.NDArray[np.uint64]) -> int: ...
    def counts(self) -> dict[str, int]: ...
    def totals(self) -> list[int]: ...
    def errors(self) -> list[int]: ...
    @property
    def records(self) -> int: ...
    @property
    def open(self) -> int: ...
    @property
    def base_ns(self) -> int | None: ...
    @property
    def trusted(self) -> bool: ...
    @property
    def memory(self) -> int: ...

# pirate

ADDRESS_KEY: int
PORT_RANKS: bytes  # of each port
EPOCH_COLUMNS: tuple[str, ...]

class Pirate:
    def __init__(
        self, method: int, memory: int, epoch_ns: int, fewest: int, gap_ns: int, literal: bool, seed: int
    ) -> None: ...
    def observe(
        self,
        time_ns: npt.NDArray[np.int64],
        key: npt.NDArray[np.uint64],
        seq: npt.NDArray[np.uint32],
        ack: npt.NDArray[np.uint32],
        tsval: npt.NDArray[np.uint32],
        tsecr: npt.NDArray[np.uint32],
        length: npt.NDArray[np.uint32],
        payload: npt.NDArray[np.uint32],
        ip_id: npt.NDArray[np.uint16],
        mss: npt.NDArray[np.uint16],
        tcp_flags: npt.NDArray[np.uint8],
        has: npt.NDArray[np.uint8],
    ) -> None: ...
    def observe_batch(self, packets: object, with_tcp: bool, without: bool) -> int: ...
    def cut(self, now_ns: int) -> None: ...
    def finish_groups(self, groups: npt.NDArray[np.uint8], names: npt.NDArray[np.uint64], now_ns: int) -> None: ...
    def take(self, room: npt.NDArray[np.uint64]) -> int: ...
    def counts(self) -> dict[str, int]: ...
    @property
    def epochs(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def coin_key(self) -> int: ...
    @property
    def memory(self) -> int: ...

# routes

def maglev_fill(
    table: npt.NDArray[np.int32],
    first: npt.NDArray[np.uint32],
    skip: npt.NDArray[np.uint32],
    weights: npt.NDArray[np.uint32],
) -> None: ...

class SplitSet:
    def __init__(
        self,
        routers: int,
        sources: npt.NDArray[np.uint32],
        targets: npt.NDArray[np.uint32],
        weights: npt.NDArray[np.int64],
    ) -> None: ...
    def upgrade(self, router: int) -> int: ...
    def gains(self, hops: bool) -> list[int]: ...
    def members(
        self, source: int
    ) -> tuple[
        npt.NDArray[np.uint32],
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint32],
        npt.NDArray[np.uint32],
    ]: ...
    def costs(self, source: int) -> npt.NDArray[np.int64]: ...
    def on_route(self, source: int) -> npt.NDArray[np.uint8]: ...
    @property
    def paths(self) -> int: ...
    @property
    def probe_hops(self) -> int: ...
    @property
    def extent(self) -> tuple[int, int]: ...
    @property
    def capped(self) -> bool: ...
