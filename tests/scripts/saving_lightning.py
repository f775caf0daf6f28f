"""Lightning: 10 updates of 4 x 16 tokens, a checkpoint after every third, written beside training if so asked."""

import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO


class Model(lightning.LightningModule):
    """An embedding and an output layer."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))

    def training_step(self, batch, _index):
        return torch.nn.functional.cross_entropy(self.layers(batch).flatten(0, 1), batch.flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


folder, devices, mode = sys.argv[1:]
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(devices),
    strategy="ddp" if devices != "1" else "auto",
    max_steps=10,
    logger=False,
    callbacks=[ModelCheckpoint(folder, every_n_train_steps=3, save_top_k=-1)],
    plugins=[AsyncCheckpointIO()] if mode == "async" else [],
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randint(64, (400, 16)), batch_size=4))
