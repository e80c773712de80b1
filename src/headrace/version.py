"""The version of this Headrace."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("headrace")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0.0.0"
