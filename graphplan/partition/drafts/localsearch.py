"""Local search on drafts: moves are ranked by their appraisal, and the best are valued.

What values a draft is either its appraisal, or the judge: then the search proposes the draft and
goes on when it is sent the judgement, like every planner (proposal.py). The moves come in a fixed
order, ties keep the first, and what a search may spend is counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from graphplan.nouns.problem import Floats
from graphplan.partition.assemble import Draft, Part
from graphplan.partition.drafts.appraise import Appraisal, Appraiser
from graphplan.partition.drafts.borders import pull_borders, ripple_borders, shift_borders
from graphplan.partition.drafts.redeploy import (
    change_micro_batches,
    drop_replicas,
    move_replicas,
    pack_places,
    swap_places,
    toggle_recompute,
)
from graphplan.partition.drafts.regroup import (
    detach_ends,
    merge_and_split,
    merge_parts,
    separate_pieces,
    share_devices,
    split_parts,
)
from graphplan.partition.drafts.scene import Scene, is_legal_draft

MOVES: tuple[Callable[[Scene], Iterator[Draft]], ...] = (
    shift_borders,
    ripple_borders,
    split_parts,
    merge_and_split,
    merge_parts,
    move_replicas,
    separate_pieces,
    detach_ends,
    toggle_recompute,
    change_micro_batches,
    swap_places,
    share_devices,
    pull_borders,
    drop_replicas,
    pack_places,
)

Values = Generator[Draft | None, float, float]
Value = Callable[[Draft], Values]
"""What a draft is worth in seconds, perhaps after it was proposed."""

CLEAR = 0.01
"""A draft that looks this much better than the current one is valued at once."""
SLACK = 0.04
"""Drafts that look this much worse than the current one may still be worth more."""
SIGN_OF_LIFE = 64
"""Appraisals after which a search shows that it goes on."""
NUM_KEPT = 4
"""Best drafts from which a search wanders off."""
PATIENCE = 30
"""Wanderings in a row without a better draft after which it ends."""


@dataclasses.dataclass
class Budget:
    """What a search may still spend: counts, so that the result does not depend on the machine."""

    num_appraisals: int
    num_valued: int
    max_drafts: int = 500
    """Drafts that are appraised in a round, at most."""
    max_valued: int = 6
    """Drafts that are valued in a round, at most."""

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.num_appraisals <= 0 or self.num_valued <= 0


class LocalSearch:
    """Climbs from drafts to better ones until the budget is spent."""

    def __init__(
        self,
        appraiser: Appraiser,
        work: Floats,
        value: Value,
        budget: Budget,
    ) -> None:
        self.appraiser, self.work, self.value, self.budget = appraiser, work, value, budget
        self.seen: set[frozenset[Part]] = set()
        self.appraisals: dict[frozenset[Part], Appraisal | None] = {}

    def climb(self, draft: Draft) -> Generator[Draft | None, float, tuple[Draft, float]]:
        """The best draft that moves from `draft` reach, and its step seconds."""
        step_s = yield from self.value(draft)
        appraisal = self._appraise(draft)
        assert appraisal is not None, "a draft to climb from has an order"
        self.seen.add(canonical(draft))
        while not self.budget.is_spent:
            found = yield from self._find_better(draft, step_s, appraisal)
            if found is None:
                break
            draft, step_s, appraisal = found
        return draft, step_s

    def wander(self, draft: Draft, rng: random.Random, *, num_moves: int) -> Draft:
        """A draft some random moves away that is not much worse, by its appraisal."""
        for _ in range(num_moves):
            appraisal = self._appraise(draft)
            assert appraisal is not None, "moves lead to drafts with an order"
            scene = Scene(self.appraiser, self.work, draft, appraisal, everywhere=True)
            move = rng.choice(MOVES)
            drafts = [each for each in move(scene) if is_legal_draft(self.appraiser.problem, each)]
            rng.shuffle(drafts)
            for candidate in drafts[:12]:
                estimate = self._appraise(candidate)
                if estimate is not None and estimate.rank < (False, 1.4 * appraisal.step_s):
                    draft = candidate
                    break
        return draft

    def _find_better(
        self, draft: Draft, step_s: float, appraisal: Appraisal
    ) -> Generator[Draft | None, float, tuple[Draft, float, Appraisal] | None]:
        """The first move that is clearly better, else the best of those that may be."""
        scene = Scene(self.appraiser, self.work, draft, appraisal)
        crowded, value = appraisal.rank
        clear, worst = (crowded, value * (1 - CLEAR)), (crowded, value * (1 + SLACK))
        found: list[tuple[Draft, Appraisal]] = []
        drafts = itertools.chain.from_iterable(move(scene) for move in MOVES)
        legal = self._list_legal(drafts)
        for count, candidate in enumerate(itertools.islice(legal, self.budget.max_drafts)):
            if self.budget.is_spent:
                return None
            if count % SIGN_OF_LIFE == 0:
                yield None
            estimate = self._appraise(candidate)
            if estimate is None or estimate.rank >= worst:
                continue
            if estimate.rank < clear:
                found_s = yield from self._try(candidate)
                if found_s < step_s * (1 - 1e-9):
                    return candidate, found_s, estimate
            else:
                found.append((candidate, estimate))
        found.sort(key=lambda each: each[1].rank)
        for candidate, estimate in found[: self.budget.max_valued]:
            if self.budget.is_spent:
                return None
            found_s = yield from self._try(candidate)
            if found_s < step_s * (1 - 1e-9):
                return candidate, found_s, estimate
        return None

    def _try(self, draft: Draft) -> Values:
        """Value a draft; what was seen before costs nothing."""
        key = canonical(draft)
        if key not in self.seen:
            self.seen.add(key)
            self.budget.num_valued -= 1
        return self.value(draft)

    def _appraise(self, draft: Draft) -> Appraisal | None:
        """Appraise a draft, once."""
        key = canonical(draft)
        if key not in self.appraisals:
            self.budget.num_appraisals -= 1
            self.appraisals[key] = self.appraiser.appraise(draft)
        return self.appraisals[key]

    def _list_legal(self, drafts: Iterable[Draft]) -> Iterator[Draft]:
        """Drafts that obey the rules and were neither seen nor listed before."""
        listed: set[frozenset[Part]] = set()
        for draft in drafts:
            key = canonical(draft)
            if key in self.seen or key in listed:
                continue
            listed.add(key)
            if is_legal_draft(self.appraiser.problem, draft):
                yield draft


def search_around(
    search: LocalSearch, starts: Iterable[Draft], *, seed: int
) -> Generator[Draft | None, float, list[Draft]]:
    """Climb from several drafts, then from the surroundings of the best; all ends, best first."""
    pool: dict[frozenset[Part], tuple[float, Draft]] = {}
    for draft in starts:
        found, step_s = yield from search.climb(draft)
        pool[canonical(found)] = (step_s, found)
    rng = random.Random(seed)
    misses = 0
    while pool and not search.budget.is_spent and misses < PATIENCE:
        best = sorted(pool.values(), key=lambda each: each[0])[:NUM_KEPT]
        start = best[min(rng.randrange(len(best)), rng.randrange(len(best)))][1]
        away = search.wander(start, rng, num_moves=rng.randint(1, 4))
        found, step_s = yield from search.climb(away)
        pool[canonical(found)] = (step_s, found)
        misses = 0 if step_s < best[0][0] else misses + 1
    return [draft for _, draft in sorted(pool.values(), key=lambda each: each[0])]


def canonical(draft: Sequence[Part]) -> frozenset[Part]:
    """Equal for drafts that differ in the order of their parts only."""
    return frozenset(draft)
