// tests/embed/guest.cpp: a C++ host: exceptions that leave a body, at any depth, and an event handler that throws in
// spite of the rules. The guard of tracejit.hpp abandons; nothing of the host's is lost, and the next run is right.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tracejit.hpp"

static int failures;
#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                                            \
            std::fprintf(stderr, __VA_ARGS__);                                                                         \
            std::fprintf(stderr, " (last error: %s)\n", trace_last_error(nullptr));                                    \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

struct host_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

static int throw_on = -1; // kind of event
static int thrown;
static void on_event(void *, const trace_event *e) {
    if (e->kind == throw_on) {
        thrown++;
        throw host_error(e->what);
    }
}

static std::uint64_t live(const trace::context &ctx) {
    trace_stats s{};
    s.size = sizeof s;
    trace_context_stats(ctx.get(), &s);
    return s.bytes_live;
}

struct host {
    trace::context ctx;
    trace::region outer, inner;
    float data[12];
    trace::tensor x;
    host(std::uint32_t max_graphs = 0) : ctx(options()), outer(ctx, "outer", graphs(max_graphs)), inner(ctx, "inner") {
        for (int i = 0; i < 12; i++)
            data[i] = static_cast<float>(i) - 5;
        x = trace::wrap(ctx, trace::dtype::f32, data, {3, 4});
    }
    static trace_context_options options() {
        trace_context_options o{};
        o.on_event = on_event;
        o.threads = 2;
        return o;
    }
    static trace_region_options graphs(std::uint32_t n) {
        trace_region_options o{};
        o.max_graphs = n;
        return o;
    }
    // sum(relu(x) * k + [read] ...), with what the flags say in between.
    double once(double k, int leave, bool read, int rows = 3) {
        trace::tensor y, part = rows == 3 ? x : trace::narrow(x, 0, 0, rows);
        if (trace::run run{outer, {part}}) {
            trace::tensor h = trace::relu(part) * k;
            if (leave == 1)
                throw host_error("outer");
            if (trace::run in{inner, {h}}) {
                trace::tensor z = h + 1;
                if (leave == 2)
                    throw host_error("inner");
                trace::check(in.end(z));
                h = std::move(z);
            }
            if (read) {
                double v = trace::sum(h).item_f64();
                if (leave == 3)
                    throw host_error("after a readback");
                h = h + v;
            }
            y = trace::sum(h);
            if (leave == 4)
                return -1; // an early return
            trace::check(run.end(y));
        }
        return y.item_f64();
    }
    static double want(double k, bool read, int rows = 3) {
        double s = 0;
        for (int i = 0; i < 4 * rows; i++)
            s += (i > 5 ? i - 5 : 0) * k + 1;
        return read ? s + s * 4 * rows : s;
    }
};

static void bodies_left() {
    host h;
    std::uint64_t before = 0;
    for (int turn = 0; turn < 40; turn++) {
        int leave = turn % 5;
        bool read = turn % 2;
        bool left = false;
        try {
            double v = h.once(2, leave, read);
            left = leave == 4 && v == -1;
            if (!left)
                CHECK(v == host::want(2, read), "leave %d: %g", leave, v);
        } catch (const host_error &) {
            left = true;
        }
        CHECK(left == (leave != 0 && (leave != 3 || read)), "leave %d", leave);
        CHECK(!trace_failed(h.ctx.get()), "leave %d", leave);
        CHECK(h.once(3, 0, read) == host::want(3, read), "after leave %d", leave);
        if (turn == 9)
            before = live(h.ctx);
    }
    CHECK(live(h.ctx) == before, "%llu bytes live, not %llu", static_cast<unsigned long long>(live(h.ctx)),
          static_cast<unsigned long long>(before));
}

// On threads, all at once, in one region.
static void threads_left() {
    host h;
    std::vector<std::thread> all;
    std::atomic<int> bad{0};
    for (int t = 0; t < 6; t++)
        all.emplace_back([&h, &bad, t] {
            for (int turn = 0; turn < 30; turn++) {
                try {
                    double v = h.once(t, (turn + t) % 5, turn % 2);
                    bad += v != -1 && v != host::want(t, turn % 2);
                } catch (const host_error &) {}
            }
        });
    for (std::thread &t : all)
        t.join();
    CHECK(bad == 0, "%d wrong", bad.load());
}

// A handler that throws, at each kind of event there is here; in a region, in a readback, in an op alone.
[[maybe_unused]] static void handlers_throw() {
    const int kinds[] = {TRACE_EVENT_COMPILE, TRACE_EVENT_RECOMPILE, TRACE_EVENT_BREAK, TRACE_EVENT_EVICT};
    for (int kind : kinds) {
        host h(2);
        thrown = 0;
        for (int turn = 0; turn < 12; turn++) {
            bool read = turn % 3 == 1;
            int rows = 1 + turn % 3;
            throw_on = kind;
            try {
                double v = h.once(2, 0, read, rows);
                CHECK(v == host::want(2, read, rows), "kind %d, turn %d: %g", kind, turn, v);
            } catch (const host_error &) {}
            throw_on = -1;
            trace_abandon(h.outer.get()); // of an op alone
            CHECK(!trace_failed(h.ctx.get()), "kind %d, turn %d", kind, turn);
            double v = h.once(2, 0, read, rows); // the graph whose event it was
            CHECK(v == host::want(2, read, rows), "kind %d, turn %d, again: %g", kind, turn, v);
        }
        CHECK(thrown > 0, "kind %d never came", kind);
        CHECK(trace_context_shutdown(h.ctx.get(), 5000) == TRACE_OK, "kind %d: shutdown", kind);
    }
    host h;
    for (int turn = 0; turn < 6; turn++) { // ops alone
        throw_on = TRACE_EVENT_COMPILE;
        try {
            trace::tensor t = turn % 2 ? trace::exp(h.x) : trace::cat({h.x, h.x}, turn % 3 ? 0 : 1);
        } catch (const host_error &) {
            trace_abandon(h.inner.get()); // of any region: there is no run of one, but the op has to go
        }
        throw_on = -1;
        trace::tensor t = trace::amax(h.x);
        CHECK(t.item_f64() == 6, "after an op alone");
        CHECK(h.once(2, 0, true) == host::want(2, true), "after an op alone");
    }
    CHECK(trace_context_shutdown(h.ctx.get(), 5000) == TRACE_OK, "shutdown");
}

int main() {
    bodies_left();
    threads_left();
#ifndef __SANITIZE_ADDRESS__ // the plans whose events threw are lost
    handlers_throw();
#endif
    return failures ? 1 : 0;
}
