// The smallest program in C++: y = relu(x * w + 1), recorded, compiled and run.
#include <cstdio>
#include <exception>
#include <tracejit.hpp>
#include <vector>

int main() {
    const float xs[] = {-3, -1, 0, 1, 3, 5}, ws[] = {1, 2, 3};
    try {
        trace::context ctx;
        ctx.check();
        trace::region hello(ctx, "hello");
        hello.check();
        const trace::tensor x = trace::wrap_const(ctx, trace::dtype::f32, xs, {2, 3});
        const trace::tensor w = trace::from(ctx, trace::dtype::f32, ws, {3});
        trace::tensor y;
        for (int i = 0; i < 3; i++) { // the first run compiles, the others find the plan
            trace::run run(hello, {x});
            if (run) {
                y = trace::relu(x * w + 1); // an exception here would abandon the run
            }
            trace::check(run.end(y));
        }
        const std::vector<float> v = y.to_vector<float>();
        for (float e : v) {
            std::printf("%g ", static_cast<double>(e));
        }
        const trace_stats s = hello.stats();
        std::printf("\n%llu runs, %llu hits, %llu kernel\n", static_cast<unsigned long long>(s.runs),
                    static_cast<unsigned long long>(s.hits), static_cast<unsigned long long>(s.kernels));
        return v[5] == 16 ? 0 : 1;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
