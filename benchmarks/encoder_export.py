"""An encoder of mDeBERTa-v3-base's shape, with random weights, in every form that is measured.

    python benchmarks/encoder_export.py /tmp/encoder

Needs `onnx`, `onnxscript`, `onnxruntime`, `openvino` and `nncf` beside the project's packages, in
an environment of their own. int8 is dynamic in ONNX Runtime (weights and activations), and of the
weights alone in OpenVINO.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModel, DebertaV2Config, DebertaV2Model, PreTrainedModel

CONFIG = DebertaV2Config(
    vocab_size=251_000,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=512,
    relative_attention=True,
    position_buckets=256,
    pos_att_type=["p2c", "c2p"],
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
    type_vocab_size=0,
)


class Hidden(torch.nn.Module):
    """The model as a function of two tensors."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The last hidden states."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def main() -> None:
    """Write every form into one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--model", help="a folder with a model to export, instead of random weights"
    )
    given = parser.parse_args()
    torch.manual_seed(0)
    model = AutoModel.from_pretrained(given.model) if given.model else DebertaV2Model(CONFIG)
    export(model.eval(), given.folder)


def export(model: PreTrainedModel, folder: Path) -> None:
    """As safetensors, ONNX in float32 and int8, and OpenVINO in int8."""
    model.save_pretrained(folder)
    ids = torch.randint(5, model.config.vocab_size, (2, 64))
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", min=2, max=512)
    torch.onnx.export(
        Hidden(model),
        (ids, torch.ones_like(ids)),
        folder / "float32.onnx",
        input_names=["input_ids", "attention_mask"],
        output_names=["hidden"],
        dynamic_shapes={name: {0: batch, 1: tokens} for name in ("input_ids", "attention_mask")},
        dynamo=True,
        external_data=True,
    )
    _int8(folder)


def _int8(folder: Path) -> None:
    import nncf
    import openvino
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        folder / "float32.onnx",
        folder / "int8.onnx",
        per_channel=True,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
        use_external_data_format=True,
    )
    model = openvino.Core().read_model(folder / "float32.onnx")
    mode = nncf.CompressWeightsMode.INT8_SYM
    openvino.save_model(nncf.compress_weights(model, mode=mode), folder / "int8.xml")


if __name__ == "__main__":
    main()
