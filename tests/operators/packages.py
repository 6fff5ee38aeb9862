"""Our operators compiled by Inductor: here, and as a package that C++ runs.

    python packages.py LIBRARY PROGRAM

LIBRARY is libtorch_attention.so, PROGRAM run_package.cpp. Inductor needs a C++
compiler; without one the test is left out, but for CI=true.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

LEFT_OUT = 77

library, program = sys.argv[1:]
compiler = os.environ.get("CXX", "g++")
if shutil.which(compiler) is None:
    print(f"left out: Inductor needs a C++ compiler, and there is no {compiler}")
    sys.exit(1 if os.environ.get("CI") == "true" else LEFT_OUT)

folder = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name

import torch  # noqa: E402

torch.ops.load_library(library)
torch.manual_seed(1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        positions = torch.arange(x.shape[1], device=x.device)
        q = torch.ops.torch_attention.rotary(q, positions)
        y = torch.ops.torch_attention.attention(q, k, v, causal=True, window=3)
        return y.transpose(1, 2).flatten(2)


def gradients(function, model, x):
    model.zero_grad()
    y = function(x)
    y.sin().sum().backward()
    return y, model.qkv.weight.grad.clone()


model = Model()
x = torch.randn(2, 6, 32)
found = gradients(torch.compile(model, fullgraph=True), model, x)
torch.testing.assert_close(found, gradients(model, model, x), rtol=1e-5,
                           atol=1e-5)
print("Inductor agrees")

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
    # LibTorch 2.6 calls an operator of a package without its tensors.
    print("packages are left out: they need LibTorch 2.8")
    sys.exit()

model.eval()
T = torch.export.Dim("T", min=2, max=64)
exported = torch.export.export(model, (x,), dynamic_shapes={"x": {1: T}})
package = pathlib.Path(folder.name) / "model.pt2"
torch._inductor.aoti_compile_and_package(exported, package_path=str(package))
for tokens in (6, 11):
    x = torch.randn(2, tokens, 32)
    data = pathlib.Path(folder.name) / "data.pt"
    torch.save({"x": x, "y": model(x).detach()}, data)
    subprocess.run([program, package, data], check=True)
print("a C++ program runs the package")
