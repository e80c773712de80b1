"""The version of this Headrace; the package takes its version from here."""

VERSION = "0.1.0"
