"""The findings: what costs the most, with its evidence and what to try."""

from __future__ import annotations

from perfscope.analyzers.findings import Findings
from perfscope.analyzers.findings.finding import Finding
from perfscope.constants import GB, US_PER_S
from perfscope.engine.run import Analysis
from perfscope.page.html import clean, with_code
from perfscope.page.part import Drawn, result_of
from perfscope.report import percent
from perfscope.units import format_ranges, format_seconds


def draw_findings(analysis: Analysis) -> Drawn:
    """One card a finding, the one that regains most first."""
    findings = result_of(analysis, "findings", Findings)
    assert findings is not None
    if not findings.findings:
        return Drawn("Nothing stands out: no cause that perfscope knows costs much of a step.")
    cards = "".join(_card(finding, index) for index, finding in enumerate(findings.findings))
    step = format_seconds(findings.step_us / US_PER_S)
    lead = f"What costs the most of a step of {step}, and what to try. Times are what a fix would regain of each step."
    return Drawn(lead, html=f'<ol class="findings">{cards}</ol>')


def _card(finding: Finding, index: int) -> str:
    pointer = f"/results/findings/{index}"
    low, high = (format_seconds(edge / US_PER_S) for edge in finding.interval_us)
    between = f"{low} to {high}, " if low != high else ""
    ranks = f"rank{'s' * (len(finding.ranks) > 1)} {format_ranges(finding.ranks, 8)}" if finding.ranks else "all ranks"
    evidence = "".join(f"<li>{with_code(item.text)}</li>" for item in finding.evidence)
    if finding.saved_bytes is not None:
        cost = (
            f'<p class="cost"><strong data-pointer="{pointer}/saved_bytes" data-value="{finding.saved_bytes}">'
            f"{finding.saved_bytes / GB:.2f} GB</strong> <span>less at the peak</span></p>"
        )
    else:
        cost = _cost_in_time(finding, pointer)
    return (
        f"<li><h3>{clean(finding.title)}</h3>{cost}"
        f'<p class="advice">{with_code(finding.advice)}</p><ul class="evidence">{evidence}</ul>'
        f'<p class="faint">{between}{clean(str(finding.basis))}, '
        f"{ranks} · <code>docs/findings/{clean(finding.id)}.md</code></p></li>"
    )


def _cost_in_time(finding: Finding, pointer: str) -> str:
    share = percent(finding.share_of_step) or 0.0
    return (
        f'<p class="cost"><strong data-pointer="{pointer}/cost_us" data-value="{finding.cost_us!r}">'
        f"{format_seconds(finding.cost_us / US_PER_S)}</strong> "
        f'<span data-pointer="{pointer}/share_of_step" data-value="{finding.share_of_step!r}">{share:.1f} % of a step'
        "</span>"
        '<svg class="share" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="100" height="4"/>'
        f'<rect class="fill-communication" width="{min(share, 100):.2f}" height="4"/></svg></p>'
    )
