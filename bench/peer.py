#!/usr/bin/env python3
"""The peers' side of the CPU workloads of bench.c: PyTorch eager and torch.compile, and ONNX Runtime where it is installed.

    pip install torch numpy            (and, for ONNX Runtime: onnxruntime onnx onnxscript)
    python3 peer.py [--modes eager,default,ort] [--only NAME,NAME] [--threads N]

Prints one JSON object a line: {"workload", "mode", "ms", "p25_ms", "p75_ms", "wall_us", "first_call_s"}. Peers run
unchanged, with their defaults and the given number of threads; outputs are checked against float64 before timing.
first_call_s here is a call in this process after importing torch, with nothing cached for this graph.
"""
import argparse, io, json, math, os, time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Mlp(nn.Module):
    """depth blocks of Linear(d, hidden), GELU(tanh), Linear(hidden, d)."""

    def __init__(self, d, hidden, depth):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(d, hidden) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(hidden, d) for _ in range(depth))

    def forward(self, x):
        for up, down in zip(self.up, self.down):
            x = down(F.gelu(up(x), approximate="tanh"))
        return x


class Digits(nn.Module):
    """The network of docs/examples."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(512, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def fn(f):
    """A function as a module, which the exporter wants."""
    class Wrapped(nn.Module):
        def forward(self, *args):
            return f(*args)
    return Wrapped()


def pointwise(x):
    return F.gelu(x * 1.5 + 0.5, approximate="tanh") * torch.sigmoid(x) + x.clamp(-1, 1)


def bias_gelu_res_ln(x, r, b, g, e):
    return F.layer_norm(F.gelu(x + b, approximate="tanh") + r, (x.shape[-1],), g, e)


def masked_softmax(x, keep):
    return torch.where(keep, x * 0.125, float("-inf")).softmax(-1)


def workloads():
    """name -> (threads or 0, maker of (module, inputs))."""
    g = torch.Generator().manual_seed(0)
    rnd = lambda *s: torch.randn(*s, generator=g)
    lin = torch.nn.Linear(512, 2048, bias=False)
    return {
        "tiny": (0, lambda: (fn(lambda x, w, b: torch.relu(x * w + b)), [rnd(8, 8), rnd(8, 8), rnd(8)])),
        "pointwise": (0, lambda: (fn(pointwise), [rnd(1 << 20)])),
        "pointwise_24": (0, lambda: (fn(pointwise), [rnd(1 << 24)])),
        "axpb_24": (0, lambda: (fn(lambda x: x * 1.5 + 0.5), [rnd(1 << 24)])),
        "bias_gelu_res_ln": (0, lambda: (fn(bias_gelu_res_ln), [rnd(512, 1024), rnd(512, 1024), rnd(1024), rnd(1024), rnd(1024)])),
        "masked_softmax": (0, lambda: (fn(masked_softmax), [rnd(1, 12, 256, 256), torch.ones(256, 256, dtype=torch.bool).tril()])),
        "mlp_8x512": (0, lambda: (Mlp(512, 2048, 3).eval(), [rnd(8, 512)])),
        "matmul_512_1t": (1, lambda: (fn(torch.matmul), [rnd(512, 512), rnd(512, 512)])),
        "linear_8x2048x512_1t": (1, lambda: (lin.eval(), [rnd(8, 512)])),
        "digits_64": (0, lambda: (Digits().eval(), [rnd(64, 1, 8, 8)])),
    }


def onnx_session(module, inputs, threads):
    """The module in ONNX Runtime with its default optimisations; its inputs stay in NumPy arrays."""
    import onnxruntime as ort
    names = [f"x{i}" for i in range(len(inputs))]
    buf = io.BytesIO()
    torch.onnx.export(module, tuple(inputs), buf, input_names=names, output_names=["y"], dynamo=False, opset_version=20)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(buf.getvalue(), options, providers=["CPUExecutionProvider"])
    feed = {n: t.numpy() for n, t in zip(names, inputs) if n in [i.name for i in session.get_inputs()]}
    return lambda: session.run(["y"], feed)[0]


class Peer:
    """One workload in one mode: call() runs it once."""

    def __init__(self, name, mode, threads):
        own, make = workloads()[name]
        self.threads = own or threads
        torch.set_num_threads(self.threads)
        torch.manual_seed(0)
        module, self.inputs = make()
        with torch.inference_mode():
            wide = [t.double() if t.is_floating_point() else t for t in self.inputs]
            want = module.double()(*wide)
            module.float()
            if mode == "ort":
                self.fn = onnx_session(module, self.inputs, self.threads)
            else:
                torch._dynamo.reset()
                run = module if mode == "eager" else torch.compile(module, fullgraph=True, mode=None if mode == "default" else mode)
                self.fn = lambda: run(*self.inputs)
            start = time.perf_counter()
            got = self.fn()
            self.first_call_s = time.perf_counter() - start
            torch.testing.assert_close(torch.as_tensor(got).double(), want, rtol=1e-4, atol=2e-3)

    def time(self, budget_s):
        """(p25, median, p75) of single calls in ms, and one call's wall time in us: the median of
        seven batches back to back."""
        torch.set_num_threads(self.threads)
        with torch.inference_mode():
            for _ in range(3):
                self.fn()
            ms, t0 = [], time.perf_counter()
            while (time.perf_counter() - t0 < budget_s and len(ms) < 20000) or len(ms) < 5:
                s = time.perf_counter()
                self.fn()
                ms.append((time.perf_counter() - s) * 1e3)
            ms.sort()
            mid = ms[len(ms) // 2]
            calls, walls = min(700, int(budget_s * 1e3 / mid / 7) + 3), []
            for _ in range(7):
                s = time.perf_counter()
                for _ in range(calls):
                    self.fn()
                walls.append((time.perf_counter() - s) / calls * 1e6)
        wall = sorted(walls)[3]
        return {"ms": mid, "p25_ms": ms[len(ms) // 4], "p75_ms": ms[len(ms) * 3 // 4], "wall_us": wall}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--modes", default="eager,default,ort")
    ap.add_argument("--only", default="")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = ap.parse_args()
    print(json.dumps({"torch": torch.__version__, "threads": a.threads}), flush=True)
    for name in filter(None, a.only.split(",")) if a.only else workloads():
        for mode in a.modes.split(","):
            try:
                p = Peer(name, mode, a.threads)
                row = {"workload": name, "mode": mode, **p.time(0.7), "first_call_s": p.first_call_s}
            except Exception as e:  # a peer's failure is a row, not the end of the run
                row = {"workload": name, "mode": mode, "error": f"{type(e).__name__}: {str(e)[:200]}"}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
