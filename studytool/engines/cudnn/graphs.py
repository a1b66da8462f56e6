"""From a case to cuDNN's attention graph, spelled in the frontend's public calls (nvidia-cudnn-frontend >= 1.28).

Tensors are logical (B, H, S, D) in BSHD memory, the scale is always given, and what a case asks for that has no
spelling here is a PlanError.
"""

from typing import Any, NamedTuple

import cudnn
import msgspec

from studytool.engines.base import PlanError
from studytool.model import Case, Status

IO_TYPES = {"bf16": cudnn.data_type.BFLOAT16, "f16": cudnn.data_type.HALF}
PAGE = 128
"""Keys in a page of a paged K or V."""

Shape = tuple[int, ...]


class Port(NamedTuple):
    """A tensor of a graph that the caller binds: its shape and strides in elements, its dtype as a word.

    Words are `io` (the case's own), `f32` and `i32`.
    """

    tensor: Any
    shape: Shape
    stride: Shape
    dtype: str


class Graph(NamedTuple):
    """A validated graph, with the tensors that are bound by name."""

    graph: Any
    inputs: dict[str, Port]
    outputs: dict[str, Port]


def build(case: Case, **options: Any) -> Graph:
    """Return the case's graph, validated. `options` go to `cudnn.pygraph`, such as `handle`.

    PlanError DECLINED for a feature without a spelling, REFUSED for a graph that the library calls invalid.
    """
    if missing := _unspelled(case):
        raise PlanError(Status.DECLINED, f"{missing} is not built for cuDNN here")
    graph = cudnn.pygraph(
        io_data_type=IO_TYPES[case.dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        **options,
    )
    maker = _Maker(graph, case)
    made = maker.backward() if case.op == "sdpa_bwd" else maker.forward()
    try:
        graph.validate()
        graph.build_operation_graph()
    except (cudnn.cudnnGraphNotSupportedError, ValueError) as error:
        raise PlanError(Status.REFUSED, str(error)) from None
    return made


def forward_of(case: Case) -> Case:
    """Return the forward whose O and Stats a backward needs."""
    return msgspec.structs.replace(case, op="sdpa_fwd", stats=1, deterministic=0)


def plan(graph: Any) -> None:
    """Rank the plans of a validated graph; PlanError DECLINED where neither side has one."""
    try:
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    except cudnn.cudnnGraphNotSupportedError as error:
        raise PlanError(Status.DECLINED, str(error)) from None


def lengths(case: Case, size: int) -> list[int]:
    """Return the sequence lengths of a case's batches: all `size`, or from it down to half where they are padded."""
    if not (case.padding or case.layout == "thd"):
        return [size] * case.b
    return [max(1, size * (2 * case.b - batch) // (2 * case.b)) for batch in range(case.b)]


def _unspelled(case: Case) -> str:
    if case.dtype not in IO_TYPES:
        return f"dtype {case.dtype} (its scale factors are no fields of a case)"
    if case.op == "sdpa_fwd_bwd":
        return "op sdpa_fwd_bwd (two graphs)"
    if case.layout in {"strided", "broadcast"} or (case.layout == "paged" and case.op == "sdpa_bwd"):
        return f"layout {case.layout} of {case.op}"
    if case.bias != "none":
        return f"bias {case.bias}"
    if case.dropout_pct:
        return "dropout"
    if case.deterministic and case.op == "sdpa_fwd":
        return "a deterministic forward"
    if case.stats and case.op == "sdpa_bwd":
        return "stats of a backward"
    return ""


class _Maker:
    """Makes the tensors and the node of one graph."""

    def __init__(self, graph: Any, case: Case) -> None:
        self._graph, self._case = graph, case
        self._inputs: dict[str, Port] = {}
        self._outputs: dict[str, Port] = {}

    def forward(self) -> Graph:
        """Return the forward: O, and Stats where the case asks for them."""
        case = self._case
        paged = case.layout == "paged"
        q = self._sequence("Q", self._bshd(case.h_q, case.s_q, case.d_qk))
        k = self._pool("K", case.d_qk) if paged else self._sequence("K", self._bshd(case.h_kv, case.s_kv, case.d_qk))
        v = self._pool("V", case.d_v) if paged else self._sequence("V", self._bshd(case.h_kv, case.s_kv, case.d_v))
        tables: dict[str, Any] = {}
        if paged:
            pages = -(-case.s_kv // PAGE)
            shape = (case.b, 1, pages, 1)
            tables = {
                f"paged_attention_{name}_table": self._bind(f"{name}_table", shape, (pages, pages, 1, 1), "i32")
                for name in ("k", "v")
            } | {"paged_attention_max_seq_len_kv": case.s_kv}
        out, stats = self._graph.sdpa(
            q=q, k=k, v=v, generate_stats=bool(case.stats), **self._mask(), **self._lengths(), **tables, **self._sink()
        )
        self._output("O", out, self._bshd(case.h_q, case.s_q, case.d_v))
        if case.stats:
            self._output("Stats", stats, self._stats(), "f32")
        return Graph(self._graph, self._inputs, self._outputs)

    def backward(self) -> Graph:
        """Return the backward: dQ, dK, dV, and the sink's gradient where there is a sink."""
        case = self._case
        shapes = {
            "Q": self._bshd(case.h_q, case.s_q, case.d_qk),
            "K": self._bshd(case.h_kv, case.s_kv, case.d_qk),
            "V": self._bshd(case.h_kv, case.s_kv, case.d_v),
            "O": self._bshd(case.h_q, case.s_q, case.d_v),
            "dO": self._bshd(case.h_q, case.s_q, case.d_v),
        }
        q, k, v, o, grad = (self._sequence(name, shape) for name, shape in shapes.items())
        stats = self._sequence("Stats", self._stats(), "f32")
        words = {**self._mask(), **self._lengths(), **self._sink()}
        if case.sink:
            words["dSink_token"] = self._declared("dSink", *self._sink_shape(), "f32")
        if case.deterministic:
            words["use_deterministic_algorithm"] = True
        if case.layout == "thd":
            totals = {side: sum(lengths(case, size)) for side, size in (("q", case.s_q), ("kv", case.s_kv))}
            words |= {f"max_total_seq_len_{side}": total for side, total in totals.items()}
        made = self._graph.sdpa_backward(q=q, k=k, v=v, o=o, dO=grad, stats=stats, **words)
        for name, tensor in zip(("Q", "K", "V"), made, strict=True):
            self._output(f"d{name}", tensor, shapes[name])
        if case.sink:
            words["dSink_token"].set_output(True)
            self._outputs["dSink"] = Port(words["dSink_token"], *self._sink_shape(), "f32")
        return Graph(self._graph, self._inputs, self._outputs)

    def _mask(self) -> dict[str, Any]:
        case = self._case
        words: dict[str, Any] = {"attn_scale": case.d_qk**-0.5}
        if case.mask != "none":
            corner = "TOP_LEFT" if case.mask == "tl" else "BOTTOM_RIGHT"
            words |= {
                "diagonal_alignment": getattr(cudnn.diagonal_alignment, corner),
                "diagonal_band_right_bound": 0,
            }
        if case.window:
            words["diagonal_band_left_bound"] = case.window
        return words

    def _lengths(self) -> dict[str, Any]:
        if not (self._case.padding or self._case.layout in {"thd", "paged"}):
            return {}
        shape = (self._case.b, 1, 1, 1)
        bound = {f"seq_len_{side}": self._bind(f"seq_len_{side}", shape, (1, 1, 1, 1), "i32") for side in ("q", "kv")}
        return {"use_padding_mask": True, **bound}

    def _sink(self) -> dict[str, Any]:
        return {"sink_token": self._bind("Sink", *self._sink_shape(), "f32")} if self._case.sink else {}

    def _sink_shape(self) -> tuple[Shape, Shape]:
        return (1, self._case.h_q, 1, 1), (self._case.h_q, 1, 1, 1)

    def _bshd(self, heads: int, size: int, dim: int) -> tuple[Shape, Shape]:
        return (self._case.b, heads, size, dim), (size * heads * dim, dim, heads * dim, 1)

    def _stats(self) -> tuple[Shape, Shape]:
        case = self._case
        token_major = (case.s_q * case.h_q, 1, case.h_q, 1)
        head_major = (case.s_q * case.h_q, case.s_q, 1, 1)
        return (case.b, case.h_q, case.s_q, 1), token_major if case.layout == "thd" else head_major

    def _pool(self, name: str, dim: int) -> Any:
        case = self._case
        pages = case.b * -(-case.s_kv // PAGE)
        return self._bind(name, (pages, case.h_kv, PAGE, dim), (case.h_kv * PAGE * dim, PAGE * dim, dim, 1), "io")

    def _sequence(self, name: str, shape: tuple[Shape, Shape], dtype: str = "io") -> Any:
        """Return an input that has a place for every position of a sequence: packed in layout thd."""
        tensor = self._bind(name, *shape, dtype)
        self._pack(name, tensor)
        return tensor

    def _pack(self, name: str, tensor: Any) -> None:
        if self._case.layout == "thd":
            tensor.set_ragged_offset(self._bind(f"offsets_{name}", (self._case.b + 1, 1, 1, 1), (1, 1, 1, 1), "i32"))

    def _bind(self, name: str, shape: Shape, stride: Shape, dtype: str) -> Any:
        tensor = self._declared(name, shape, stride, dtype)
        self._inputs[name] = Port(tensor, shape, stride, dtype)
        return tensor

    def _declared(self, name: str, shape: Shape, stride: Shape, dtype: str) -> Any:
        return self._graph.tensor(name=name, dim=[*shape], stride=[*stride], data_type=self._type(dtype))

    def _output(self, name: str, tensor: Any, shape: tuple[Shape, Shape], dtype: str = "io") -> None:
        tensor.set_output(True).set_dim([*shape[0]]).set_stride([*shape[1]]).set_data_type(self._type(dtype))
        self._pack(name, tensor)
        self._outputs[name] = Port(tensor, *shape, dtype)

    def _type(self, dtype: str) -> Any:
        known = {"f32": cudnn.data_type.FLOAT, "i32": cudnn.data_type.INT32, "io": IO_TYPES[self._case.dtype]}
        return known[dtype]
