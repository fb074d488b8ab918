"""A clock: how a run knows the latency of a network, timed here in a runtime or predicted from a host's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailorvit.costs.runtime import Runtime

if TYPE_CHECKING:
    from tailorvit.arch import Arch
    from tailorvit.costs.latency_table import LatencyTable
    from tailorvit.space import Space


@dataclass(frozen=True, eq=False)
class Clock:
    """The runtime, or the table of another host."""

    runtime: Runtime = Runtime()  # noqa: RUF009 - a value
    table: LatencyTable | None = None

    def facts(self, arch: Arch | None = None) -> dict[str, Any]:
        """For result.json: how the latency of the delivered network is known."""
        if self.table is None:
            return {"how": "measured", **self.runtime.to_dict()}
        beyond = [] if arch is None else self.table.beyond(arch)
        return {"how": "predicted", **self.table.runtime, "table": self.table.to_dict(), "beyond": beyond}

    def sentences(self, space: Space, device: str) -> list[str]:
        """What a run says of it at its beginning."""
        if self.table is None:
            return [f"Latency is measured on {device} in {self.runtime.describe()}, one image at a time."]
        table = self.table
        said = [
            f"Latency is predicted for {table.host} from {table.quality.rows} networks of '{table.name}': "
            f"{table.quality.describe()}."
        ]
        ends = {key for arch in (space.smallest(), space.largest()) for key in table.beyond(arch)}
        if ends:
            said.append(
                f"The space goes beyond the networks of '{table.name}' in {', '.join(sorted(ends))}; predictions "
                "there are less certain."
            )
        return said
