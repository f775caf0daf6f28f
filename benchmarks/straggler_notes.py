"""The words of the report that `python -m benchmarks.stragglers` writes."""

from __future__ import annotations

#: On GPUs, where another process uses the late rank's GPU for a share of the time.
SHARES = (25, 50, 100)
#: Percentages of a GPU that the late rank has, where two ranks share one and the other has 50 %.
PARTS = (25, 33, 40)
#: What was put in, by cause.
FAULTS = {
    "clean": "nothing",
    "garbage": "a full collection of garbage",
    "data": "a sample takes 30 ms to load (240 ms in five steps)",
    "contention": "another process on its processor",
    "faults": "128 MiB of new memory",
    "work": "sequences of twice the length",
    "microbatches": "two micro-batches instead of one",
    "sleep": "the host sleeps 30 ms (240 ms in five steps)",
    "network": "an exchange takes 240 ms longer, on all ranks, in five steps",
    "save": "a checkpoint after every sixth step, on this rank alone",
    **{f"slow{part}": f"{part} % of the GPU, and 50 % for the other rank" for part in PARTS},
    **{f"device{share}": f"another process on its GPU {share} % of the time" for share in SHARES},
}

#: The same where both ranks have a part of one GPU.
FAULTS_IN_PARTS = {
    **{f"device{share}": f"other work of its process on its part {share} % of the time" for share in SHARES},
}

#: How runs of two ranks on one GPU are made.
IN_PARTS = (
    "## On halves of one GPU",
    "",
    "One H200, of which each rank has half of the multiprocessors by NVIDIA's Multi-Process Service (`SHARE=1`,",
    "`tests/scripts/shared_gpu.py`), with NCCL (torch 2.11) over sockets of the loopback, as between two hosts:",
    "NCCL takes each rank for a host of its own. 64 MB take 19 ms, so that the GPT is smaller: 7 million",
    "parameters, or 54 million where devices are compared, up to 110 steps. A slow device is one with fewer",
    "multiprocessors: the same kernels take longer. Another process cannot be put onto one half alone, because a",
    "part is a cap and not a place; instead a thread of the late rank's own process uses its half, in kernels of",
    "its own. NVML shows both ranks on one GPU at one clock.",
)

