#!/usr/bin/env python3
"""Races bench against PyTorch and ONNX Runtime: both in one run on one machine, interleaved, ratios with their spread.

    python3 race.py [--bench build/release/bench/bench] [--only NAME,...] [--modes eager,default,ort] [--repeats 21]
                    [--budget 0.06] [--threads N] [--json FILE]

Every repeat times each contestant once (the median of single calls within the budget), in an order that rotates. A ratio
is the peer's time over ours of the same repeat, so above 1 is faster than the peer; 'best' is the fastest peer of that
repeat. A goal counts as met if the 25th percentile of the ratios meets it. Rows named _1t run on one thread and are also
given as a part of the multiply-add peak, axpb_24 as a part of a plain copy, each measured in the same repeats.
"""
import argparse, json, os, subprocess, sys, time, warnings

warnings.filterwarnings("ignore")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peer  # noqa: E402

# row: the goal for the ratio to the best peer
GOALS = {"tiny": 1.3, "pointwise": 1.3, "pointwise_24": 1.3, "axpb_24": 1.0, "bias_gelu_res_ln": 1.3, "masked_softmax": 1.3,
         "mlp_8x512": 1.3, "matmul_512_1t": 1.0, "linear_8x2048x512_1t": 1.0, "digits_64": 1.0}
FLOP = {"matmul_512_1t": 2 * 512 ** 3, "linear_8x2048x512_1t": 2 * 8 * 2048 * 512}


class Bench:
    """The bench program, asked over a pipe."""

    def __init__(self, path, threads):
        env = dict(os.environ, BENCH_THREADS=str(threads))
        self.p = subprocess.Popen([path, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ask(self, line):
        self.p.stdin.write(line + "\n")
        self.p.stdin.flush()
        answer = self.p.stdout.readline()
        if not answer:
            raise RuntimeError(f"bench ended at {line!r} with status {self.p.wait()}")
        return json.loads(answer)


def quartiles(v):
    v = sorted(v)
    return [v[len(v) // 4], v[len(v) // 2], v[len(v) * 3 // 4]]


def race(name, bench, modes, repeats, budget, threads):
    peers, failed = {}, {}
    for mode in modes:
        try:
            peers[mode] = peer.Peer(name, mode, threads)
        except Exception as e:  # a peer's failure is told, not the end of the race
            failed[mode] = f"{type(e).__name__}: {str(e)[:160]}"
    times = {m: [] for m in ["tracejit", *peers]}
    walls = {m: [] for m in times}
    ceiling = []
    for i in range(repeats):
        order = list(times)
        order = order[i % len(order):] + order[:i % len(order)]
        for who in order:
            time.sleep(0.02)  # the others' thread pools stop spinning
            t = bench.ask(f"time {name} {budget * 1e3:g}") if who == "tracejit" else peers[who].time(budget)
            times[who].append(t["ms"])
            walls[who].append(t["wall_us"])
        if name in FLOP:
            peak = bench.ask("peak")["peak_gflops"]
            if peak:
                ceiling.append(FLOP[name] / times["tracejit"][-1] * 1e-6 / peak)
        if name == "axpb_24":
            ceiling.append(bench.ask("copy")["copy_ms"] / times["tracejit"][-1])
    row = {"workload": name, "repeats": repeats, "threads": 1 if name.endswith("_1t") else threads, "failed": failed,
           "ms": {m: quartiles(v) for m, v in times.items()}, "wall_us": {m: quartiles(v) for m, v in walls.items()},
           "ratio": {m: quartiles([a / b for a, b in zip(times[m], times["tracejit"])]) for m in peers}}
    if peers:
        best = [min(times[m][i] for m in peers) / times["tracejit"][i] for i in range(repeats)]
        best_wall = [min(walls[m][i] for m in peers) / walls["tracejit"][i] for i in range(repeats)]
        row["ratio"]["best"], row["wall_ratio_best"] = quartiles(best), quartiles(best_wall)
        row["goal"], row["met"] = GOALS.get(name), row["ratio"]["best"][0] >= GOALS.get(name, 1.0)
    if ceiling:
        row["of_ceiling"] = quartiles(ceiling)
    row["first_call_s"] = {"tracejit": bench.ask(f"first {name}")["first_call_s"], **{m: p.first_call_s for m, p in peers.items()}}
    return row


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bench", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/release/bench/bench"))
    ap.add_argument("--only", default="")
    ap.add_argument("--modes", default="eager,default,ort")
    ap.add_argument("--repeats", type=int, default=21)
    ap.add_argument("--budget", type=float, default=0.06, help="seconds a contestant times itself in one repeat")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--json", default="", help="append the rows to this file too")
    a = ap.parse_args()
    names = [n for n in a.only.split(",") if n] or list(peer.workloads())
    bench = Bench(a.bench, a.threads)
    print(f"threads {a.threads}, torch {peer.torch.__version__}, {a.repeats} repeats; times in us: median (quartiles)")
    missed = 0
    for name in names:
        row = race(name, bench, a.modes.split(","), a.repeats, a.budget, a.threads)
        us = {m: [1e3 * x for x in v] for m, v in row["ms"].items()}
        print(f"\n{name}")
        for m, v in us.items():
            ratio = row["ratio"].get(m)
            print(f"  {m:10} {v[1]:10.1f} ({v[0]:.1f}-{v[2]:.1f})  wall {row['wall_us'][m][1]:10.1f}  first call "
                  f"{row['first_call_s'][m]:7.3f} s" + (f"  ratio {ratio[1]:6.2f} ({ratio[0]:.2f}-{ratio[2]:.2f})" if ratio else ""))
        for m, why in row["failed"].items():
            print(f"  {m:10} failed: {why}")
        if "best" in row["ratio"]:
            b = row["ratio"]["best"]
            print(f"  best peer / tracejit: {b[1]:.2f} ({b[0]:.2f}-{b[2]:.2f}), goal {row['goal']}: {'met' if row['met'] else 'MISSED'}")
            missed += not row["met"]
        if "of_ceiling" in row:
            c = row["of_ceiling"]
            print(f"  of {'a plain copy' if name == 'axpb_24' else 'the multiply-add peak'}: {c[1]:.2f} ({c[0]:.2f}-{c[2]:.2f})")
        sys.stdout.flush()
        if a.json:
            with open(a.json, "a") as f:
                f.write(json.dumps(row) + "\n")
    print(f"\n{len(names)} rows, {missed} goals missed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
