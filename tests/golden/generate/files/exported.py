"""Archives of torch.export: of this release, of 2.8, and as until 2.7."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch._export.serde.schema import SCHEMA_VERSION
from torch._export.serde.serialize import serialize

from ..golden_set import Unavailable
from ..script_class import of_a_script
from .tensors import ramp
from .weight_file import Content, WeightFile


def weight_files() -> Iterator[WeightFile]:
    for name, make in (
        ("exported.pt2", exported),
        ("exported-2.8.pt2", exported_by_2_8),
        ("exported-until-2.7.pt2", exported_until_2_7),
    ):
        yield name, partial(with_tensors, make)


def with_tensors(make: Callable[[], bytes]) -> Content:
    return make(), Exported().state_dict()


@of_a_script
class Exported(nn.Module):
    """All places where an exported program keeps a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.linear.weight.data = ramp(3, 4)
        self.linear.bias.data = ramp(3, start=2.0)
        self.tied = nn.Linear(4, 3, bias=False)
        self.tied.weight = self.linear.weight
        self.register_buffer("mask", torch.triu(torch.ones(4, 4), diagonal=1))
        self.register_buffer("cache", ramp(4), persistent=False)
        self.register_buffer("transposed", ramp(3, 4).t())
        self.register_buffer("brief", ramp(4, 4).bfloat16())
        self.register_buffer("count", torch.tensor(7))
        self.constant = ramp(4, start=3.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mask @ x + self.brief.float()
        x = x + self.cache + self.constant + self.transposed.sum()
        return self.linear(x) + self.tied(x) * self.count


def exported_program() -> torch.export.ExportedProgram:
    program = torch.export.export(Exported().eval(), (torch.ones(4, 4),))
    for module in program.graph_module.modules():
        for node in module.graph.nodes:  # file names of this machine
            for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
                node.meta.pop(key, None)
    return program


def archive_writer() -> type:
    """Returns the writer of archives since 2.8; before, there was none."""
    try:
        from torch.export.pt2_archive._package import PT2ArchiveWriter
    except ImportError as error:
        raise Unavailable(
            f"torch {torch.__version__} writes no archives as since 2.8"
        ) from error
    return PT2ArchiveWriter


def exported() -> bytes:
    archive_writer()  # without it torch.export.save writes the older format
    buffer = io.BytesIO()
    torch.export.save(exported_program(), buffer)
    return buffer.getvalue()


def exported_by_2_8() -> bytes:
    """Returns an archive of 2.8, with the weights as one record."""
    writer = archive_writer()
    artifact = serialize(exported_program())
    buffer = io.BytesIO()
    with writer(buffer) as archive:
        archive.write_bytes("data/weights/model.pt", artifact.state_dict)
        archive.write_bytes("data/constants/model.pt", artifact.constants)
        archive.write_bytes(
            "data/sample_inputs/model.pt", artifact.example_inputs
        )
        archive.write_bytes("models/model.json", artifact.exported_program)
    return buffer.getvalue()


def exported_until_2_7() -> bytes:
    """Returns an archive as torch.export.save wrote it until 2.7."""
    artifact = serialize(exported_program())
    records = {
        "serialized_exported_program.json": artifact.exported_program,
        "serialized_state_dict.pt": artifact.state_dict,
        "serialized_constants.pt": artifact.constants,
        "serialized_example_inputs.pt": artifact.example_inputs,
        "version": ".".join(map(str, SCHEMA_VERSION)),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in records.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()
