"""python -m heads cache: what was exported by itself."""

from .exporter import cache


def main(arguments: list[str]) -> int:
    return cache.main(arguments, "heads cache")
