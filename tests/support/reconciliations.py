"""Two points that reconcile their packets, message by message."""

from collections import Counter
from typing import Any

import numpy as np

from wirelag.codec import pack, unpack
from wirelag.estimators.rda import Rda
from wirelag.protocol.reconcile import (
    Reconciling,
    answer_symbols,
    check_answer,
    check_ask,
)
from wirelag.synopses import reordering
from wirelag.synopses.cache import Cached
from wirelag.synopses.crossing import Crossing
from wirelag.synopses.symbols import SymbolSynopsis, numbers_of

SHORT = Rda(short=True, rows=16, tail=50)


def cached(ids: Any, times_ns: Any, level: int = 0) -> Cached:
    ids = np.array(ids, np.uint64)
    return Cached(ids, np.array(times_ns, np.int64), packets=len(ids)).at_level(level)


def converse(
    up: Cached, down: Cached, estimator: Rda = SHORT, with_order: bool = False, answers_order: bool = True
) -> tuple[Crossing, Counter[str]]:
    """Talk until no question is left; return the result and the questions."""
    bound = [estimator.bind(one) for one in (up, down)]
    synopses = [one for one in bound if isinstance(one, SymbolSynopsis)]
    if with_order:
        synopses[1] = reordering.with_order(synopses[1], down, numbers_of(down.ids))
    talk, asked = Reconciling(estimator, synopses), Counter[str]()
    while True:
        asks, crossing = talk.ask(), talk.crossing()
        if not asks:
            return crossing, asked
        found = []
        for side, ask in asks.items():
            ask = unpack(pack(ask | {"cache_level": talk.level}))
            check_ask(ask)
            answer = unpack(pack(answer_symbols(estimator, (up, down)[side], ask)))
            if not answers_order:
                answer.pop("order_ns", None)
            check_answer(estimator, answer)
            found.append((side, ask, talk.read(side, ask, answer)))
            asked[next(name for name in ("symbols", "wanted", "ids", "whole") if name in ask)] += 1
        for side, ask, what in found:
            talk.take(side, ask, what)
        assert asked.total() < 20
