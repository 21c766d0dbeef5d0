"""Weights of a fridge's samples as floats: the reference for the kernel's integers, and those of the paper.

No command needs them; tests, experiments and the variant `inverse-variance` do. docs/reference/fridge.md is the law.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from wirelag.estimators.fridge_plan import CERTAIN, Fridges
from wirelag.packets.batch import Array

Floats = npt.NDArray[np.float64]


def seen(fridges: Fridges, survived: Array) -> Floats:
    """The probability q that a delay that survived `survived` requests is seen in any fridge."""
    parts = zip(fridges.slots, fridges.probabilities, strict=True)
    return np.asarray(sum(_seen(m, p / CERTAIN, survived) for m, p in parts), np.float64)


def _seen(slots: int, probability: float, survived: Array) -> Floats:
    """The probability p (1 - p/M)^x, x = all requests since."""
    hit = probability / slots
    kept = np.exp(survived * math.log1p(-hit)) if hit < 1 else np.where(survived > 0, 0.0, 1.0)
    return np.asarray(probability * kept, np.float64)


def union_weights(fridges: Fridges, survived: Array) -> Floats:
    """1/q: unbiased, without bins. As in the kernel, q is at least 2^-32."""
    return np.asarray(1 / np.maximum(seen(fridges, survived), 1 / CERTAIN), np.float64)


def single_weights(slots: int, probability: float, survived: Array, hit: float | None = None) -> Floats:
    """The weight 1 / (p (1 - hit)^x) of a single fridge.

    Two pairs are unbiased: x = all requests with hit = p/M (the default), and x = those that entered with hit = 1/M.
    Any other pair is wrong; the paper's text mixes them.
    """
    decay = math.log1p(-(probability / slots if hit is None else hit))
    return np.asarray(np.exp(survived.astype(np.float64) * -decay) / probability)


def inverse_variance_weights(fridges: Fridges, fridge: Array, survived: Array, bins: Array) -> Floats:
    """The paper's section 4.2: per bin of delay, the fridges' estimates weighted by their inverse variances.

    Biased, because an estimate and its variance come from the same samples: a fridge that saw too little looks certain.
    """
    own = np.empty(len(fridge), np.float64)
    for k, (slots, p) in enumerate(zip(fridges.slots, fridges.probabilities, strict=True)):
        own[fridge == k] = single_weights(slots, p / CERTAIN, survived[fridge == k])
    cells, cell = np.unique(np.column_stack((bins, fridge)), axis=0, return_inverse=True)
    cell = cell.reshape(-1)
    sureness = 1 / np.bincount(cell, own**2)  # 1 / V_k(t)
    _, bin_of_cell = np.unique(cells[:, 0], return_inverse=True)
    return np.asarray(own * (sureness / np.bincount(bin_of_cell, sureness)[bin_of_cell])[cell], np.float64)
