#!/usr/bin/env python3
"""Tensors between tracejit and PyTorch in one process, through DLPack: torch_exchange.py LIBTRACEJIT.SO

Both directions without a copy (pointers are compared), each deleter called once, strides, dtypes, in-place writes seen
on the other side, a region over tensors of PyTorch. Exit status 77: no PyTorch here.
"""
import ctypes as c
import gc
import sys

try:
    import torch
    from torch.utils.dlpack import from_dlpack, to_dlpack
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

lib = c.CDLL(sys.argv[1])
P, I64 = c.c_void_p, c.c_int64
DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
READONLY, STABLE = 1, 2


class Managed(c.Structure):  # DLManagedTensor
    _fields_ = [("data", P), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(I64)),
                ("strides", c.POINTER(I64)), ("byte_offset", c.c_uint64), ("manager_ctx", P), ("deleter", P)]


def function(name, result, *args):
    f = getattr(lib, "trace_" + name)
    f.restype, f.argtypes = result, args
    return f


last_error = function("last_error", c.c_char_p, P)
context_create = function("context_create", c.c_int, P, c.POINTER(P))
context_release = function("context_release", None, P)
region_create = function("region_create", c.c_int, P, c.c_char_p, P, c.POINTER(P))
region_release = function("region_release", None, P)
begin = function("begin_at", c.c_bool, P, c.POINTER(P), c.c_size_t, c.c_char_p, c.c_int)
end = function("end_at", c.c_int, P, c.POINTER(P), c.c_size_t, c.c_char_p, c.c_int)
release = function("release", None, P)
data_at = function("data_at", c.c_int, P, c.POINTER(P), c.c_char_p, c.c_int)
write = function("write", c.c_int, P, P, c.c_size_t)
size = function("size", I64, P, I64)
stride = function("stride", I64, P, I64)
rank = function("rank", c.c_int, P)
dtype_of = function("dtype_of", c.c_int, P)
import_managed = function("from_dlpack", P, P, P, c.c_int)
export_managed = function("to_dlpack", P, P)
from_data = function("from", P, P, c.c_int, P, c.POINTER(I64), c.c_size_t)
clone = function("clone", P, P)
relu = function("relu", P, P)
linear = function("linear", P, P, P, P)
add_f_ = function("add_f_", P, P, c.c_double)

capsule_pointer = c.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = P, [c.py_object, c.c_char_p]
capsule_rename = c.pythonapi.PyCapsule_SetName
capsule_rename.restype, capsule_rename.argtypes = c.c_int, [c.py_object, c.c_char_p]
capsule_new = c.pythonapi.PyCapsule_New
capsule_new.restype, capsule_new.argtypes = c.py_object, [P, c.c_char_p, P]
DELETER = c.CFUNCTYPE(None, P)
NAME, USED = b"dltensor", b"used_dltensor"
checks = 0


def check(ok, what):
    global checks
    checks += 1
    if not ok:
        sys.exit(f"failed: {what} (last error: {last_error(None).decode()})")


class Counted:
    """Counts the calls of a managed tensor's deleter, and passes them on."""

    alive = []  # callbacks have to outlive the structs

    def __init__(self, pointer):
        self.calls = 0
        managed = Managed.from_address(pointer)
        inner = DELETER(managed.deleter)

        def outer(p):
            self.calls += 1
            inner(p)

        self.callback = DELETER(outer)
        managed.deleter = c.cast(self.callback, P).value
        Counted.alive.append(self)


def take(ctx, tensor, flags=0):
    """A tensor of PyTorch as one of tracejit: (handle, deleter calls)."""
    capsule = to_dlpack(tensor)
    pointer = capsule_pointer(capsule, NAME)
    counted = Counted(pointer)
    handle = import_managed(ctx, pointer, flags)
    if handle:
        capsule_rename(capsule, USED)  # taken over
    return handle, counted


def give(handle):
    """A tensor of tracejit as one of PyTorch."""
    pointer = export_managed(handle)
    check(pointer, "export")
    counted = Counted(pointer)
    return from_dlpack(capsule_new(pointer, NAME, None)), counted


def address(handle):
    p = P()
    check(data_at(handle, c.byref(p), b"torch_exchange.py", 1) == 0, "trace_data")
    return p.value


def sample(dtype, *shape):
    n = 1
    for s in shape:
        n *= s
    return (torch.arange(n) % 5 - (0 if dtype in (torch.bool, torch.uint8) else 2)).to(dtype).reshape(shape)


def imports(ctx):
    for number, dtype in enumerate(DTYPES):
        t = sample(dtype, 3, 4)
        x, deleter = take(ctx, t)
        check(x and address(x) == t.data_ptr() and dtype_of(x) == number, f"import of {dtype}")
        copy = clone(x)
        back, back_deleter = give(copy)
        check(back.dtype == dtype and torch.equal(back, t) and back.data_ptr() == address(copy), f"values of {dtype}")
        release(copy)
        check(torch.equal(back, t) and back_deleter.calls == 0, "the export holds the memory")
        del back
        gc.collect()
        check(back_deleter.calls == 1, f"export's deleter called {back_deleter.calls} times")
        release(x)
        check(deleter.calls == 1, f"import's deleter called {deleter.calls} times")


