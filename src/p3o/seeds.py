"""Randomness by purpose: every stream of a run is a child of its seed, so neighbouring seeds share nothing."""

from typing import NamedTuple

import numpy as np


class Seeds(NamedTuple):
    """One SeedSequence a purpose."""

    init: np.random.SeedSequence
    act: np.random.SeedSequence
    update: np.random.SeedSequence
    envs: np.random.SeedSequence
    evaluation: np.random.SeedSequence


def derive(seed: int) -> Seeds:
    return Seeds(*np.random.SeedSequence(seed).spawn(len(Seeds._fields)))
