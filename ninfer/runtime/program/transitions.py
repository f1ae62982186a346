"""From plans to stages: what each resource transaction does to the stores, in which order.

Deletions come first since they make room on the host, then the stores of host-only victims, then the source's restore,
then the change itself. So each stage's peak is no higher than the end state's need, which is what was assessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ninfer.runtime.core.program import CheckpointHandle, Degradation, ResourceResult, TerminalChoice, Victim
from ninfer.runtime.program.stores import Stores
from ninfer.runtime.program.transactions import (
    CapturePlan,
    MaterialisePlan,
    Plan,
    ReclaimPlan,
    Stage,
    TerminalPlan,
    degraded,
)


class Transitions:
    """Builds the stages of plans. `changed` is called after every stage that altered what is free or who owns what."""

    def __init__(self, stores: Stores, changed: Callable[[], None]) -> None:
        self._stores = stores
        self._changed = changed

    def stages(self, plan: Plan) -> list[Stage]:
        """The plan's steps; always at least one."""
        steps = self._degradations(plan.victims)
        if isinstance(plan, MaterialisePlan):
            steps += self._materialise(plan)
        elif isinstance(plan, CapturePlan):
            steps.append(lambda result: self._capture(plan, result))
        elif isinstance(plan, TerminalPlan):
            steps.append(lambda result: self._terminal(plan, result))
        else:
            assert isinstance(plan, ReclaimPlan), "every kind of plan is handled"
            assert steps, "a reclaim has victims"
        return [self._counted(step) for step in steps]

    def _counted(self, step: Stage) -> Stage:
        def run(result: ResourceResult) -> ResourceResult:
            result = step(result)
            self._changed()
            return result

        return run

    def _degradations(self, victims: tuple[Victim, ...]) -> list[Stage]:
        deleted = tuple(victim for victim in victims if victim.degradation is Degradation.DELETE)
        moved = tuple(victim for victim in victims if victim.degradation is Degradation.HOST_ONLY)
        steps: list[Stage] = []
        if deleted:
            steps.append(lambda result: self._delete(deleted, result))
        if moved:
            steps.append(lambda result: self._store(moved, result))
        return steps

    def _delete(self, victims: tuple[Victim, ...], result: ResourceResult) -> ResourceResult:
        for victim in victims:
            self._stores.delete(self._stores.checkpoints[victim.checkpoint])
        return degraded(result, victims)

    def _store(self, victims: tuple[Victim, ...], result: ResourceResult) -> ResourceResult:
        self._stores.store(self._stores.checkpoints[victim.checkpoint] for victim in victims)
        return degraded(result, victims)

    def _materialise(self, plan: MaterialisePlan) -> list[Stage]:
        target = plan.target
        steps: list[Stage] = []
        if target.checkpoint is not None and any(self._stores.checkpoints[target.checkpoint].pages.missing()):
            handle = target.checkpoint
            steps.append(lambda result: self._restore(handle, result))
        steps.append(lambda result: self._open(plan, result))
        return steps

    def _restore(self, handle: CheckpointHandle, result: ResourceResult) -> ResourceResult:
        self._stores.restore(self._stores.checkpoints[handle])
        return result

    def _open(self, plan: MaterialisePlan, result: ResourceResult) -> ResourceResult:
        target = plan.target
        if target.checkpoint is None:
            return replace(result, sequence=self._stores.open_root(target.demand).handle)
        source = self._stores.checkpoints[target.checkpoint]
        reused = source.frontier
        sequence = self._stores.open_from(target.demand, source, target.consume)
        removed = (*result.removed, target.checkpoint) if target.consume else result.removed
        return replace(result, sequence=sequence.handle, reused_tokens=reused, removed=removed)

    def _capture(self, plan: CapturePlan, result: ResourceResult) -> ResourceResult:
        checkpoint = self._stores.freeze(self._stores.sequences[plan.sequence])
        return replace(result, published=checkpoint.handle)

    def _terminal(self, plan: TerminalPlan, result: ResourceResult) -> ResourceResult:
        sequence = self._stores.sequences[plan.sequence]
        if plan.choice is TerminalChoice.RELEASE:
            self._stores.release(sequence)
            return result
        return replace(result, published=self._stores.retain(sequence).handle)
