#!/usr/bin/env python3
"""Golden values for single ops: runs PyTorch, NumPy and mpmath over a grid of ops, dtypes, shapes and layouts.

    pip install torch numpy        (mpmath comes with torch)
    python3 make_ops.py            writes ops.txt beside this script; the same PyTorch gives the same file

Format of ops.txt: one record a line, words separated by one space; '#' starts a comment line.

    data NAME DTYPE COUNT HEX      COUNT elements, each as big-endian hex digits of its bits (bool, u8: 2 digits, f16 and
                                   bf16: 4, i32 and f32: 8, i64 and f64: 16), without separators
    case OP ID                     starts a case of the public op trace_OP; ID is unique in the file
    in DTYPE DIMS LAYOUT REF       next operand. DIMS: extents joined by ',', or '-' for a 0-d tensor. REF: '@NAME' (the
                                   first elements of a data record) or HEX or '-' (no elements); in row-major order
                                   or %MUL,MOD,SUB: element i is (i*MUL mod MOD) - SUB
    in none                        next operand is an absent optional one
    attr NAME KIND VALUE...        KIND i (integers), f (doubles as C hex floats, nan, inf, -inf), s (one word: a dtype)
    out DTYPE DIMS REF             next result; an op whose name ends in '_' has its first operand's new content here
    tol WORD...                    ends the case. 'exact': bits equal (any NaN equals any NaN); 'value': equal as numbers
                                   (zeros of either sign); else 'ulp N', 'rel R', 'abs A' (an element passes if it is
                                   within N units in the last place, or within A + R*|expected|), 'sz' (zeros' signs count)
    LAYOUT  c contiguous; t stored with its dims in reverse order; s every second element of a buffer twice as long in
            its last dim; e the first dim has stride 0 (all its slices are equal); u contiguous, but one element into
            its buffer (unaligned)

Rules behind the values. Scalars ('scalar', 'min', 'max', ... attributes) are weakly typed as in PyTorch and are rounded
to the op's dtype before use. f16 and bf16 compute in f32 and round once. Pointwise arithmetic is exact. Transcendental
functions are evaluated with 60 digits and rounded; 'ulp' is what the library may be off by. Reductions, norms and
contractions are evaluated in float64; 'abs' and 'rel' come from the usual forward error bounds (depth of the sum times
the unit roundoff times the sum of magnitudes) with the compute dtype's roundoff, and f16 and bf16 have one ulp more.
"""
import itertools, math, os, struct, warnings

import mpmath
import numpy as np
import torch
import torch.nn.functional as F

warnings.filterwarnings("ignore")
mpmath.mp.dps = 60
torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
DT = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "u8": torch.uint8,
      "i32": torch.int32, "i64": torch.int64, "bool": torch.bool}
NAME = {v: k for k, v in DT.items()}
FLOATS, LOW, INTS = ("f32", "f64", "f16", "bf16"), ("f16", "bf16"), ("i32", "i64", "u8")
EPS = {"f32": 2.0 ** -24, "f64": 2.0 ** -53, "f16": 2.0 ** -24, "bf16": 2.0 ** -24}  # of the dtype computed in
BITS = {"f64": torch.int64, "f32": torch.int32, "f16": torch.int16, "bf16": torch.int16}
rng = np.random.default_rng(20240229)
lines, pool, ids = [], {}, {}


# ---- writing -------------------------------------------------------------------------------------------------------
def hexes(t):
    name, t = NAME[t.dtype], t.detach().contiguous().reshape(-1)
    if name in BITS:
        t = t.view(BITS[name])
    a = t.numpy()
    return a.astype(">i8" if a.dtype == np.int64 else a.dtype.newbyteorder(">")).tobytes().hex()


def dims(t):
    return ",".join(map(str, t.shape)) or "-"


def ref(t):
    """The data of a tensor: through the pool when long (a prefix of an equal longer record counts)."""
    h = hexes(t)
    if not h:
        return "-"
    if len(h) <= 64:
        return h
    key = (NAME[t.dtype], h)
    if key not in pool:
        pool[key] = f"d{len(pool)}"
        lines.append(f"data {pool[key]} {NAME[t.dtype]} {t.numel()} {h}")
    return "@" + pool[key]


def attr(k, v):
    if isinstance(v, torch.dtype):
        return f"attr {k} s {NAME[v]}"
    if isinstance(v, str):
        return f"attr {k} s {v}"
    v = list(v) if isinstance(v, (list, tuple)) else [v]
    if any(isinstance(x, float) for x in v):
        return f"attr {k} f " + " ".join(float(x).hex() if math.isfinite(x) else str(x) for x in v)
    return f"attr {k} i" + "".join(f" {int(x)}" for x in v)


class Generated:
    """A long operand that the readers make themselves."""

    def __init__(self, t, mul, mod, sub):
        self.dtype, self.shape, self.ref = t.dtype, t.shape, f"%{mul},{mod},{sub}"


def emit(op, ins, attrs, outs, tol):
    """ins: tensors, (tensor, layout) pairs, or None for an absent operand."""
    if torch.is_tensor(outs):
        outs = [outs]
    text = []
    for i in ins:
        t, layout = i if isinstance(i, tuple) else (i, "c")
        text.append("in none" if t is None else f"in {NAME[t.dtype]} {dims(t)} {layout} " +
                    (t.ref if isinstance(t, Generated) else ref(t)))
    text += [attr(k, v) for k, v in attrs.items() if v is not None]
    text += [f"out {NAME[o.dtype]} {dims(o)} {ref(o)}" for o in outs]
    ids[op] = ids.get(op, 0) + 1
    lines.append(f"case {op} {op}-{ids[op]}")
    lines.extend(text)
    lines.append("tol " + tol)


# ---- data ----------------------------------------------------------------------------------------------------------
INF, NAN = math.inf, math.nan
SPECIAL = {
    "f32": [NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 1.17549435e-38, -1.17549435e-38, 3.4028235e38,
            -3.4028235e38, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, -1.5, 0.49999997, 0.99999994, 1.0000001, 88.7, 89.0, -87.4,
            -103.9, -104.5, 1e-8, -1e-8, 1e10, -1e10, 16777216.0, 8388609.0, 8388607.5, 4194303.5, 2.0, 3.0, 1e-20, 1e20],
    "f64": [NAN, INF, -INF, 0.0, -0.0, 5e-324, -5e-324, 2.225073858507201e-308, 2.2250738585072014e-308,
            1.7976931348623157e308, -1.7976931348623157e308, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, -1.5, 0.49999999999999994,
            1 - 2.0 ** -53, 1 + 2.0 ** -52, 709.7, 710.5, -708.5, -745.2, -746.0, 1e-20, -1e-20, 1e22, -1e22, 2.0 ** 53,
            4503599627370497.5, 2.0, 3.0, 1e-150, 1e150],
    "f16": [NAN, INF, -INF, 0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504.0, -65504.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, -1.5,
            0.99951171875, 1.0009765625, 11.09, 11.1, -17.4, 2048.0, 2049.0, 1023.5, 2.0, 3.0],
    "bf16": [NAN, INF, -INF, 0.0, -0.0, 1e-40, -1e-40, 1.17549435e-38, 3.38e38, -3.38e38, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5,
             -2.5, -1.5, 0.99609375, 1.0078125, 88.5, 89.0, -87.5, -104.0, 256.0, 257.0, 127.5, 2.0, 3.0],
    "i32": [0, 1, -1, 2, -2, 7, -7, 2 ** 31 - 1, -2 ** 31, 65536, -65537, 46341],
    "i64": [0, 1, -1, 2, -2, 7, -7, 2 ** 63 - 1, -2 ** 63, 2 ** 32, -2 ** 32 - 1, 3037000500],
    "u8": [0, 1, 2, 3, 7, 127, 128, 254, 255],
    "bool": [0, 1],
}


