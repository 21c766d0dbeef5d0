"""One service of a running balancer: its loop, health checks, command and totals, one interval at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wirelag.balance.metrics import Totals
from wirelag.balance.view import TooShort
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.balance.apply import Applier
    from wirelag.balance.health import Health
    from wirelag.balance.loop import Balancer, Step
    from wirelag.balance.settings import Config
    from wirelag.ebpf.service import Reading
    from wirelag.transport.audit import Audit


class Serving:
    """Drives the balancer of a service; `tell` gets lines for people. Its totals are added by the caller."""

    def __init__(
        self,
        balancer: Balancer,
        audit: Audit,
        tell: Callable[[str], None],
        health: Health | None = None,
        applier: Applier | None = None,
    ) -> None:
        self.balancer, self._audit, self._tell, self._health, self._applier = balancer, audit, tell, health, applier
        self.totals = Totals(balancer.config.name, applier)
        self._short, self._down = TooShort(), tuple[str, ...]()

    @property
    def config(self) -> Config:
        """Its settings now."""
        return self.balancer.config

    def step(self, reading: Reading) -> Step:
        """Process an interval."""
        if self._health is not None:
            self.balancer.set_down(self._health.down())
        entry = self.balancer.step(reading)
        if entry.decision.changes or entry.down != self._down:
            self._down = entry.down
            weights = {name: round(weight, 4) for name, weight in entry.decision.weights.items()}
            what = "weights applied" if entry.steered else "weights"
            self._audit.say(what, service=self.config.name, weights=weights, down=list(entry.down))
        if self._applier is not None:
            self._applier.offer(self.config.backends, entry.decision.weights)
        if self._short.add(entry):
            self._tell(self._short.line)
        return entry

    def reload(self, config: Config) -> None:
        """Apply new settings; if that fails, nothing of this service changes."""
        from wirelag.balance.loop import fixed

        for name in fixed(self.config, config):
            self._tell(f"{config.path}: {name}: unchanged until the next start")
        try:
            changes = self.balancer.reload(config)
        except WirelagError as error:
            for line in str(error).splitlines():
                self._tell(f"{line}; nothing changed")
            return
        if self._health is not None:
            self._health.configure(self.config)
        self._audit.say("reload", service=self.config.name, backends=[one.name for one in config.backends])
        said = "; ".join(f"{c.name} {c.reason}: {c.before:.1%} to {c.after:.1%}" for c in changes)
        self._tell(f"{config.path}: reloaded{f': {said}' if said else ''}")
