"""What is in an ONNX file, read before ONNX Runtime makes anything of it.

The file is a message of protocol buffers: fields, of which each has a number and a value, and some values are messages.
A network has the fields and the operations that are listed here.  Others may run for ever (loops, functions that call
each other), draw random numbers, or mean something that is not known here.
"""

from collections.abc import Iterator

from mpi_rollout.policies.untrusted import damaged, needs_trust, reading

# By message: the fields that are plain, and those that are messages.
_FIELDS: dict[str, tuple[set[int], dict[int, str]]] = {
    "model": ({1, 2, 3, 4, 5, 6, 8, 14}, {7: "graph"}),
    "graph": ({2, 10, 11, 12, 13, 14, 16}, {1: "node", 5: "tensor"}),
    "node": ({1, 2, 3, 4, 6, 7, 9}, {5: "attribute"}),
    "attribute": ({1, 2, 3, 4, 7, 8, 9, 13, 20}, {5: "tensor", 6: "graph", 10: "tensor"}),
    "tensor": ({1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 14, 16}, {13: "entry"}),
    "entry": ({1, 2}, {}),
}
_FIXED_BYTES = {1: 8, 5: 4}  # The sizes of numbers of a fixed size, by their form.
_OPERATION, _DOMAIN, _KEY, _VALUE = 4, 7, 1, 2  # Fields of a node, and of an entry.
_NAMES = (
    "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BitwiseAnd "
    "BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Compress Concat Constant ConstantOfShape Conv "
    "ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Det Div Dropout DynamicQuantizeLinear "
    "Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm "
    "GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish "
    "Hardmax Identity If InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log "
    "LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool Mean MeanVarianceNormalization Min Mish Mod "
    "Mul Neg NonZero Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN Range "
    "Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare Relu Reshape Resize RotaryEmbedding Round ScatterElements ScatterND Selu Shape Shrink Sigmoid "
    "Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh "
    "ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor"
)
_OPERATIONS = set(_NAMES.split())


def check_network(content: bytes) -> None:
    """Check that a file has a network, and nothing else."""
    for kind, fields in _read(content, is_strict=True):
        if kind == "node":
            name, domain = (_text(fields.get(field)) for field in (_OPERATION, _DOMAIN))
            if domain not in ("", "ai.onnx") or name not in _OPERATIONS:
                whole = f"{domain}.{name}" if domain else name
                raise needs_trust(f"has the operation {whole[:80]!r}, which is not known to be harmless")


def weight_files(content: bytes) -> list[str]:
    """Return the names of the files in which an ONNX file has its weights, relative to its folder, if it has any."""
    entries = [fields for kind, fields in _read(content, is_strict=False) if kind == "entry"]
    return sorted({_text(fields.get(_VALUE)) for fields in entries if _text(fields.get(_KEY)) == "location"})


@reading()
def _read(content: bytes, is_strict: bool) -> list[tuple[str, dict[int, memoryview]]]:
    return list(_messages("model", memoryview(content), is_strict))


def _messages(kind: str, content: memoryview, is_strict: bool) -> Iterator[tuple[str, dict[int, memoryview]]]:
    """Yield all messages in a message, and it, each with the last value of each field of texts or bytes."""
    plain, inner = _FIELDS[kind]
    values: dict[int, memoryview] = {}
    for field, value in _fields(content):
        if field in inner and value is not None:
            yield from _messages(inner[field], value, is_strict)
        elif field not in plain and is_strict:
            raise needs_trust(f"has a part that no plain network has (field {field} of its {kind})")
        elif value is not None:
            values[field] = value
    yield kind, values


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yield the number of each field of a message, and its value if it is text, bytes or a message."""
    place = 0
    while place < len(content):
        tag, start = _number(content, place)
        form, value, place = tag & 7, None, start
        if form == 0:
            _, place = _number(content, start)
        elif form in _FIXED_BYTES:
            place += _FIXED_BYTES[form]
        elif form == 2:
            size, start = _number(content, start)
            place = start + size
            value = content[start:place]
        if (place == start and form != 2) or place > len(content):
            raise damaged("it is no message of protocol buffers")
        yield tag >> 3, value


def _number(content: memoryview, place: int) -> tuple[int, int]:
    """Return the number at a place, 7 bits a byte, and the place after it."""
    number = 0
    for index, byte in enumerate(content[place : place + 10]):
        number |= (byte & 127) << 7 * index
        if byte < 128:
            return number, place + index + 1
    raise damaged("it is no message of protocol buffers")


def _text(value: memoryview | None) -> str:
    return "" if value is None else bytes(value).decode(errors="replace")