#: What was wrong in each run, and was mended after its records had been seen.
MENDED = {
    "first": (
        "DeepSpeed's forward passes (up to ZeRO-2) were not compared, although they hold no exchange. A device that",
        "waits for a sleeping host takes longer for the optimizer, which was read as a slow device. On GPUs another",
        "thread launches backward passes, and the thread that trains waits for it, which was read as sleep.",
    ),
    "second": (
        "Rules of before the first run would have named a device in `fsdp2.clean` as well: the optimizer took 5.1 ms",
        "on one rank, which waited for its host, and 0.8 ms on the other. DeepSpeed's device waits for its host in",
        "every step: forward passes of 7.06 to 7.14 ms, beside launches of 5.5 to 8.3 ms, were left out with those",
        "that follow the launches. For four more trainings there was no time.",
    ),
    "third": (
        "In the first two runs the other process did not wait for its own GPU, and used it all the time, whatever its",
        "share. From this one on it has its share, the trainings beside it have batches of four times the size, and no",
        "copy makes a host wait for its device. In `ddp.sleep` the thread that trains was then blocked for 37 ms of",
        "each step on both ranks: on one asleep, on the other far ahead of its device, until its backward pass could",
        "be launched. In `fsdp2.device50` the optimizer was compared, 0.8 ms of a step of 46 ms, and the other process",
        "came into one of ten. Since then probes hold the processor time of all threads, and the forward passes of",
        "sharded modules. These records hold neither.",
    ),
    "fourth": (
        "Rank 0 is the late one here. The rules are those that the third run led to, and no rule was changed after it.",
        "The wrong answer is the rank that waits for the slow one: it spends that time in the driver, in the operating",
        "system, which costs more than what the optimizer shows of the slow device, and that one was named second.",
        "Since then such time counts with page faults only, or where the device waits for its host. In `ddp.clean` a",
        "thread was blocked for a third longer than the other in its backward passes, more than was allowed of records",
        "without the processor time of all threads: three quarters are now.",
    ),
    "fifth": (
        "Causes on the host, which are the same rules on processors, and more micro-batches. Rank 1 is the late one.",
        "In `pipeline.device100` the other process came into the optimizer in one of six timed steps, 0.8 ms of a step",
        "of 77 ms, as in the third run. Its forward and backward passes took 63 ms, those of the other stage 28 ms:",
        "they are timed in every step of a pipeline, and are compared since then.",
    ),
    "sixth": (
        "Rank 0 is the late one. In `fsdp2.clean.large` sharded modules took 7 % longer on the rank whose collectives",
        "waited for the other one beside them: they are compared from 15 % on since then. Of `fsdp2.microbatches` only",
        "modules of the first micro-batch were compared. The passes of stages were compared by more parameters than",
        "they are multiplied with, and from half as long again: a GPU of which another process takes a quarter or half",
        "is no slower than that.",
    ),
    "seventh": (
        "Rank 1 is the late one. The rules are those that the sixth run led to. In `fsdp2.clean.large` sharded modules",
        "took 15 % longer beside collectives that waited, exactly the limit, which is a quarter since then. A process",
        "that competes for a processor in five steps holds up the thread that launches backward passes as well, and",
        "the one that trains is blocked meanwhile, which was read as sleep. Since then only what it is blocked longer",
        "than its own code is longer counts as sleep: the answer to `fsdp2.contention.rare` are the five steps that",
        "were disturbed. In `ddp.contention.rare` steps of 11 ms are shorter than what a scheduler gives to",
        "each process in turn; the rank is right, and the cause is not. DeepSpeed's device waits for its host in each",
        "step; what its passes take beyond these waits and the other rank's passes together is certain, and counts",
        "since then. Beside a quarter of a GPU's time a stage's passes take 7 % longer by parameter, less than stages",
        "differ by: since then a step's passes are compared with the fastest of them, which these records do not have.",
    ),
    "eighth": (
        "Rank 1 is the late one. The rules are those that the seventh run led to, with the run queue of the thread",
        "that launches backward passes, and without waits for a late rank: contention in five steps has its cause.",
        "In `deepspeed.device50` the device waits for launches in each step, equally long on both ranks, for a third",
        "of a forward pass: since then such passes are compared as they are. In `fsdp2.device50` nobody was late:",
        "its steps took 62.2 ms, those of its clean twin 63.1 ms, because each of many short kernels had to wait for",
        "the interpreter. Since then a burst is one kernel. In `deepspeed.slow33` the gradients were not finite, and",
        "every update was skipped: such steps are not timed on the device. Its rate of learning is a tenth since",
        "then.",
    ),
    "ninth": (
        "Rank 0 is the late one. The rules are those that the eighth run led to, and no rule was changed after it.",
        "Other work of a rank's own process is no good stand-in for another process: with it steps of",
        "`pipeline.device50` took 66.7 ms, those of its clean twin 68.2, and those of `ddp.device25` 46.9, where",
        "nobody is late 44.8; in `fsdp2.device50` they took 68.7 ms instead of 62.3, and the modules and the",
        "optimizer equally long on both ranks, because that work came between them, while the rank waited for",
        "collectives. In `deepspeed.slow33` every update was skipped again: gradients are not finite on a third of",
        "this GPU, whatever the rate of learning; later runs let DeepSpeed not look. In `pipeline.contention.rare`",
        "threads of NCCL, which never sleep, used rank 1's processor as well: since then they are kept from it.",
    ),
    "tenth": (
        "Rank 1 is the late one. No rule was changed between the ninth run and this one, nor since: it is the answer",
        "to trainings that no rule has seen. Devices are slow by fewer multiprocessors alone, which does slow them,",
        "and the threads of NCCL have no part of the processors that a process competes for. In",
        "`deepspeed.contention.rare` the two threads of each rank, which share a processor, have none for 7 ms of a",
        "step of 26 ms on both ranks: what the process took in five steps is less than a quarter of a step.",
        "`fsdp2.slow25` was cut off after 66 of 70 steps, when the time on the machine was over.",
    ),
}
