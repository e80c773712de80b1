"""Identity of a route within a pipeline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class RouteId:
    """A route and the branch it belongs to.

    Written as text only where people or JSON need it: `RouteId("items", "eu")` is `items/eu`, and `RouteId("", "eu")`
    is `eu`. Neither part has a slash (ValueError), so the text is unambiguous: routing rejects such names.
    """

    branch: str = ""  # "": the pipeline's own
    route: str = ""  # "": the only one, of a fixed route; `topic:route` where every topic has its own tables

    def __post_init__(self) -> None:
        if "/" in self.branch or "/" in self.route:
            raise ValueError(f"slash in a name: branch {self.branch!r}, route {self.route!r}")

    @classmethod
    def parse(cls, text: str) -> RouteId:
        """Parse `branch/route`, or `route` alone."""
        branch, slash, route = text.partition("/")
        return cls(branch, route) if slash else cls("", text)

    def __str__(self) -> str:
        return f"{self.branch}/{self.route}" if self.branch else self.route
