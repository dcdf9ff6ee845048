// tests/embed/warm.cpp: a C++ host that starts with plans for the shapes it had the last time.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <tracejit.hpp>
#include <unistd.h>
#include <vector>

static trace::tensor run_once(const trace::context &ctx, const trace::region &r, const trace::tensor &w,
                              std::int64_t batch) {
    std::vector<float> v(static_cast<std::size_t>(batch) * 6, 0.5f);
    const trace::tensor x = trace::from(ctx, trace::dtype::f32, v.data(), {batch, 6});
    trace::tensor y;
    trace::run run(r, {x});
    if (run) {
        y = trace::softmax(trace::linear(x, w), -1);
    }
    trace::check(run.end(y));
    return y;
}

static int expect(bool ok, const char *what) {
    if (!ok) {
        std::fprintf(stderr, "%s (last error: %s)\n", what, trace_last_error(nullptr));
    }
    return ok ? 0 : 1;
}

int main() {
    char dir[] = "/tmp/tj-warm-XXXXXX";
    if (!mkdtemp(dir)) {
        return 1;
    }
    const std::string path = std::string(dir) + "/model.profile";
    int bad = 0;
    try {
        trace::context ctx;
        ctx.check();
        const std::vector<float> ws(4 * 6, 0.25f);
        const trace::tensor w = trace::from(ctx, trace::dtype::f32, ws.data(), {4, 6});
        {
            trace::region model(ctx, "model");
            bad += expect(model.warmup({{0, 2, {8, 6}}}) == TRACE_ERR_STATE, "warm-up without a recording");
            (void)run_once(ctx, model, w, 3);
            trace::check(model.warmup({{0, 2, {8, 6}}}));
            bad += expect(model.warmup(std::vector<trace_shape>{{0, 2, {8, 7}}}) == TRACE_ERR_SHAPE, "a wrong shape");
            (void)run_once(ctx, model, w, 8);
            bad += expect(model.stats().misses == 1, "a run with a shape warmed up made a plan");
            trace::check(model.save_profile(path.c_str()));
        }
        { // one graph for declared sizes, and no other
            trace::region model(ctx, "model");
            trace::check(model.dynamic(0, 0, 1, 16));
            trace::check(model.budget(TRACE_BUDGET_COMPILES, 1, TRACE_BUDGET_FAIL));
            trace::check(ctx.budget(TRACE_BUDGET_GRAPHS, 100, TRACE_BUDGET_EVICT));
            for (int n : {3, 8, 1, 16})
                (void)run_once(ctx, model, w, n);
            bad += expect(model.dynamic(0, 0, 1, 17) == TRACE_ERR_STATE, "bounds after a run");
            bad += expect(model.budget(TRACE_BUDGET_COMPILES, 0, TRACE_BUDGET_FAIL) == TRACE_ERR_ARGUMENT, "no budget");
            trace::check(ctx.budget(TRACE_BUDGET_GRAPHS, -1, TRACE_BUDGET_EVICT));
        }
        { // the next start
            trace::region model(ctx, "model");
            trace::check(model.load_profile(path.c_str()));
            (void)run_once(ctx, model, w, 3);
            const std::vector<float> y = run_once(ctx, model, w, 8).to_vector<float>();
            bad += expect(model.stats().misses == 1, "a shape of the profile was not warm");
            bad += expect(y.size() == 32 && y[0] == 0.25f, "values");
            bad += expect(model.load_profile(dir) == TRACE_ERR_ARGUMENT, "a directory as profile");
        }
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        bad++;
    }
    (void)unlink(path.c_str());
    (void)rmdir(dir);
    return bad ? 1 : 0;
}
