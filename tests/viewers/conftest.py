"""Traces as perfscope leaves them, of a real run on four H200."""

from __future__ import annotations

from tests.conftest import ROOT

H200 = ROOT / "fixtures" / "runs" / "h200_zero1" / "traces"
