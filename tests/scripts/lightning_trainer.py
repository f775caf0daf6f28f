"""Lightning: 10 updates of 2 accumulated micro-batches of 4 x 16 tokens, with a validation between them."""

import sys

import lightning
import torch


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


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(sys.argv[1]),
    strategy="ddp" if sys.argv[1] != "1" else "auto",
    max_steps=10,
    accumulate_grad_batches=2,
    val_check_interval=10,
    limit_val_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), loader(), loader())
