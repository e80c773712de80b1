"""What a running pipeline does to its own tables between batches: planned, told, then done."""

from headrace.maintain.maintainer import Maintainer, maintained

__all__ = ["Maintainer", "maintained"]
