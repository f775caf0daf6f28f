"""Asks HTA for what it knows of a folder of traces; run by HTA's own environment."""

import json
import sys
import warnings

from hta.trace_analysis import TraceAnalysis

warnings.simplefilter("ignore")
traces = TraceAnalysis(trace_dir=sys.argv[1])
answers = {
    "ranks": sorted(traces.t.traces),
    "overlap": traces.get_comm_comp_overlap(visualize=False).to_dict("records"),
    "temporal": traces.get_temporal_breakdown(visualize=False).to_dict("records"),
    "kernels": traces.get_gpu_kernel_breakdown(visualize=False)[0].to_dict("records"),
    "idle": traces.get_idle_time_breakdown(ranks=[0], visualize=False)[0].to_dict("records"),
}
sys.stdout.write(f"ANSWERS {json.dumps(answers, default=float)}\n")
