"""Lightning: 10 updates of 2 accumulated micro-batches of 4 x 16 tokens, with a validation between them.

``lightning_trainer.py FOLDER DEVICES MODE`` saves a checkpoint after every third update, unless the mode is ``none``;
it is written during training where the mode is ``async``.
"""

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

    def validation_step(self, batch, index):
        self.training_step(batch, index)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def loader():
    return torch.utils.data.DataLoader(torch.randint(64, (400, 16)), batch_size=4)


folder, devices, mode = sys.argv[1:]
saving = ModelCheckpoint(folder, every_n_train_steps=3, save_top_k=-1)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(devices),
    strategy="ddp" if devices != "1" else "auto",
    max_steps=10,
    accumulate_grad_batches=2,
    val_check_interval=10,
    limit_val_batches=2,
    logger=False,
    enable_checkpointing=mode != "none",
    callbacks=[saving] if mode != "none" else [],
    plugins=[AsyncCheckpointIO()] if mode == "async" else [],
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), loader(), loader())
