"""Committing: one version per table and batch, with the marks that make it happen exactly once."""

from headrace.commit.adopt import LogTable
from headrace.commit.changes import Change, Kind
from headrace.commit.committer import Committer
from headrace.commit.tail import Tail
from headrace.tables.adopt import may_adopt
from headrace.tables.evolve import check_fits

__all__ = ["Change", "Committer", "Kind", "LogTable", "Tail", "check_fits", "may_adopt"]
