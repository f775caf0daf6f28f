"""Find lines by a literal that they contain, then match them: a log is mostly lines that nobody needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfscope.sources.joblog.draft import Draft, Hit, Rule


def find(text: bytes, rules: Iterable[Rule]) -> list[tuple[int, Rule, Hit]]:
    """Every match of every rule in a block, each with its place; two records glued on one line are two matches."""
    found = []
    for rule in rules:
        at = text.find(rule.anchor)
        past = 0
        while at >= 0:
            line = text.rfind(b"\n", 0, at) + 1
            end = text.find(b"\n", at)
            end = len(text) if end < 0 else end
            match = rule.pattern.search(text, max(line, past), end + rule.reach)
            if match is not None:
                found.append((match.start(), rule, Hit(text, line, end, match)))
            past = max(at + len(rule.anchor), match.end() if match is not None else 0)
            at = text.find(rule.anchor, past)
    return found


def play(draft: Draft, found: Sequence[tuple[int, Rule, Hit]]) -> None:
    """Act on matches in the order of the text."""
    for _, rule, hit in sorted(found, key=lambda item: item[0]):
        rule.act(draft, hit)