def strides(ctx):
    base = sample(torch.float32, 4, 6, 5)
    for name, view in {"transposed": base.transpose(0, 2), "sliced": base[1:, ::2, 1:4], "expanded": base[:1].expand(3, 6, 5),
                       "0-d": base[2, 3, 4], "empty": base[:, :0], "select": base[:, 2]}.items():
        x, deleter = take(ctx, view, READONLY)
        check(x and rank(x) == view.dim(), name)
        for d in range(view.dim()):
            check(size(x, d) == view.shape[d], f"{name}: extent {d}")
            check(view.shape[d] < 2 or view.numel() == 0 or stride(x, d) == view.stride(d), f"{name}: stride {d}")
        copy = clone(x)
        back, _ = give(copy)
        check(torch.equal(back, view), f"{name}: values")
        check(not add_f_(x, 1.0), f"{name}: written though read-only")
        release(copy)
        release(x)
        check(deleter.calls == 1, f"{name}: deleter")
    dims = (I64 * 2)(6, 4)
    values = (c.c_float * 24)(*range(24))
    x = from_data(ctx, 6, values, dims, 2)
    back, _ = give(x)
    check(back.stride() == (4, 1) and back[5, 3] == 23, "strides of an export")
    release(x)


def writes(ctx):
    t = sample(torch.float32, 8)
    x, _ = take(ctx, t)
    check(add_f_(x, 10.0) == x and t[0] == 8, "an in-place op is seen by PyTorch")
    t += 1
    y = relu(x)
    back, _ = give(y)
    check(torch.equal(back, torch.relu(t)), "PyTorch's write is seen by the next op")
    ones = (c.c_float * 8)(*[1] * 8)
    check(write(x, ones, 32) == 0 and bool((t == 1).all()), "trace_write is seen by PyTorch")
    back += 5
    z = clone(y)
    again, _ = give(z)
    check(torch.equal(again, back), "PyTorch's write to an export is seen")
    check(write(y, ones, 32) == 0 and bool((back == 1).all()), "trace_write writes where the consumer looks")
    for h in (x, y, z):
        release(h)


def refusals(ctx):
    for t in (torch.zeros(3, dtype=torch.complex64), torch.zeros(2, dtype=torch.int16), torch.zeros([1] * 9)):
        x, deleter = take(ctx, t)
        check(not x and last_error(None), f"{t.dtype} of rank {t.dim()} is refused")
        gc.collect()
        check(deleter.calls == 1, "it stayed PyTorch's: the capsule that nobody took has deleted it")


def regions(ctx):
    """A model over PyTorch's weights and inputs: no copies, the same values, in turns with PyTorch's own threads."""
    region = P()
    check(region_create(ctx, b"model", None, c.byref(region)) == 0, "region")
    torch.manual_seed(3)
    w, b = torch.randn(64, 96), torch.randn(64)
    tw, w_deleter = take(ctx, w, STABLE)
    tb, b_deleter = take(ctx, b)
    for turn in range(6):
        x = torch.randn(32 + turn % 2, 96)
        tx, x_deleter = take(ctx, x)
        inputs, out = (P * 1)(tx), (P * 1)()
        if begin(region, inputs, 1, b"torch_exchange.py", 2):
            out[0] = relu(linear(tx, tw, tb))
        check(end(region, out, 1, b"torch_exchange.py", 3) == 0, "run")
        y, y_deleter = give(out[0])
        check(y.data_ptr() == address(out[0]), "the result is not copied")
        want = torch.relu(torch.nn.functional.linear(x, w, b))
        check(torch.allclose(y, want, rtol=1e-5, atol=1e-5), f"turn {turn}")
        release(out[0])
        release(tx)
        check(x_deleter.calls == 1, "the input goes with its handle")
        kept = y.clone()
        (torch.randn(300, 300) @ torch.randn(300, 300)).sum()
        check(torch.equal(y, kept), "a held result is not overwritten")
        del y
        gc.collect()
        check(y_deleter.calls == 1, "the result goes with PyTorch's tensor")
    release(tw)
    release(tb)
    check(w_deleter.calls == 1 and b_deleter.calls == 1, "weights")
    region_release(region)


def main():
    ctx = P()
    check(context_create(None, c.byref(ctx)) == 0, "context")
    for part in (imports, strides, writes, refusals, regions):
        part(ctx)
    x, deleter = take(ctx, sample(torch.float32, 4))
    y = clone(x)
    outlives, given = give(y)
    release(y)
    context_release(ctx)  # handles keep it
    check(deleter.calls == 0 and outlives[1] == -1, "a context lives as long as its tensors")
    release(x)
    del outlives
    gc.collect()
    check(deleter.calls == 1 and given.calls == 1, "the last ones")
    check(all(d.calls == 1 for d in Counted.alive), "every deleter is called once")
    print(f"{checks} checks with PyTorch {torch.__version__}, {len(Counted.alive)} tensors exchanged")


main()
