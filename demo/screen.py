"""
What the demo prints itself: plain lines. The bar of a batch is drawn by ``batch.watch``.

It must never print control characters, since it may print into a file.
"""

from __future__ import annotations


def title(number: int, text: str) -> None:
    """Begin a step."""
    print(f"\n{number}. {text}", flush=True)


def say(text: str) -> None:
    """Say in one or more lines what is done or seen."""
    for line in text.splitlines():
        print(f"   {line}", flush=True)


def command(words: list[str]) -> None:
    """Show a command as the operator would type it."""
    print(f"   $ {' '.join(words)}", flush=True)
