"""Eight steps that save weights quantized by torchao: int8 and float8 by torch.save, int8 by transformers."""

import copy
import sys
from pathlib import Path

import torch
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, TorchAoConfig

folder = Path(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128, bias=False), torch.nn.ReLU(), torch.nn.Linear(128, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
config = LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=96, tie_word_embeddings=False)
LlamaForCausalLM(config).bfloat16().save_pretrained(folder.parent / "plain")
quantized = AutoModelForCausalLM.from_pretrained(
    folder.parent / "plain", dtype=torch.bfloat16, quantization_config=TorchAoConfig(Int8WeightOnlyConfig(version=2))
)
for step in range(1, 9):
    loss = model(torch.randn(4, 64)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for at, name, how in ((2, "int8", Int8WeightOnlyConfig(version=2)), (4, "float8", Float8WeightOnlyConfig())):
        if step == at:
            saved = copy.deepcopy(model).bfloat16()
            quantize_(saved, how)
            torch.save(saved.state_dict(), folder / f"{name}.pt")
    if step == 6:
        quantized.save_pretrained(folder / "pretrained")
print(f"loss {loss.item():.17g}")