def numbers(name, n, special=True):
    """n values of a dtype, specials first, then a mix of magnitudes."""
    if name in FLOATS:
        s = SPECIAL[name][:n] if special else []
        m = n - len(s)
        span = {"f32": 6, "f64": 12, "f16": 2, "bf16": 6}[name]
        a = rng.normal(0, 2, m)
        a[::3] = np.sign(a[::3]) * 10.0 ** rng.uniform(-span, span, len(a[::3]))
        return torch.tensor(list(s) + list(a), dtype=torch.float64).to(DT[name])
    if name == "bool":
        return torch.from_numpy(rng.integers(0, 2, n)).to(torch.bool)
    s = SPECIAL[name][:n] if special else []
    lo, hi = (0, 256) if name == "u8" else (-100, 101)
    return torch.tensor(list(s) + list(rng.integers(lo, hi, n - len(s))), dtype=DT[name])


def normal(name, *shape, scale=1.0):
    """Normal values; for integer dtypes small integers."""
    a = rng.normal(0, scale, shape)
    if name in FLOATS:
        return torch.from_numpy(np.array(a)).to(DT[name])
    if name == "bool":
        return torch.from_numpy(np.array(a > 0))
    return torch.from_numpy(np.array(np.abs(np.round(a * 5)) if name == "u8" else np.round(a * 5))).to(DT[name])


BIG = {n: numbers(n, 130) for n in DT}        # the pool: shared by every pointwise case
BIG2 = {n: BIG[n][torch.from_numpy(np.random.default_rng(5).permutation(130))] for n in DT}
SMOOTH = {n: normal(n, 130) for n in DT}
SHAPES = [(0,), (1,), (7,), (), (3, 0, 2), (1, 1, 1)]


def take(base, shape):
    n = int(np.prod(shape, dtype=np.int64))
    t = base[torch.arange(n) % len(base)]
    return t.reshape(shape).clone()


def layouts(base):
    """(tensor, layout) pairs over every layout the readers know, odd extents included."""
    yield take(base, (5, 13)), "t"
    yield take(base, (3, 17)), "s"
    yield take(base, (17,)).expand(3, 17).clone(), "e"
    yield take(base, (2, 3, 5)), "t"
    yield take(base, (33,)), "u"


def low_round(fn, *ts):
    """An op on f16 or bf16: computed in f32, rounded once."""
    return fn(*[t.float() if torch.is_tensor(t) and NAME[t.dtype] in LOW else t for t in ts])


# ---- pointwise -----------------------------------------------------------------------------------------------------
def mpf(fn):
    """An mpmath function as float64 -> float64, specials and out-of-range results taken from the NumPy one."""
    np_fn, mp_fn = fn

    def one(*x):
        with np.errstate(all="ignore"):
            r = float(np_fn(*[np.float64(v) for v in x]))
        if not math.isfinite(r) or r == 0 or not all(map(math.isfinite, x)) or 0 in x:
            return r
        return float(mp_fn(*map(mpmath.mpf, x)))

    return lambda *ts: torch.tensor([one(*x) for x in zip(*[t.double().reshape(-1).tolist() for t in ts])],
                                    dtype=torch.float64).reshape(ts[0].shape)


def np_sigmoid(x): return 1 / (1 + np.exp(-x))
def np_erf(x): return math.erf(x)
def mp_sigmoid(x): return 1 / (1 + mpmath.exp(-x))


def np_gelu(x):
    return x if x == INF else (-0.0 if x == -INF else 0.5 * x * math.erfc(-x / math.sqrt(2)))


def mp_gelu(x): return x / 2 * mpmath.erfc(-x / mpmath.sqrt(2))


def np_gelu_tanh(x):
    return x if x == INF else (-0.0 if x == -INF else 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))))


def mp_gelu_tanh(x):
    u = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x ** 3)
    return x * mp_sigmoid(2 * u)  # x/2 (1 + tanh u)


def np_silu(x): return x if x == INF else (-0.0 if x == -INF else x * np_sigmoid(x))
def mp_silu(x): return x * mp_sigmoid(x)
def np_softplus(x): return x if x > 20 else np.log1p(np.exp(x))
def mp_softplus(x): return x if x > 20 else mpmath.log1p(mpmath.exp(x))


def mp_pow(a, b):
    return mpmath.power(a, b) if a > 0 or b == mpmath.floor(b) else mpmath.mpf("nan")


# name -> ((numpy, mpmath), tolerance for f32, tolerance for f64, zeros' signs count)
TRANSCENDENTAL = {
    "exp": ((np.exp, mpmath.exp), "ulp 2", "ulp 2", True),
    "log": ((np.log, mpmath.log), "ulp 2", "ulp 2", True),
    "tanh": ((np.tanh, mpmath.tanh), "ulp 2", "ulp 2", True),
    "erf": ((np_erf, mpmath.erf), "ulp 2", "ulp 2", True),
    "sin": ((np.sin, mpmath.sin), "ulp 2", "ulp 2", True),
    "cos": ((np.cos, mpmath.cos), "ulp 2", "ulp 2", True),
    "sigmoid": ((np_sigmoid, mp_sigmoid), "ulp 3", "ulp 3", False),
    "silu": ((np_silu, mp_silu), "ulp 3", "ulp 3", False),
    "gelu": ((np_gelu, mp_gelu), "ulp 4", "ulp 4 abs 1e-15", False),  # f64: 1 + erf cancels in the tail
    "gelu_tanh": ((np_gelu_tanh, mp_gelu_tanh), "ulp 4", "ulp 4", False),
    "softplus": ((np_softplus, mp_softplus), "ulp 3", "ulp 3", False),
}


def transcendental():
    for op, (fns, t32, t64, sz) in TRANSCENDENTAL.items():
        f = mpf(fns)
        name, attrs = ("gelu", {"approximate": int(op == "gelu_tanh")}) if op.startswith("gelu") else (op, {})
        if op == "softplus":
            attrs = {"beta": 1.0, "threshold": 20.0}
        tail = " sz" if sz else ""
        for d in FLOATS:
            base = BIG[d]
            if op.startswith("gelu") and d == "bf16":  # x^3 overflows f32 in the middle, the result must not
                base = torch.where(base.float().abs() > 1e12, SMOOTH[d], base)
            if op == "gelu_tanh" and d in ("f32", "f64"):
                base = torch.where(base.abs() > (1e12 if d == "f32" else 1e100), SMOOTH[d], base)
            tol = (t64 if d == "f64" else t32) + tail
            if d in LOW:
                tol = "ulp 1" + tail
            for t, layout in [(base[:65], "c")] + (list(layouts(base)) if d == "f32" else []):
                emit(name, [(t, layout)], attrs, f(t).to(DT[d]), tol)
        for shape in SHAPES if op in ("exp", "tanh", "gelu") else []:
            t = take(SMOOTH["f32"], shape)
            emit(name, [t], attrs, f(t).float(), t32 + tail)
        if not op.startswith(("gelu", "silu", "softplus")):
            for d in ("i32", "bool", "u8"):  # integers promote to f32
                t = SMOOTH[d][:17]
                emit(name, [t], attrs, f(t.float()).float(), t32 + tail)
    t = SMOOTH["f32"][:17] * 9
    emit("softplus", [t], {"beta": 2.0, "threshold": 5.0}, F.softplus(t.double(), 2.0, 5.0).float(), "rel 2e-6")
    # pow: tensors and scalars
    f = mpf((np.power, mp_pow))
    for d in FLOATS:
        a, b = BIG[d][:65], BIG2[d][:65]
        if d == "f64":
            a = torch.where(a.abs() > 1e200, SMOOTH[d][:65], a)
        tol = "ulp 1 sz" if d in LOW else "ulp 4 sz"
        with_small = torch.where(torch.arange(65) % 2 == 0, b, torch.round(SMOOTH[d][:65].double() * 3).to(DT[d]))
        emit("pow", [a, with_small], {}, f(a, with_small).to(DT[d]), tol)
        for e in (0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 2.5, -3.0, NAN):
            # by C's pow; 0.5 and -0.5 are sqrt and 1/sqrt (pow(-inf, 0.5) is +inf, sqrt(-inf) NaN: no -inf, no -0 here)
            x = torch.where(a.isinf() | (a == 0), SMOOTH[d][:65], a) if abs(e) == 0.5 else a
            r = f(x, torch.full_like(x, e)).to(DT[d])
            # -2 is 1/(x*x): the square may overflow where the result is subnormal
            small = {"f64": " abs 0x1p-1022", "f16": ""}.get(d, " abs 0x1p-126") if e == -2 else ""
            emit("pow", [x], {"scalar": e}, r, tol.replace(" sz", "") + small if small else tol)
    for d in INTS:
        a = BIG[d][:33]
        for e in (0, 1, 2, 3, 7):
            emit("pow", [a], {"scalar": e}, torch.pow(a, e), "exact")
        b = torch.from_numpy(rng.integers(0, 9, 33)).to(DT[d])
        emit("pow", [a, b], {}, torch.pow(a, b), "exact")


