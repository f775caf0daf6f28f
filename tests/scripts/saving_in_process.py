"""Seven steps; another process of torch writes a checkpoint of the third, and the sixth waits for it."""

import sys
import time

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(1, 8):
        loss = model(torch.randn(4, 64)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 3:
            written = checkpoint.async_save(
                {"model": model.state_dict()},
                checkpoint_id=f"{sys.argv[1]}/step-3",
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )
        if step == 6:
            written.result()
            time.sleep(0.05)  # its callbacks run in another thread
    torch.distributed.destroy_process_group()