def sqrt(x):
    """Correctly rounded, which torch.sqrt is not everywhere."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(x.numpy())))


def unary():
    exact = {"abs": torch.abs, "neg": torch.neg, "sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil,
             "trunc": torch.trunc, "round": torch.round, "relu": torch.relu, "relu6": F.relu6, "isnan": torch.isnan,
             "isinf": torch.isinf, "logical_not": torch.logical_not, "square": torch.square, "frac": torch.frac,
             "sqrt": sqrt, "rsqrt": lambda x: 1 / sqrt(x), "reciprocal": lambda x: 1 / x,
             "contiguous": torch.clone, "clone": torch.clone}
    for op, fn in exact.items():
        tol = "value" if op in ("sign", "relu", "relu6", "frac") else "exact"
        for d in FLOATS:
            for t, layout in [(BIG[d][:65], "c")] + (list(layouts(BIG[d])) if d == "f32" else []):
                r = low_round(fn, t)
                emit(op, [(t, layout)], {}, r if r.dtype == torch.bool else r.to(DT[d]), tol)
        for shape in SHAPES if op in ("abs", "sqrt", "isnan") else []:
            t = take(SMOOTH["f32"], shape)
            emit(op, [t], {}, fn(t), tol)
        for d in INTS + ("bool",):
            if op in ("frac", "square") or (d == "bool" and op in ("neg", "abs", "sign", "floor", "ceil", "trunc", "round",
                                                                   "relu", "relu6")):
                continue
            t = BIG[d][:33]
            if op in ("sqrt", "rsqrt", "reciprocal"):
                t = SMOOTH[d][:33]
                emit(op, [t], {}, fn(t.float()), tol)
                continue
            emit(op, [t], {}, fn(t), tol)
    for d in INTS + ("bool",):
        emit("bitwise_not", [BIG[d][:33]], {}, torch.bitwise_not(BIG[d][:33]), "exact")


def fmax(fn):
    """torch.maximum and minimum with +0 above -0."""
    def f(a, b):
        r = fn(a, b)
        if not r.dtype.is_floating_point:
            return r
        a, b = torch.broadcast_tensors(a, b)
        zero = (a == 0) & (b == 0)
        sign = (torch.signbit(a) & torch.signbit(b)) if fn is torch.maximum else (torch.signbit(a) | torch.signbit(b))
        return torch.where(zero, torch.where(sign, -torch.zeros_like(r), torch.zeros_like(r)), r)
    return f


def int_divide(np_fn):
    def f(a, b):
        dt = torch.result_type(a, b)
        with np.errstate(all="ignore"):
            r = np_fn(a.to(dt).numpy(), (b.to(dt) if torch.is_tensor(b) else torch.tensor(b, dtype=dt)).numpy())
        return torch.from_numpy(np.array(r)).to(dt)
    return f


def as_numpy(fn):
    """A NumPy function of two tensors or scalars, computed in their promoted dtype (NumPy's fmod is exact, torch's is not)."""
    def f(a, b):
        dt = torch.result_type(a, b)
        a, b = [torch.as_tensor(x).to(dt).numpy() for x in (a, b)]
        with np.errstate(all="ignore"):
            return torch.from_numpy(np.asarray(fn(a, b))).to(dt)
    return f


def np_remainder(a, b):
    r = np.fmod(a, b)
    return np.where((r != 0) & ((b < 0) != (r < 0)), r + b, r)


def np_floor_divide(a, b):
    """As PyTorch and Python: from the exact remainder, not floor(a / b)."""
    r = np.fmod(a, b)
    q = (a - r) / b
    q = np.where((r != 0) & ((b < 0) != (r < 0)), q - 1, q)
    f = np.floor(q)
    f = np.where(q - f > 0.5, f + 1, f)
    return np.where(b == 0, a / b, np.where(q != 0, f, np.copysign(np.zeros_like(q), a / b)))


def binary():
    arith = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": fmax(torch.maximum),
             "minimum": fmax(torch.minimum), "floor_divide": as_numpy(np_floor_divide), "remainder": as_numpy(np_remainder),
             "fmod": as_numpy(np.fmod)}
    comparison = {n: getattr(torch, n) for n in "eq ne lt le gt ge logical_and logical_or logical_xor".split()}
    bitwise = {n: getattr(torch, n) for n in "bitwise_and bitwise_or bitwise_xor".split()}
    promote = [("f32", "i32"), ("i64", "f16"), ("u8", "i32"), ("bool", "f32"), ("f16", "bf16"), ("f64", "f32"), ("i32", "i64"),
               ("bool", "u8"), ("bf16", "i64")]
    for op, fn in {**arith, **comparison, **bitwise}.items():
        modular = op in ("floor_divide", "remainder", "fmod")
        tol = "value" if modular else "exact"
        boolean = op in comparison
        by_int = {"floor_divide": int_divide(np.floor_divide), "remainder": int_divide(np.remainder),
                  "fmod": int_divide(np.fmod)}.get(op, fn)

        def low(a, b):
            dt = torch.result_type(a, b)
            if op == "div" and not dt.is_floating_point:
                dt = torch.float32
            if not boolean:
                a, b = [(x.to(dt) if torch.is_tensor(x) else x) for x in (a, b)]
            if NAME[dt] in LOW and not boolean:  # a scalar is rounded to the dtype first
                if not torch.is_tensor(b):
                    b = torch.tensor(b, dtype=dt)
                r = fn(a.float(), b.float())
                return r.to(dt)
            return fn(a, b)

        def pair(n, d, e=None):
            return BIG[d][:n], BIG2[e or d][:n]

        for d in FLOATS if op not in bitwise else ():
            a, b = pair(65, d)
            emit(op, [a, b], {}, low(a, b), tol)
        if op not in bitwise:
            for (a, la), (b, lb) in zip(layouts(BIG["f32"]), layouts(BIG2["f32"])):
                emit(op, [(a, la), (b, "c")], {}, low(a, b), tol)
                if op in ("add", "div", "lt"):
                    emit(op, [(a, "c"), (b, lb)], {}, low(a, b), tol)
            for sa, sb in [((7, 17), (17,)), ((5, 1, 3), (4, 1)), ((), (7,)), ((1,), (0,)), ((3, 1, 2), (1, 0, 2)), ((), ()),
                           ((2, 1, 1, 1, 3), (1, 1, 2, 1, 1))]:
                a, b = take(SMOOTH["f32"], sa), take(SMOOTH["f32"].flip(0), sb)
                emit(op, [a, b], {}, low(a, b), tol)
        for d in INTS + ("bool",):
            if d == "bool" and (modular or op in ("sub", "div")):
                continue
            a, b = pair(33, d)
            if modular:
                b = torch.where(b == 0, torch.ones_like(b), b)
            if op == "div":
                a, b = SMOOTH[d][:33], SMOOTH[d].flip(0)[:33]
            emit(op, [a, b], {}, by_int(a, b), tol)
        for d, e in promote if op in ("add", "mul", "div", "maximum", "lt", "remainder") else []:
            a, b = SMOOTH[d][:17], SMOOTH[e].flip(0)[:17]
            if op == "remainder":
                b = torch.where(b == 0, torch.ones_like(b), b)
            if op == "remainder" and not torch.result_type(a, b).is_floating_point:
                emit(op, [a, b], {}, by_int(a, b), tol)
            elif op == "remainder" and "bool" in (d, e):
                continue
            elif op == "lt" and d == "i64":
                dt = torch.result_type(a, b)
                emit(op, [a, b], {}, fn(a.to(dt), b.to(dt)), tol)
            else:
                emit(op, [a, b], {}, low(a, b), tol)
        # a 0-d tensor takes part in promotion only by its kind
        if op in ("add", "mul", "maximum"):
            for d, e in [("f32", "f64"), ("i32", "i64"), ("bf16", "f32"), ("i64", "f32")]:
                a, b = SMOOTH[d][:7], SMOOTH[e][3].clone()
                if NAME[torch.result_type(a, b)] in LOW:
                    b2 = b.to(DT[d])
                    emit(op, [a, b], {}, low(a, b2), tol)
                else:
                    emit(op, [a, b], {}, low(a, b), tol)
        if op.startswith("logical") or op in ("maximum", "minimum"):
            continue
        # scalars
        for d in FLOATS if op not in bitwise else ():
            a = BIG[d][:33]
            for s in (1.5, -0.3, 0.0, INF, NAN) if d == "f32" else (0.3,):
                b = s
                if d in LOW:
                    b = float(torch.tensor(s, dtype=DT[d]))
                if boolean:  # the scalar is rounded to the tensor's dtype before the comparison
                    emit(op, [a], {"scalar": s}, fn(a, torch.tensor(s, dtype=DT[d])), tol)
                else:
                    emit(op, [a], {"scalar": s}, low(a, b if d in LOW else torch.tensor(s, dtype=DT[d])), tol)
        for d in INTS:
            a = BIG[d][:33]
            for s in (3, 1) if d == "u8" else (3, -7, 1):
                if op == "div":
                    emit(op, [SMOOTH[d][:33]], {"scalar": s}, SMOOTH[d][:33] / s, tol)
                else:
                    emit(op, [a], {"scalar": s}, by_int(a, s), tol)
        if op in ("add", "mul", "sub", "div"):  # an integer with a float scalar is f32
            emit(op, [SMOOTH["i32"][:17]], {"scalar": 0.5}, fn(SMOOTH["i32"][:17], 0.5), tol)
            emit(op, [SMOOTH["f32"][:17]], {"scalar": 2}, fn(SMOOTH["f32"][:17], 2), tol)
            emit(op, [SMOOTH["bf16"][:17]], {"scalar": 2}, low(SMOOTH["bf16"][:17], torch.tensor(2.0, dtype=torch.bfloat16)), tol)
    for d in FLOATS + INTS:
        a, k = SMOOTH[d][:17], 3 if d in INTS else 0.5
        emit("rsub", [a], {"scalar": k}, low_round(lambda x: k - x, a).to(DT[d]), "exact")
    for d in FLOATS + INTS:  # in place
        a, b = SMOOTH[d][:17], SMOOTH[d].flip(0)[:17]
        for op in ("add_", "sub_", "mul_"):
            fn = {"add_": torch.add, "sub_": torch.sub, "mul_": torch.mul}[op]
            r = (low_round(fn, a, b)).to(DT[d])
            emit(op, [a, b], {}, r, "exact")
        emit("copy_", [a, b], {}, b, "exact")
        src = SMOOTH["f32"][:5].round().abs()
        emit("copy_", [SMOOTH[d][:10].reshape(2, 5), src], {}, src.expand(2, 5).to(DT[d]), "exact")
        emit("fill_", [a], {"scalar": 3 if d in INTS else 0.25}, torch.full_like(a, 3 if d in INTS else 0.25), "exact")


def select_ops():
    for d in ("f32", "f16", "i64", "u8", "bool", "f64"):
        c, a, b = BIG["bool"][:65], BIG[d][:65], BIG2[d][:65]
        emit("where", [c, a, b], {}, torch.where(c, a, b), "exact")
    c, a, b = take(BIG["bool"], (7, 1)), take(BIG["f32"], (17,)), take(BIG2["f32"], (7, 17))
    emit("where", [c, a, (b, "t")], {}, torch.where(c, a, b), "exact")
    emit("where", [(take(BIG["bool"], (3, 17)), "s"), a, a[:1]], {}, torch.where(take(BIG["bool"], (3, 17)), a, a[:1]), "exact")
    emit("where", [c[:1], SMOOTH["f32"][:7], SMOOTH["i32"][:7]], {},
         torch.where(c[:1], SMOOTH["f32"][:7], SMOOTH["i32"][:7].float()).reshape(1, 7), "exact")
    for d in FLOATS:
        x = BIG[d][:65]
        for lo, hi in ((-1.0, 1.0), (0.5, None), (None, 2.5), (2.0, -2.0), (NAN, 1.0)):
            r = x.float() if d in LOW else x
            rl = None if lo is None else torch.full_like(r, float(torch.tensor(lo, dtype=DT[d])))
            rh = None if hi is None else torch.full_like(r, float(torch.tensor(hi, dtype=DT[d])))
            emit("clamp", [x], {"min": lo, "max": hi}, torch.clamp(r, rl, rh).to(DT[d]), "value")
    for d in INTS:
        x = BIG[d][:33]
        emit("clamp", [x], {"min": 2, "max": 100}, torch.clamp(x, 2, 100), "exact")
    for (t, layout) in layouts(BIG["f32"]):
        emit("clamp", [(t, layout)], {"min": -0.5, "max": 3.0}, torch.clamp(t, -0.5, 3.0), "value")


def casts():
    def saturate(x, dst):
        """float to integer: truncated, saturating, NaN to 0."""
        info = torch.iinfo(DT[dst])
        out = [0 if math.isnan(v) else max(info.min, min(info.max, int(v) if math.isfinite(v) else
               (info.max if v > 0 else info.min))) for v in x.double().tolist()]
        return torch.tensor(out, dtype=DT[dst])

    for s, d in itertools.product(DT, DT):
        x = BIG[s][:65]
        if s == "f64" and d in LOW + ("f32",):
            x = torch.where(x.float().double().eq(x) | x.isnan(), x, x.float().double())
        if s in ("i32", "i64") and d in LOW:
            x = torch.where(x.abs() < 2 ** 24, x, torch.ones_like(x))
        if s in FLOATS and d in INTS:
            r = saturate(x, d)
        elif s in ("i32", "i64") and d in FLOATS:
            r = torch.from_numpy(x.numpy().astype(np.float32 if d != "f64" else np.float64)).to(DT[d])
        else:
            r = x.to(DT[d])
        emit("to", [x], {"dtype": DT[d]}, r, "exact")
    for t, layout in layouts(BIG["f32"]):
        emit("to", [(t, layout)], {"dtype": torch.bfloat16}, t.to(torch.bfloat16), "exact")
        emit("to", [(t.to(torch.float16), layout)], {"dtype": torch.float32}, t.to(torch.float16).float(), "exact")


# ---- reductions ----------------------------------------------------------------------------------------------------
def num(x):
    return repr(float(f"{x:.2g}"))


def over(x, ds):
    return list(range(x.dim())) if not ds else [k % x.dim() for k in ds]


def sum_tol(x, ds, mean=False, d="f32"):
    """abs bound of a tree sum of the values x over dims ds."""
    a = x.double().abs().sum(ds) if x.dim() else x.double().abs()
    n = max(1, int(np.prod([x.shape[k] for k in ds], dtype=np.int64)))
    bound = (math.ceil(math.log2(n)) + 4) * EPS[d] * (a.max().item() if a.numel() else 0) / (n if mean else 1)
    return ("ulp 1 " if d in LOW else "") + "abs " + num(bound + 1e-300)


REDUCE_SHAPES = [((65,), [0]), ((130,), []), ((7, 17), [1]), ((7, 17), [0]), ((7, 17), [0, 1]), ((2, 3, 5), [0, 2]), ((2, 3, 5), [-2]),
                 ((1, 7, 1), [0, 2]), ((), []), ((1,), [0])]


def reductions():
    for d in FLOATS:
        for shape, ds in REDUCE_SHAPES if d == "f32" else REDUCE_SHAPES[:4]:
            for layout in ("c", "t", "s") if d == "f32" and len(shape) == 2 else ("c",):
                x = take(SMOOTH[d], shape)
                kd = len(ds) == 1
                dd = over(x, ds)
                xd = x.double()
                arg = (dd, kd) if x.dim() else ()
                emit("sum", [(x, layout)], {"dims": ds, "keepdim": kd}, (xd.sum(*arg)).to(DT[d]), sum_tol(x, dd, d=d))
                emit("mean", [(x, layout)], {"dims": ds, "keepdim": kd}, (xd.mean(*arg)).to(DT[d]), sum_tol(x, dd, True, d=d))
                for op, fn in (("amax", torch.amax), ("amin", torch.amin)):
                    emit(op, [(x, layout)], {"dims": ds, "keepdim": kd}, fn(x, dd, kd) if x.dim() else x, "exact")
                for c in (0, 1):
                    if not x.dim():
                        continue
                    v = torch.var(xd, dd, correction=c, keepdim=kd)
                    n = int(np.prod([x.shape[k] for k in dd]))
                    t = ("ulp 1 " if d in LOW else "") + f"rel {num(4 * (math.log2(n) + 4) * EPS[d])} abs {num(1e-5 * EPS[d])}"
                    emit("var", [(x, layout)], {"dims": ds, "correction": c, "keepdim": kd}, v.to(DT[d]), t)
    x = torch.tensor([100000.0 + v for v in range(17)])
    emit("var", [x], {"dims": [0], "correction": 1, "keepdim": 0}, torch.var(x.double(), [0]).float(), "rel 4e-4")
    for d in ("f32", "f64", "i64", "u8"):  # long rows: blocks of 4096 and the tree above them; small integers sum exactly
        for n, mul, mod, sub in ((4096, 7919, 5, 2), (4097, 7919, 5, 2), (9000, 31, 101, 50), (70001, 17, 3, 1)):
            if d == "u8":
                sub = 0
            x = torch.from_numpy((np.arange(n) * mul % mod - sub).astype(np.int64)).to(DT[d])
            g = Generated(x, mul, mod, sub)
            emit("sum", [g], {"dims": [], "keepdim": 0}, x.sum(), "exact")
            emit("amax", [g], {"dims": [0], "keepdim": 1}, x.amax(0, True), "exact")
            emit("argmin", [g], {"dim": 0, "keepdim": 0}, torch.from_numpy(np.array(np.argmin(x.numpy()))), "exact")
            if d in FLOATS:
                emit("mean", [g], {"dims": [0], "keepdim": 0}, x.double().mean().to(DT[d]), f"rel {num(2 * EPS[d])} abs {num(1e-30)}")
    x = torch.from_numpy((np.arange(9000) * 31 % 101 - 50).astype(np.float32)).reshape(3000, 3)
    emit("sum", [Generated(x, 31, 101, 50)], {"dims": [0], "keepdim": 0}, x.sum(0), "exact")
    emit("sum", [Generated(x.reshape(3, 3000), 31, 101, 50)], {"dims": [1], "keepdim": 0}, x.reshape(3, 3000).sum(1), "exact")
    for shape, ds in [((0,), [0]), ((3, 0), [1]), ((0, 3), [1]), ((0, 3), [0])]:
        x = torch.zeros(shape)
        emit("sum", [x], {"dims": ds, "keepdim": 0}, x.sum(ds), "exact")
        emit("mean", [x], {"dims": ds, "keepdim": 0}, x.mean(ds), "exact")
        emit("any", [x > 0], {"dims": ds, "keepdim": 0}, (x > 0).any(ds[0]), "exact")
        emit("all", [x > 0], {"dims": ds, "keepdim": 0}, (x > 0).all(ds[0]), "exact")
    emit("amax", [torch.zeros(0, 3)], {"dims": [1], "keepdim": 0}, torch.zeros(0), "exact")
    for d in INTS + ("bool",):
        for shape, ds in REDUCE_SHAPES[:6]:
            x = take(SMOOTH[d], shape)
            dd = over(x, ds)
            emit("sum", [x], {"dims": ds, "keepdim": 0}, x.sum(dd), "exact")
            if d != "bool":
                emit("amax", [x], {"dims": ds, "keepdim": 0}, torch.amax(x, dd), "exact")
                emit("amin", [x], {"dims": ds, "keepdim": 0}, torch.amin(x, dd), "exact")
    for d in DT:
        special = BIG[d] if d in FLOATS else SMOOTH[d]
        sets = [(special[3:45] if d in FLOATS else special[:42]), special[:42] if d in FLOATS else special[10:52]]
        for x in sets:
            x = x.reshape(6, 7)
            for dim, kd in ((0, 0), (1, 1), (-1, 0), (None, 0)):
                ax = None if dim is None else dim
                a = x.double().numpy() if d in FLOATS else x.numpy()
                for op, fn in (("argmax", np.argmax), ("argmin", np.argmin)):
                    r = torch.from_numpy(np.array(fn(a, axis=ax))).to(torch.int64)
                    if kd:
                        r = r.unsqueeze(dim)
                    emit(op, [x], {"dim": dim, "keepdim": kd}, r, "exact")
            if d in FLOATS:
                for op, fn in (("amax", torch.amax), ("amin", torch.amin)):
                    emit(op, [x], {"dims": [1], "keepdim": 0}, fn(x, [1]), "value")
            for op, fn in (("any", torch.any), ("all", torch.all)):
                emit(op, [x], {"dims": [1], "keepdim": 1}, fn(x, 1, True), "exact")
                emit(op, [x], {"dims": [], "keepdim": 0}, fn(x), "exact")
    x = take(BIG["f32"], (7, 17))
    for layout in "ts":
        emit("argmax", [(x, layout)], {"dim": 0, "keepdim": 0}, torch.from_numpy(np.argmax(x.numpy(), 0)), "exact")
        emit("amax", [(x, layout)], {"dims": [0], "keepdim": 0}, torch.amax(x, 0), "value")


def rows():
    for d in FLOATS:
        e = EPS[d]
        low = "ulp 1 " if d in LOW else ""
        for shape, dim in [((7, 17), 1), ((7, 17), 0), ((65,), 0), ((2, 3, 5), 1), ((3, 130), -1), ((4, 1), 1), ((0, 3), 1), ((), 0),
                           ((2, 0, 3), 1)]:
            for layout in ("c", "t", "s") if d == "f32" and shape == (7, 17) else ("c",):
                x = take(SMOOTH[d], shape) * 3
                n = x.shape[dim] if x.dim() else 1
                emit("softmax", [(x, layout)], {"dim": dim}, torch.softmax(x.double(), dim).to(DT[d]),
                     low + f"rel {num((40 + math.log2(max(n, 1))) * e)} abs {num(1e-30)}")
                emit("log_softmax", [(x, layout)], {"dim": dim}, torch.log_softmax(x.double(), dim).to(DT[d]),
                     low + f"rel {num(8 * e)} abs {num(40 * e)}")
        for shape, k in [((7, 17), 1), ((2, 3, 5), 2), ((3, 130), 1), ((4, 65), 1), ((0, 7), 1), ((5, 1), 1)]:
            x = take(SMOOTH[d], shape) * 2
            norm = list(shape[len(shape) - k:])
            w, b = (take(SMOOTH[d].flip(0), norm) + 1), take(SMOOTH[d].flip(0), norm)
            for ww, bb in ((w, b), (w, None), (None, None)):
                args = [None if t is None else t.double() for t in (ww, bb)]
                r = F.layer_norm(x.double(), norm, *args, 1e-5)
                emit("layer_norm", [x, ww, bb], {"normalized_shape": norm, "eps": 1e-5}, r.to(DT[d]),
                     low + f"rel {num(32 * e)} abs {num(96 * e)}")
            r = F.rms_norm(x.double(), norm, w.double(), 1e-6)
            if k == 1:
                emit("rms_norm", [x, w], {"eps": 1e-6}, r.to(DT[d]), low + f"rel {num(24 * e)} abs {num(1e-30)}")
        if d in LOW:  # eps is not rounded to the dtype (1e-8 would be 0 in f16)
            x, w, b = torch.full((3, 16), 2.5, dtype=DT[d]), SMOOTH[d][:16], SMOOTH[d][16:32]
            emit("layer_norm", [x, w, b], {"normalized_shape": [16], "eps": 1e-8}, b.expand(3, 16), "exact")
            x = torch.zeros((2, 16), dtype=DT[d])
            emit("rms_norm", [x, w], {"eps": 1e-8}, x, "value")
        for shape in [(2, 3, 5, 7), (4, 3), (2, 3, 9)]:
            x, m, w, b = take(SMOOTH[d], shape), SMOOTH[d][:3], SMOOTH[d][10:13], SMOOTH[d][20:23]
            v = (SMOOTH[d][30:33].abs() + 0.1).to(DT[d])
            for ww, bb in ((w, b), (None, None)):
                args = [None if t is None else t.double() for t in (ww, bb)]
                r = F.batch_norm(x.double(), m.double(), v.double(), *args, False, 0.0, 1e-5)
                emit("batch_norm", [x, m, v, ww, bb], {"eps": 1e-5}, r.to(DT[d]), low + f"rel {num(8 * e)} abs {num(64 * e)}")
    for d in ("f32", "f64"):
        x, t, w = take(SMOOTH[d], (7, 10)) * 3, torch.tensor([0, 9, 3, 3, 7, 1, 5]), SMOOTH[d][20:30].abs()
        tol = f"rel {num(64 * EPS[d])} abs {num(64 * EPS[d])}"
        for how, ww, ignore, smooth in ((1, None, -100, 0.0), (0, None, 3, 0.0), (2, w, -100, 0.0), (1, w, 3, 0.0), (1, None, -100, 0.1)):
            r = F.cross_entropy(x.double(), t, None if ww is None else ww.double(), ignore_index=ignore, label_smoothing=smooth,
                                reduction=("none", "mean", "sum")[how])
            emit("cross_entropy", [x, t, ww], {"reduction": how, "ignore_index": ignore, "label_smoothing": smooth}, r.to(DT[d]), tol)
    x, t = take(SMOOTH["f32"], (2, 4, 5)), torch.from_numpy(rng.integers(0, 4, (2, 5)))
    emit("cross_entropy", [x, t, None], {"reduction": 0, "ignore_index": -100, "label_smoothing": 0.0},
         F.cross_entropy(x.double(), t, reduction="none").float(), f"rel {num(64 * EPS['f32'])} abs {num(64 * EPS['f32'])}")
    x = torch.tensor([[-INF, -INF], [INF, 1.0], [NAN, 0.0], [-INF, 2.0], [3e38, -3e38]])
    emit("softmax", [x], {"dim": 1}, torch.softmax(x.double(), 1).float(), "rel 1e-6")
    emit("log_softmax", [x[2:]], {"dim": 1}, torch.log_softmax(x[2:], 1), "rel 1e-6")


# ---- views and moves -----------------------------------------------------------------------------------------------
def views():
    for d in ("f32", "u8", "f16", "i64"):
        for layout in ("c", "t", "s") if d == "f32" else ("c",):
            v = lambda op, x, attrs, r: emit(op, [(x, layout)], attrs, r, "exact")
            x = take(SMOOTH[d], (2, 3, 5))
            v("reshape", x, {"dims": [5, 6]}, x.reshape(5, 6))
            v("reshape", x, {"dims": [-1, 3]}, x.reshape(-1, 3))
            v("reshape", x, {"dims": [3, 1, -1, 2]}, x.reshape(3, 1, -1, 2))
            v("permute", x, {"dims": [2, 0, 1]}, x.permute(2, 0, 1))
            v("permute", x, {"dims": [-1, 1, 0]}, x.permute(2, 1, 0))
            v("transpose", x, {"dim0": 0, "dim1": -1}, x.transpose(0, -1))
            v("expand", x[:, :1], {"dims": [2, 4, 5]}, x[:, :1].expand(2, 4, 5))
            v("expand", x[0, 0], {"dims": [2, 3, -1]}, x[0, 0].expand(2, 3, 5))
            v("narrow", x, {"dim": 2, "start": 1, "length": 3}, x.narrow(2, 1, 3))
            v("narrow", x, {"dim": -3, "start": 1, "length": 0}, x.narrow(0, 1, 0))
            v("narrow", x, {"dim": 1, "start": -2, "length": 2}, x.narrow(1, -2, 2))
            v("select", x, {"dim": 1, "index": -1}, x.select(1, -1))
            v("select", x, {"dim": 0, "index": 1}, x.select(0, 1))
            v("slice", x, {"dim": 2, "start": 1, "end": 5, "step": 2}, x[:, :, 1:5:2])
            v("slice", x, {"dim": 1, "start": -2, "end": 100, "step": 1}, x[:, -2:])
            v("slice", x, {"dim": 1, "start": 2, "end": 1, "step": 1}, x[:, 2:1])
            v("flip", x, {"dims": [0, 2]}, x.flip(0, 2))
            v("flip", x, {"dims": [1]}, x.flip(1))
            v("squeeze", x[:, :1], {"dim": 1}, x[:, :1].squeeze(1))
            v("squeeze", x, {"dim": 1}, x)
            v("unsqueeze", x, {"dim": 0}, x.unsqueeze(0))
            v("unsqueeze", x, {"dim": -1}, x.unsqueeze(-1))
            v("diagonal", x, {"offset": 0, "dim0": 0, "dim1": 2}, x.diagonal(0, 0, 2))
            v("diagonal", x, {"offset": 1, "dim0": 1, "dim1": 2}, x.diagonal(1, 1, 2))
            v("diagonal", x, {"offset": -2, "dim0": 2, "dim1": 1}, x.diagonal(-2, 2, 1))
            v("flatten", x, {"start_dim": 1, "end_dim": -1}, x.flatten(1))
            v("flatten", x, {"start_dim": 0, "end_dim": 1}, x.flatten(0, 1))
            if layout == "c":
                v("as_strided", x, {"dims": [3, 2], "strides": [7, 2], "offset": 3}, x.as_strided((3, 2), (7, 2), 3))
                v("as_strided", x, {"dims": [4, 3], "strides": [2, 2], "offset": 0}, x.as_strided((4, 3), (2, 2), 0))
                v("as_strided", x, {"dims": [3, 2], "strides": [0, 1], "offset": 4}, x.as_strided((3, 2), (0, 1), 4))
            z = take(SMOOTH[d], (3, 0))
            v("reshape", z, {"dims": [0, 7]}, z.reshape(0, 7))
            v("flip", z, {"dims": [0]}, z.flip(0))
            v("permute", z, {"dims": [1, 0]}, z.permute(1, 0))
            s = take(SMOOTH[d], ())
            v("reshape", s, {"dims": [1, 1]}, s.reshape(1, 1))
            v("unsqueeze", s, {"dim": 0}, s.unsqueeze(0))
            v("expand", s, {"dims": [3]}, s.expand(3))
    x = take(SMOOTH["f32"], (65,))
    emit("flip", [x], {"dims": [0]}, x.flip(0), "exact")
    emit("slice", [x], {"dim": 0, "start": 3, "end": 65, "step": 7}, x[3::7], "exact")


def moves():
    for d in ("f32", "u8", "bf16", "i64", "bool", "f64"):
        a, b, z = take(SMOOTH[d], (3, 5)), take(SMOOTH[d].flip(0), (3, 7)), take(SMOOTH[d], (3, 0))
        emit("cat", [a, b], {"dim": 1}, torch.cat([a, b], 1), "exact")
        emit("cat", [a, z, (b, "t"), a], {"dim": -1}, torch.cat([a, z, b, a], 1), "exact")
        emit("cat", [a], {"dim": 0}, a, "exact")
        emit("cat", [b, (b, "s"), b], {"dim": 0}, torch.cat([b, b, b], 0), "exact")
        emit("stack", [a, (a, "t"), a], {"dim": 0}, torch.stack([a, a, a]), "exact")
        emit("stack", [a, a.flip(0)], {"dim": -1}, torch.stack([a, a.flip(0)], -1), "exact")
        x = take(SMOOTH[d], (2, 3, 5))
        emit("unfold", [x], {"dim": 2, "size": 3, "step": 2}, x.unfold(2, 3, 2), "exact")
        emit("unfold", [(x, "t")], {"dim": 1, "size": 2, "step": 1}, x.unfold(1, 2, 1), "exact")
        mask = take(BIG["bool"], (3, 1))
        fill = 1 if d == "bool" else 0.25 if d in FLOATS else 3
        emit("masked_fill", [x, mask], {"scalar": fill}, x.masked_fill(mask, fill), "exact")
        if d != "bool":  # with an integer scalar it would be i64
            emit("where", [mask, x], {"scalar": fill}, torch.where(mask, x, torch.tensor(fill, dtype=DT[d])), "exact")
        emit("chunk", [x], {"chunks": 2, "dim": 2}, list(x.chunk(2, 2)), "exact")
        emit("split", [x], {"split_size": 2, "dim": -2}, list(x.split(2, -2)), "exact")
        val = 1 if d == "bool" else 7
        for p in ([1, 2], [0, 1, 2, 0], [-1, 2, 1, -1], [0, 0, 0, 0, 1, 1], [-2, -2]):
            emit("pad", [x], {"pad": p, "mode": "constant", "value": float(val)}, F.pad(x, p, "constant", val), "exact")
        if d in ("f32", "f64", "i64", "u8"):
            y = x.double()
            for mode in ("reflect", "replicate"):
                for p in ([2, 1], [4, 0]):
                    emit("pad", [x], {"pad": p, "mode": mode, "value": 0.0}, F.pad(y, p, mode).to(DT[d]), "exact")
                y4 = y.unsqueeze(0)
                p = [2, 1, 1, 2]
                emit("pad", [x.unsqueeze(0)], {"pad": p, "mode": mode, "value": 0.0}, F.pad(y4, p, mode).to(DT[d]), "exact")
        w = take(SMOOTH[d], (11, 6))
        for idx in (torch.tensor([[0, 10, 3], [3, 3, 7]]), torch.tensor(5), torch.zeros(0, dtype=torch.int64)):
            emit("embedding", [w, idx], {}, w[idx.long()], "exact")
        for dim, idx in ((0, [10, 0, 3, 3]), (1, [5, 5, 0]), (-1, []), (0, [7])):
            i = torch.tensor(idx, dtype=torch.int64)
            emit("index_select", [w, i], {"dim": dim}, w.index_select(dim, i), "exact")
        i = torch.from_numpy(rng.integers(0, 6, (11, 4)))
        emit("gather", [w, i], {"dim": 1}, w.gather(1, i), "exact")
        i = torch.from_numpy(rng.integers(0, 11, (3, 6)))
        emit("gather", [(w, "t"), (i, "s")], {"dim": 0}, w.gather(0, i), "exact")
        src = take(SMOOTH[d].flip(0), (2, 6))
        i = torch.tensor([9, 2])
        emit("index_copy_", [w, i, src], {"dim": 0}, w.index_copy(0, i, src), "exact")
        src = take(SMOOTH[d].flip(0), (11, 1))
        emit("index_copy_", [w, torch.tensor([4]), src], {"dim": 1}, w.index_copy(1, torch.tensor([4]), src), "exact")
    emit("cat", [SMOOTH["f32"][:3], SMOOTH["i32"][:3]], {"dim": 0}, torch.cat([SMOOTH["f32"][:3], SMOOTH["i32"][:3].float()]), "exact")
    for d in ("i64", "i32", "u8", "f32", "f64"):
        for s, e, st in ((0, 17, 1), (3, 65, 7), (5, 5, 1), (0, 1, 3)):
            emit("arange", [], {"start": s, "end": e, "step": st, "dtype": DT[d]}, torch.arange(s, e, st, dtype=DT[d]), "exact")
        if d != "u8":
            emit("arange", [], {"start": 5, "end": -9, "step": -2, "dtype": DT[d]}, torch.arange(5, -9, -2, dtype=DT[d]), "exact")
    for d in DT:
        val = 1 if d == "bool" else 0.25 if d in FLOATS else 3
        for shape in ((7,), (2, 3), (), (0,)):
            emit("full", [], {"dims": list(shape), "value": float(val) if d in FLOATS else int(val), "dtype": DT[d]},
                 torch.full(shape, val, dtype=DT[d]), "exact")
        emit("zeros", [], {"dims": [2, 3], "dtype": DT[d]}, torch.zeros(2, 3, dtype=DT[d]), "exact")
        emit("ones", [], {"dims": [5], "dtype": DT[d]}, torch.ones(5, dtype=DT[d]), "exact")


# ---- contractions --------------------------------------------------------------------------------------------------
def bound(absolute, k, d, extra=0.0):
    """K eps sum|a||b|, the bound of any summation order."""
    m = absolute.max().item() if absolute.numel() else 0.0
    low = "ulp 1 " if d in LOW else ""
    return low + "abs " + num((k + 2) * EPS[d] * m + extra + 1e-300)


def contractions():
    for d in FLOATS:
        shapes = [((7,), (7,)), ((5, 7), (7,)), ((7,), (7, 5)), ((5, 7), (7, 17)), ((1, 1), (1, 1)), ((17, 65), (65, 9)), ((2, 5, 7), (7, 3)),
                  ((2, 1, 3, 7), (4, 7, 2)), ((7,), (2, 7, 3)), ((3, 4, 7), (7,)), ((4, 0), (0, 3)), ((0, 4), (4, 3)), ((2, 3, 4), (2, 4, 0)),
                  ((1, 130), (130, 8)), ((33, 3), (3, 31))]
        for sa, sb in shapes if d == "f32" else shapes[:5] + shapes[6:8]:
            a, b = take(SMOOTH[d], sa), take(SMOOTH[d].flip(0), sb)
            r = torch.matmul(a.double(), b.double())
            m = torch.matmul(a.double().abs(), b.double().abs())
            emit("matmul", [a, b], {}, r.to(DT[d]), bound(m, sa[-1], d))
            if len(sa) == 2 and len(sb) == 2 and d == "f32" and a.numel() and b.numel():
                emit("matmul", [(a, "t"), b], {}, r.to(DT[d]), bound(m, sa[-1], d))
                emit("matmul", [a, (b, "t")], {}, r.to(DT[d]), bound(m, sa[-1], d))
                emit("matmul", [(a, "s"), (b, "s")], {}, r.to(DT[d]), bound(m, sa[-1], d))
        a, b = take(SMOOTH[d], (2, 5, 7)), take(SMOOTH[d].flip(0), (2, 7, 3))
        emit("bmm", [a, b], {}, torch.bmm(a.double(), b.double()).to(DT[d]), bound(torch.bmm(a.double().abs(), b.double().abs()), 7, d))
        for sx, o in [((7,), 5), ((3, 17), 9), ((2, 3, 7), 1), ((1, 65), 33), ((0, 4), 3), ((2, 0), 3), ((9, 16), 16)]:
            x, w, b = take(SMOOTH[d], sx), take(SMOOTH[d].flip(0), (o, sx[-1])), SMOOTH[d][50:50 + o]
            m = F.linear(x.double().abs(), w.double().abs(), b.double().abs())
            emit("linear", [x, w, b], {}, F.linear(x.double(), w.double(), b.double()).to(DT[d]), bound(m, sx[-1] + 1, d))
            if sx == (3, 17):
                emit("linear", [(x, "t"), (w, "t"), None], {}, F.linear(x.double(), w.double()).to(DT[d]), bound(m, sx[-1] + 1, d))
        convs = [((1, 1, 8, 8), (4, 1, 3, 3), {"padding": 1}), ((2, 3, 7, 9), (5, 3, 3, 2), {}),
                 ((1, 4, 9, 7), (6, 2, 3, 3), {"stride": [2, 1], "padding": [1, 0], "dilation": [2, 2], "groups": 2}),
                 ((2, 3, 5, 5), (3, 1, 3, 3), {"groups": 3, "padding": [1, 1]}), ((1, 2, 4, 4), (3, 2, 1, 1), {"stride": 2}),
                 ((1, 2, 3, 17), (2, 2, 2, 5), {"padding": [0, 3], "stride": [1, 3]}), ((0, 2, 4, 4), (3, 2, 3, 3), {}),
                 ((1, 8, 6, 6), (17, 8, 3, 3), {"padding": 1})]
        for sx, sw, kw in convs if d in ("f32", "f64") else convs[1:3]:
            x, w, b = take(SMOOTH[d], sx), take(SMOOTH[d].flip(0), sw), SMOOTH[d][40:40 + sw[0]]
            pairs = {k: (v if isinstance(v, list) else [v, v]) for k, v in kw.items() if k != "groups"}
            full = {"stride": pairs.get("stride", [1, 1]), "padding": pairs.get("padding", [0, 0]),
                    "dilation": pairs.get("dilation", [1, 1]), "groups": kw.get("groups", 1)}
            m = F.conv2d(x.double().abs(), w.double().abs(), b.double().abs(), **full)
            k = int(np.prod(sw[1:])) + 1
            emit("conv2d", [x, w, b], full, F.conv2d(x.double(), w.double(), b.double(), **full).to(DT[d]), bound(m, k, d))
            if sx[0]:
                emit("conv2d", [(x, "t"), w, None], full, F.conv2d(x.double(), w.double(), None, **full).to(DT[d]), bound(m, k, d))
        for sx, k, s, p, dl, ceil in [((1, 2, 6, 6), [2, 2], [2, 2], [0, 0], [1, 1], 0), ((2, 3, 7, 5), [3, 2], [2, 1], [1, 1], [1, 1], 0),
                                      ((1, 1, 7, 7), [3, 3], [2, 2], [1, 1], [1, 1], 1), ((1, 1, 8, 5), [2, 2], [3, 3], [1, 1], [1, 1], 1),
                                      ((1, 2, 9, 9), [2, 3], [1, 2], [0, 1], [3, 2], 0), ((0, 1, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], 0)]:
            x = take(SMOOTH[d], sx)
            emit("max_pool2d", [x], {"kernel_size": k, "stride": s, "padding": p, "dilation": dl, "ceil_mode": ceil},
                 F.max_pool2d(x.double(), k, s, p, dl, bool(ceil)).to(DT[d]), "exact")
            if dl == [1, 1]:
                for inc, div in ((1, 0), (0, 0), (1, 3)):
                    f = lambda t: F.avg_pool2d(t, k, s, p, bool(ceil), bool(inc), div or None)
                    emit("avg_pool2d", [x], {"kernel_size": k, "stride": s, "padding": p, "ceil_mode": ceil, "count_include_pad": inc,
                         "divisor_override": div}, f(x.double()).to(DT[d]), bound(f(x.double().abs()), k[0] * k[1], d))
    x = torch.tensor([[[[1.0, NAN, 3.0, 4.0], [5.0, 6.0, -INF, -INF], [0.0, -1.0, -INF, -INF], [2.0, 3.0, 1.0, 9.0]]]])
    emit("max_pool2d", [x], {"kernel_size": [2, 2], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "ceil_mode": 0},
         F.max_pool2d(x, 2, 1, 1), "exact")
    x = take(SMOOTH["i32"], (1, 1, 5, 5))
    emit("max_pool2d", [x], {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": 0},
         F.max_pool2d(x.double(), 2, 2).to(torch.int32), "exact")
    for d in FLOATS:  # attention
        for (b, h, kv, l, s, e, ev) in [(1, 1, 1, 5, 7, 4, 4), (2, 3, 3, 4, 4, 8, 5), (1, 4, 2, 3, 9, 16, 16), (1, 2, 1, 1, 17, 3, 3)]:
            q, k, v = take(SMOOTH[d], (b, h, l, e)), take(SMOOTH[d].flip(0), (b, kv, s, e)), take(SMOOTH[d], (b, kv, s, ev)).flip(-1)
            fm = take(SMOOTH[d], (l, s))
            bm = torch.from_numpy(rng.integers(0, 3, (b, 1, l, s)) > 0)
            bm[0, 0, 0, :] = False  # one row with nothing to attend to
            gqa = int(h != kv)
            for mask, causal, scale in ((None, 0, None), (None, 1, None), (fm, 0, None), (bm, 0, 0.3)):
                if d in LOW and scale is None and mask is None and causal:
                    continue
                qd, kd, vd = q.double(), k.double(), v.double()
                if gqa:
                    kd, vd = kd.repeat_interleave(h // kv, 1), vd.repeat_interleave(h // kv, 1)
                w = qd @ kd.transpose(-1, -2) * (scale if scale is not None else 1 / math.sqrt(e))
                if causal:
                    w = w.masked_fill(~torch.ones(l, s, dtype=torch.bool).tril(), -INF)
                if mask is not None:
                    w = w.masked_fill(~mask, -INF) if mask.dtype == torch.bool else w + mask.double()
                p = torch.where(torch.isneginf(w).all(-1, keepdim=True), torch.zeros_like(w), torch.softmax(w, -1))
                r = p @ vd
                low = "ulp 1 " if d in LOW else ""
                emit("scaled_dot_product_attention", [q, k, v, mask], {"is_causal": causal, "scale": scale, "gqa": gqa}, r.to(DT[d]),
                     low + f"abs {num(64 * EPS[d] * v.double().abs().max().item())}")
        for n, i, h in ((3, 5, 7), (1, 16, 8)):
            x, hx = take(SMOOTH[d], (n, i)), take(SMOOTH[d].flip(0), (n, h))
            wi, wh = take(SMOOTH[d], (3 * h, i)), take(SMOOTH[d].flip(0), (3 * h, h))
            bi, bh = SMOOTH[d][:3 * h], SMOOTH[d][60:60 + 3 * h]
            if d in LOW:
                continue  # a composite: it rounds after each of its ops
            r = torch.gru_cell(x.double(), hx.double(), wi.double(), wh.double(), bi.double(), bh.double())
            emit("gru_cell", [x, hx, wi, wh, bi, bh], {}, r.to(DT[d]), f"abs {num(300 * EPS[d])}")


def main():
    for f in (transcendental, unary, binary, select_ops, casts, reductions, rows, views, moves, contractions):
        f()
    path = os.path.join(HERE, "ops.txt")
    with open(path, "w") as out:
        out.write("# Made by make_ops.py, which describes the format. PyTorch " + torch.__version__.split("+")[0] + "\n")
        out.write("\n".join(lines) + "\n")
    print(f"{sum(ids.values())} cases of {len(ids)} ops, {len(pool)} data records, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
