// tracejit.hpp: the C++17 face of tracejit.h: handles that release themselves, operators, a guard that abandons.
//
//     trace::context ctx;
//     trace::region model(ctx, "model");
//     trace::tensor x = trace::wrap_const(ctx, trace::dtype::f32, data, {8, 512}), y;
//     if (trace::run run{model, {x}}) {
//         y = trace::relu(trace::linear(x, w, b)) * 2.0;
//         trace::check(run.end(y));
//     }
//
// A run that is left before its end (exception, early return) is abandoned. Nothing throws but check and the members
// that say so; everything else reports as the C functions do: a null tensor, a status, trace_last_error. Without
// exceptions (-fno-exceptions) what would throw prints its text to stderr and aborts: ask code(), valid() and statuses.
// Ops carry the caller's file and line. The macros of tracejit.h aren't defined by this header: the C functions remain
// under their names.
//
// `trace` is a struct, not a namespace, so that it stands beside a function or a variable `trace` of the host; short
// names come by `using tensor = trace::tensor;`. Operators are found by their operands.
#ifndef TRACEJIT_HPP
#define TRACEJIT_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if !defined(TRACEJIT_H) && !defined(TRACE_NO_MACROS)
#define TRACE_NO_MACROS
#include "tracejit.h"
#undef TRACE_NO_MACROS
#else
#include "tracejit.h"
#endif

// Macros of hosts with the names of members; they are back at the end.
#pragma push_macro("check")
#undef check
#pragma push_macro("abs")
#undef abs
#pragma push_macro("round")
#undef round
#pragma push_macro("sign")
#undef sign
#pragma push_macro("square")
#undef square
#pragma push_macro("error")
#undef error

#define TRACE_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

struct trace {
    enum class dtype {
        boolean = TRACE_BOOL,
        u8 = TRACE_U8,
        i32 = TRACE_I32,
        i64 = TRACE_I64,
        f16 = TRACE_F16,
        bf16 = TRACE_BF16,
        f32 = TRACE_F32,
        f64 = TRACE_F64
    };
    using status = trace_status;

    // ---- errors ---------------------------------------------------------------------------------------

    class error : public std::runtime_error {
      public:
        error(status s, const std::string &text) : std::runtime_error(text), status_(s) {}
        status code() const noexcept { return status_; }

      private:
        status status_;
    };

    // Throws an error; without exceptions: prints its text and aborts.
    [[noreturn]] static void fail(status s, const std::string &text) {
#if defined(__cpp_exceptions)
        throw error(s, text);
#else
        (void)s;
        std::fprintf(stderr, "tracejit: %s\n", text.c_str());
        std::abort();
#endif
    }
    // Fails with what the calling thread's last failure was, unless s is TRACE_OK.
    static void check(status s) {
        if (s != TRACE_OK) {
            fail(s, std::string(trace_status_name(s)) + ": " + trace_last_error(nullptr));
        }
    }

    // ---- context and region -----------------------------------------------------------------------------

    // Counted: copies share the context.
    class context {
      public:
        context() { status_ = trace_context_create(nullptr, &c_); }
        explicit context(trace_context_options options) {
            options.size = sizeof options;
            status_ = trace_context_create(&options, &c_);
        }
        context(const context &) = delete;
        context &operator=(const context &) = delete;
        context(context &&o) noexcept : c_(std::exchange(o.c_, nullptr)), status_(o.status_) {}
        context &operator=(context &&o) noexcept {
            std::swap(c_, o.c_);
            std::swap(status_, o.status_);
            return *this;
        }
        ~context() { trace_context_release(c_); }
        trace_context *get() const noexcept { return c_; }
        explicit operator bool() const noexcept { return c_ != nullptr; }
        status code() const noexcept { return status_; }
        const context &check() const { // throws when creation failed
            trace::check(status_);
            return *this;
        }
        const char *describe() const { return trace_context_describe(c_); }
        status shutdown(int timeout_ms) const { return trace_context_shutdown(c_, timeout_ms); }
        std::size_t trim() const { return trace_context_trim(c_); }
        trace_stats stats() const {
            trace_stats s{};
            s.size = sizeof s;
            trace_context_stats(c_, &s);
            return s;
        }
        // Limits what all regions and single ops together compile and keep; -1: no limit.
        status budget(trace_budget what, std::int64_t limit, trace_budget_policy policy) const {
            return trace_context_budget(c_, what, limit, policy);
        }
        status timeline_start(const char *path) const { return trace_timeline_start(c_, path); }
        status timeline_stop() const { return trace_timeline_stop(c_); }
        std::string report(trace_format f = TRACE_FORMAT_TEXT) const {
            std::string text;
            std::size_t need = 0;
            status s = trace_context_report(c_, f, nullptr, 0, &need);
            while (s == TRACE_OK || s == TRACE_ERR_MEMORY) { // counters grow between two calls
                text.resize(need + 256);
                s = trace_context_report(c_, f, text.data(), text.size(), &need);
                if (s == TRACE_OK) {
                    text.resize(need);
                    return text;
                }
            }
            return std::string();
        }

      private:
        trace_context *c_ = nullptr;
        status status_ = TRACE_OK;
    };

    class region {
      public:
        region(const context &ctx, const char *name) { status_ = trace_region_create(ctx.get(), name, nullptr, &r_); }
        region(const context &ctx, const char *name, trace_region_options options) {
            options.size = sizeof options;
            status_ = trace_region_create(ctx.get(), name, &options, &r_);
        }
        region(const region &) = delete;
        region &operator=(const region &) = delete;
        region(region &&o) noexcept : r_(std::exchange(o.r_, nullptr)), status_(o.status_) {}
        region &operator=(region &&o) noexcept {
            std::swap(r_, o.r_);
            std::swap(status_, o.status_);
            return *this;
        }
        ~region() { trace_region_release(r_); }
        trace_region *get() const noexcept { return r_; }
        explicit operator bool() const noexcept { return r_ != nullptr; }
        status code() const noexcept { return status_; }
        const region &check() const { // throws when creation failed
            trace::check(status_);
            return *this;
        }
        trace_stats stats() const {
            trace_stats s{};
            s.size = sizeof s;
            trace_region_stats(r_, &s);
            return s;
        }
        // Bounds of a dim of a declared input that varies; before the first run.
        status dynamic(int input, int dim, std::int64_t min, std::int64_t max) const {
            return trace_region_dynamic(r_, input, dim, min, max);
        }
        // Buckets of a dim of a declared input; before the first run. sizes go with TRACE_BUCKETS_LIST.
        status buckets(int input, int dim, trace_buckets kind, std::initializer_list<std::int64_t> sizes = {}) const {
            return trace_region_buckets(r_, input, dim, kind, sizes.size() ? sizes.begin() : nullptr, sizes.size());
        }
        // Limits what the region compiles and keeps; -1: no limit.
        status budget(trace_budget what, std::int64_t limit, trace_budget_policy policy) const {
            return trace_region_budget(r_, what, limit, policy);
        }
        // Makes the plan for these shapes of declared inputs ahead of a run: r.warmup({{0, 2, {8, 512}}}).
        status warmup(std::initializer_list<trace_shape> shapes) const {
            return trace_warmup(r_, shapes.begin(), shapes.size());
        }
        status warmup(const std::vector<trace_shape> &shapes) const {
            return trace_warmup(r_, shapes.data(), shapes.size());
        }
        status save_profile(const char *path) const { return trace_profile_save(r_, path); }
        status load_profile(const char *path) const { return trace_profile_load(r_, path); }
        // Runs from now on time their kernels, for explain.
        status profile(bool on) const { return trace_region_profile(r_, on); }
        std::string explain(trace_format f = TRACE_FORMAT_TEXT) const {
            std::string text;
            std::size_t need = 0;
            status s = trace_explain(r_, f, nullptr, 0, &need);
            while (s == TRACE_ERR_MEMORY && need) { // counters grow between two calls
                text.resize(need + need / 8 + 256);
                s = trace_explain(r_, f, text.data(), text.size(), &need);
                if (s == TRACE_OK) {
                    text.resize(need);
                    return text;
                }
            }
            return std::string();
        }

      private:
        trace_region *r_ = nullptr;
        status status_ = TRACE_OK;
    };

    // ---- arguments ----------------------------------------------------------------------------------------

    // Shape, strides, dims, amounts: {2, 3}.
    class dims {
      public:
        dims() noexcept {}
        dims(std::initializer_list<std::int64_t> l) { set(l.begin(), l.size()); }
        dims(const std::vector<std::int64_t> &v) { set(v.data(), v.size()); }
        // Of too many the count is kept and the values are not: the op then reports the count.
        const std::int64_t *data() const noexcept { return n_ && n_ <= v_.size() ? v_.data() : nullptr; }
        std::size_t size() const noexcept { return n_; }

      private:
        void set(const std::int64_t *p, std::size_t n) {
            n_ = n;
            for (std::size_t i = 0; i < n && i < v_.size(); i++) {
                v_[i] = p[i];
            }
        }
        std::array<std::int64_t, 2 * TRACE_MAX_RANK> v_{};
        std::size_t n_ = 0;
    };

    // Height and width: 3 or {3, 5}; {} is the op's default.
    class pair {
      public:
        pair() noexcept {}
        pair(std::int64_t both) : v_{both, both}, given_(true) {}
        pair(std::int64_t h, std::int64_t w) : v_{h, w}, given_(true) {}
        const std::int64_t *data() const noexcept { return given_ ? v_.data() : nullptr; }

      private:
        std::array<std::int64_t, 2> v_{};
        bool given_ = false;
    };

    // A number: integers and floats keep their kind, which decides the promotion.
    class scalar {
      public:
        template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
        scalar(T v) : f_(static_cast<double>(v)), i_(to_int(v)), floating_(std::is_floating_point_v<T>) {}
        bool floating() const noexcept { return floating_; }
        double f() const noexcept { return f_; }
        std::int64_t i() const noexcept { return i_; }

      private:
        template <class T> static std::int64_t to_int(T v) {
            if constexpr (std::is_floating_point_v<T>) {
                return 0;
            } else {
                return static_cast<std::int64_t>(v);
            }
        }
        double f_;
        std::int64_t i_;
        bool floating_;
    };

    // ---- tensors --------------------------------------------------------------------------------------------

    class operand;

    // A counted handle: a tensor, or, inside a run, a recorded value. Copies add a reference.
    class tensor {
      public:
        tensor() noexcept {}
        explicit tensor(trace_tensor *owned) noexcept : t_(owned) {}
        tensor(const tensor &o) : t_(trace_retain(o.t_)) {}
        tensor(tensor &&o) noexcept : t_(std::exchange(o.t_, nullptr)) {}
        tensor &operator=(tensor o) noexcept {
            std::swap(t_, o.t_);
            return *this;
        }
        ~tensor() { trace_release(t_); }
        static tensor none() noexcept { return tensor(TRACE_NONE); } // an optional operand that is absent

        trace_tensor *get() const noexcept { return t_; }
        trace_tensor *release() noexcept { return std::exchange(t_, nullptr); } // the caller's from here on
        void reset(trace_tensor *owned = nullptr) noexcept { trace_release(std::exchange(t_, owned)); }
        // Not whether its value is true: whether there is one.
        bool valid() const noexcept { return t_ != nullptr; }
        const tensor &check() const { // throws when the op that made it failed
            if (!t_) {
                fail(TRACE_ERR_ARGUMENT, trace_last_error(nullptr));
            }
            return *this;
        }

        int rank() const { return trace_rank(t_); }
        std::int64_t size(std::int64_t dim) const { return trace_size(t_, dim); }
        std::int64_t stride(std::int64_t dim) const { return trace_stride(t_, dim); }
        std::int64_t numel() const { return trace_numel(t_); }
        dtype type() const { return static_cast<dtype>(trace_dtype_of(t_)); }
        std::vector<std::int64_t> shape() const {
            std::vector<std::int64_t> s;
            for (int i = 0, n = rank(); i < n; i++) {
                s.push_back(size(i));
            }
            return s;
        }

        status write(const void *src, std::size_t bytes) const { return trace_write(t_, src, bytes); }
        status modified() const { return trace_modified(t_); }
        status read(void *dst, std::size_t bytes, TRACE_AT) const { return trace_read_at(t_, dst, bytes, file, line); }
        status item(std::int64_t &v, TRACE_AT) const { return trace_item_i64_at(t_, &v, file, line); }
        status item(double &v, TRACE_AT) const { return trace_item_f64_at(t_, &v, file, line); }
        status print(const char *name, TRACE_AT) const { return trace_print_at(t_, name, file, line); }
        status print_later(const char *name, TRACE_AT) const { return trace_print_later_at(t_, name, file, line); }
        tensor item_later(TRACE_AT) const { return tensor(trace_item_later_at(t_, file, line)); }
        // These throw.
        std::int64_t item_i64(TRACE_AT) const {
            std::int64_t v = 0;
            trace::check(trace_item_i64_at(t_, &v, file, line));
            return v;
        }
        double item_f64(TRACE_AT) const {
            double v = 0;
            trace::check(trace_item_f64_at(t_, &v, file, line));
            return v;
        }
        const void *data(TRACE_AT) const {
            const void *p = nullptr;
            trace::check(trace_data_at(t_, &p, file, line));
            return p;
        }
        template <class T> std::vector<T> to_vector(TRACE_AT) const {
            std::int64_t n = numel();
            std::vector<T> v(n > 0 ? static_cast<std::size_t>(n) : 0);
            trace::check(trace_read_at(t_, v.data(), v.size() * sizeof(T), file, line));
            return v;
        }

        // swapped: what the op is with its operands exchanged, for a number on the left.
#define TRACE_OPERATOR(sign, name, swapped)                                                                            \
    friend tensor operator sign(const operand &a, const operand &b) {                                                  \
        if (a.is_scalar()) {                                                                                           \
            return swapped(b.t(), a.s(), b.file(), b.line());                                                          \
        }                                                                                                              \
        return b.is_scalar() ? name(a.t(), b.s(), a.file(), a.line()) : name(a.t(), b.t(), a.file(), a.line());        \
    }
        TRACE_OPERATOR(+, add, add)
        TRACE_OPERATOR(-, sub, rsub)
        TRACE_OPERATOR(*, mul, mul)
        TRACE_OPERATOR(==, eq, eq)
        TRACE_OPERATOR(!=, ne, ne)
        TRACE_OPERATOR(<, lt, gt)
        TRACE_OPERATOR(<=, le, ge)
        TRACE_OPERATOR(>, gt, lt)
        TRACE_OPERATOR(>=, ge, le)
#undef TRACE_OPERATOR
        friend tensor operator/(const operand &a, const operand &b) {
            if (a.is_scalar()) { // as in PyTorch: the reciprocal, times the number
                tensor r = reciprocal(b.t(), b.file(), b.line());
                return a.s().f() >= 1 && a.s().f() <= 1 ? r : mul(r, a.s(), b.file(), b.line());
            }
            return b.is_scalar() ? div(a.t(), b.s(), a.file(), a.line()) : div(a.t(), b.t(), a.file(), a.line());
        }
        friend tensor operator-(const operand &a) { return neg(a.t(), a.file(), a.line()); }

      private:
        trace_tensor *t_ = nullptr;
    };

    // Several tensors: {a, b}.
    class list {
      public:
        class ref {
          public:
            ref(const tensor &t) : t_(t.get()) {}
            trace_tensor *get() const noexcept { return t_; }

          private:
            trace_tensor *t_;
        };
        list() noexcept {}
        list(std::initializer_list<ref> l) {
            for (const ref &r : l) {
                v_.push_back(r.get());
            }
        }
        list(const std::vector<tensor> &ts) {
            for (const tensor &t : ts) {
                v_.push_back(t.get());
            }
        }
        trace_tensor *const *data() const noexcept { return v_.data(); }
        std::size_t size() const noexcept { return v_.size(); }

      private:
        std::vector<trace_tensor *> v_{};
    };

    static tensor from(const context &c, dtype d, const void *data, const dims &shape) {
        return tensor(trace_from(c.get(), static_cast<trace_dtype>(d), data, shape.data(), shape.size()));
    }
    static tensor wrap(const context &c, dtype d, void *data, const dims &shape) {
        return tensor(trace_wrap(c.get(), static_cast<trace_dtype>(d), data, shape.data(), shape.size()));
    }
    static tensor wrap_const(const context &c, dtype d, const void *data, const dims &shape) {
        return tensor(trace_wrap_const(c.get(), static_cast<trace_dtype>(d), data, shape.data(), shape.size()));
    }
    static tensor wrap(const context &c, trace_tensor_desc desc) {
        desc.size = sizeof desc;
        return tensor(trace_wrap_desc(c.get(), &desc));
    }
    static tensor placeholder(const context &c, dtype d, const dims &shape) {
        return tensor(trace_placeholder(c.get(), static_cast<trace_dtype>(d), shape.data(), shape.size()));
    }

    // ---- runs -----------------------------------------------------------------------------------------------

    // One pass through a region. Converts to true when the body has to run; end() is to be called in either case. Left
    // without end(), it is abandoned. In a TRACE_MODE_EAGER region tensors made inside end with it: outputs excepted,
    // no object of class tensor may keep one longer.
    class run {
      public:
        explicit run(const region &r, const list &in = {}, TRACE_AT)
            : r_(r.get()), open_(true), body_(trace_begin_at(r_, in.data(), in.size(), file, line)) {
            depth()++;
        }
        run(const run &) = delete;
        run &operator=(const run &) = delete;
        ~run() {
            if (open_) {
                trace_abandon(r_);
                (void)close();
            }
        }
        explicit operator bool() const noexcept { return body_; }

        // The outputs become results; all are null on failure.
        status end(TRACE_AT) { return finish(nullptr, 0, file, line); }
        status end(tensor &y, TRACE_AT) {
            tensor *all[] = {&y};
            return finish(all, 1, file, line);
        }
        status end(std::initializer_list<std::reference_wrapper<tensor>> ys, TRACE_AT) {
            std::vector<tensor *> all;
            for (tensor &y : ys) {
                all.push_back(&y);
            }
            return finish(all.data(), all.size(), file, line);
        }

      private:
        // Runs of this class open on the thread: an inner one is an inlined scope.
        static int &depth() noexcept {
            thread_local int n = 0;
            return n;
        }
        status finish(tensor *const *ys, std::size_t n, const char *file, int line) {
            std::vector<trace_tensor *> before, out;
            for (std::size_t i = 0; i < n; i++) {
                trace_tensor *t = ys[i]->get();
                if (!value(t)) { // held over the end; an eager scope gives up its own reference first
                    (void)trace_retain(t);
                    ys[i]->reset();
                } else {
                    (void)ys[i]->release();
                }
                before.push_back(t);
            }
            out = before;
            status s = trace_end_at(r_, out.data(), n, file, line);
            bool inner = close();
            for (std::size_t i = 0; i < n; i++) {
                // A recorded value has no reference left after the outermost end; in an inlined scope it stays what it
                // is.
                if (!value(before[i]) && !(inner && out[i] == before[i])) {
                    trace_release(before[i]);
                }
                ys[i]->reset(out[i]);
            }
            return s;
        }
        static bool value(const trace_tensor *t) noexcept { return reinterpret_cast<std::uintptr_t>(t) % 2 != 0; }
        bool close() noexcept {
            open_ = false;
            return --depth() > 0;
        }
        trace_region *r_;
        bool open_, body_;
    };

    // ---- ops ------------------------------------------------------------------------------------------------
    // As in tracejit.h; ops with a scalar operand take one function for integers and floats.

#define TRACE_UNARY(name)                                                                                              \
    static tensor name(const tensor &x, TRACE_AT) { return tensor(trace_##name##_at(x.get(), file, line)); }
#define TRACE_BINARY(name)                                                                                             \
    static tensor name(const tensor &a, const tensor &b, TRACE_AT) {                                                   \
        return tensor(trace_##name##_at(a.get(), b.get(), file, line));                                                \
    }
#define TRACE_SCALAR_OP(name)                                                                                          \
    static tensor name(const tensor &a, scalar s, TRACE_AT) {                                                          \
        return tensor(s.floating() ? trace_##name##_f_at(a.get(), s.f(), file, line)                                   \
                                   : trace_##name##_i_at(a.get(), s.i(), file, line));                                 \
    }
#define TRACE_INT_OP(name)                                                                                             \
    static tensor name(const tensor &a, std::int64_t s, TRACE_AT) {                                                    \
        return tensor(trace_##name##_i_at(a.get(), s, file, line));                                                    \
    }
// In place: give back their first operand.
#define TRACE_INPLACE(name)                                                                                            \
    static const tensor &name(const tensor &a, const tensor &b, TRACE_AT) {                                            \
        (void)trace_##name##_at(a.get(), b.get(), file, line);                                                         \
        return a;                                                                                                      \
    }
#define TRACE_INPLACE_SCALAR(name)                                                                                     \
    static const tensor &name##_(const tensor &a, scalar s, TRACE_AT) {                                                \
        (void)(s.floating() ? trace_##name##_f__at(a.get(), s.f(), file, line)                                         \
                            : trace_##name##_i__at(a.get(), s.i(), file, line));                                       \
        return a;                                                                                                      \
    }
    TRACE_UNARY(neg)
    TRACE_UNARY(abs)
    TRACE_UNARY(sign)
    TRACE_UNARY(floor)
    TRACE_UNARY(ceil)
    TRACE_UNARY(trunc)
    TRACE_UNARY(round)
    TRACE_UNARY(frac)
    TRACE_UNARY(reciprocal)
    TRACE_UNARY(square)
    TRACE_UNARY(sqrt)
    TRACE_UNARY(rsqrt)
    TRACE_UNARY(exp)
    TRACE_UNARY(log)
    TRACE_UNARY(sin)
    TRACE_UNARY(cos)
    TRACE_UNARY(tanh)
    TRACE_UNARY(erf)
    TRACE_UNARY(sigmoid)
    TRACE_UNARY(relu)
    TRACE_UNARY(relu6)
    TRACE_UNARY(silu)
    TRACE_UNARY(logical_not)
    TRACE_UNARY(bitwise_not)
    TRACE_UNARY(isnan)
    TRACE_UNARY(isinf)
    TRACE_UNARY(contiguous)
    TRACE_UNARY(clone)
    TRACE_BINARY(add)
    TRACE_BINARY(sub)
    TRACE_BINARY(mul)
    TRACE_BINARY(div)
    TRACE_BINARY(floor_divide)
    TRACE_BINARY(remainder)
    TRACE_BINARY(fmod)
    TRACE_BINARY(pow)
    TRACE_BINARY(maximum)
    TRACE_BINARY(minimum)
    TRACE_BINARY(eq)
    TRACE_BINARY(ne)
    TRACE_BINARY(lt)
    TRACE_BINARY(le)
    TRACE_BINARY(gt)
    TRACE_BINARY(ge)
    TRACE_BINARY(logical_and)
    TRACE_BINARY(logical_or)
    TRACE_BINARY(logical_xor)
    TRACE_BINARY(bitwise_and)
    TRACE_BINARY(bitwise_or)
    TRACE_BINARY(bitwise_xor)
    TRACE_BINARY(matmul)
    TRACE_BINARY(bmm)
    TRACE_SCALAR_OP(add)
    TRACE_SCALAR_OP(sub)
    TRACE_SCALAR_OP(mul)
    TRACE_SCALAR_OP(div)
    TRACE_SCALAR_OP(floor_divide)
    TRACE_SCALAR_OP(remainder)
    TRACE_SCALAR_OP(fmod)
    TRACE_SCALAR_OP(pow)
    TRACE_SCALAR_OP(eq)
    TRACE_SCALAR_OP(ne)
    TRACE_SCALAR_OP(lt)
    TRACE_SCALAR_OP(le)
    TRACE_SCALAR_OP(gt)
    TRACE_SCALAR_OP(ge)
    TRACE_SCALAR_OP(rsub)
    TRACE_INT_OP(bitwise_and)
    TRACE_INT_OP(bitwise_or)
    TRACE_INT_OP(bitwise_xor)
    TRACE_INPLACE(add_)
    TRACE_INPLACE(sub_)
    TRACE_INPLACE(mul_)
    TRACE_INPLACE(div_)
    TRACE_INPLACE_SCALAR(add)
    TRACE_INPLACE_SCALAR(sub)
    TRACE_INPLACE_SCALAR(mul)
    TRACE_INPLACE_SCALAR(div)
    TRACE_INPLACE_SCALAR(fill)
#undef TRACE_UNARY
#undef TRACE_BINARY
#undef TRACE_SCALAR_OP
#undef TRACE_INT_OP
#undef TRACE_INPLACE
#undef TRACE_INPLACE_SCALAR

    static tensor where(const tensor &condition, const tensor &a, scalar s, TRACE_AT) {
        return tensor(s.floating() ? trace_where_f_at(condition.get(), a.get(), s.f(), file, line)
                                   : trace_where_i_at(condition.get(), a.get(), s.i(), file, line));
    }
    static tensor masked_fill(const tensor &x, const tensor &mask, scalar s, TRACE_AT) {
        return tensor(s.floating() ? trace_masked_fill_f_at(x.get(), mask.get(), s.f(), file, line)
                                   : trace_masked_fill_i_at(x.get(), mask.get(), s.i(), file, line));
    }
    static tensor clamp(const tensor &x, scalar lo, scalar hi, TRACE_AT) {
        return tensor(lo.floating() || hi.floating() ? trace_clamp_f_at(x.get(), lo.f(), hi.f(), file, line)
                                                     : trace_clamp_i_at(x.get(), lo.i(), hi.i(), file, line));
    }
    static tensor full(const context &ctx, const dims &shape, scalar v, dtype d = dtype::f32, TRACE_AT) {
        trace_dtype to = static_cast<trace_dtype>(d);
        return tensor(v.floating() ? trace_full_f_at(ctx.get(), shape.data(), shape.size(), v.f(), to, file, line)
                                   : trace_full_i_at(ctx.get(), shape.data(), shape.size(), v.i(), to, file, line));
    }
    static tensor gelu(const tensor &x, int approximate = TRACE_GELU_NONE, TRACE_AT) {
        return tensor(trace_gelu_at(x.get(), approximate, file, line));
    }
    static tensor softplus(const tensor &x, double beta = 1, double threshold = 20, TRACE_AT) {
        return tensor(trace_softplus_at(x.get(), beta, threshold, file, line));
    }
    static tensor to(const tensor &x, dtype dtype_ = dtype::f32, TRACE_AT) {
        return tensor(trace_to_at(x.get(), static_cast<trace_dtype>(dtype_), file, line));
    }
    static tensor where(const tensor &condition, const tensor &a, const tensor &b, TRACE_AT) {
        return tensor(trace_where_at(condition.get(), a.get(), b.get(), file, line));
    }
    static tensor clamp(const tensor &x, const tensor &lo, const tensor &hi, TRACE_AT) {
        return tensor(trace_clamp_at(x.get(), lo.get(), hi.get(), file, line));
    }
    static const tensor &copy_(const tensor &dst, const tensor &src, TRACE_AT) {
        (void)trace_copy__at(dst.get(), src.get(), file, line);
        return dst;
    }
    static const tensor &index_copy_(const tensor &dst, int64_t dim, const tensor &index, const tensor &src, TRACE_AT) {
        (void)trace_index_copy__at(dst.get(), dim, index.get(), src.get(), file, line);
        return dst;
    }
    static tensor sum(const tensor &x, const dims &shape = {}, bool keepdim = false, TRACE_AT) {
        return tensor(trace_sum_at(x.get(), shape.data(), shape.size(), keepdim, file, line));
    }
    static tensor mean(const tensor &x, const dims &shape = {}, bool keepdim = false, TRACE_AT) {
        return tensor(trace_mean_at(x.get(), shape.data(), shape.size(), keepdim, file, line));
    }
    static tensor var(const tensor &x, const dims &shape = {}, int64_t correction = 1, bool keepdim = false, TRACE_AT) {
        return tensor(trace_var_at(x.get(), shape.data(), shape.size(), correction, keepdim, file, line));
    }
    static tensor amax(const tensor &x, const dims &shape = {}, bool keepdim = false, TRACE_AT) {
        return tensor(trace_amax_at(x.get(), shape.data(), shape.size(), keepdim, file, line));
    }
    static tensor amin(const tensor &x, const dims &shape = {}, bool keepdim = false, TRACE_AT) {
        return tensor(trace_amin_at(x.get(), shape.data(), shape.size(), keepdim, file, line));
    }
    static tensor any(const tensor &x, const dims &shape = {}, bool keepdim = false, TRACE_AT) {
        return tensor(trace_any_at(x.get(), shape.data(), shape.size(), keepdim, file, line));
    }
    static tensor all(const tensor &x, const dims &shape = {}, bool keepdim = false, TRACE_AT) {
        return tensor(trace_all_at(x.get(), shape.data(), shape.size(), keepdim, file, line));
    }
    static tensor argmax(const tensor &x, int64_t dim = TRACE_ALL_DIMS, bool keepdim = false, TRACE_AT) {
        return tensor(trace_argmax_at(x.get(), dim, keepdim, file, line));
    }
    static tensor argmin(const tensor &x, int64_t dim = TRACE_ALL_DIMS, bool keepdim = false, TRACE_AT) {
        return tensor(trace_argmin_at(x.get(), dim, keepdim, file, line));
    }
    static tensor softmax(const tensor &x, int64_t dim, TRACE_AT) {
        return tensor(trace_softmax_at(x.get(), dim, file, line));
    }
    static tensor log_softmax(const tensor &x, int64_t dim, TRACE_AT) {
        return tensor(trace_log_softmax_at(x.get(), dim, file, line));
    }
    static tensor layer_norm(const tensor &x, const dims &shape, const tensor &weight,
                             const tensor &bias = tensor::none(), double eps = 1e-5, TRACE_AT) {
        return tensor(
            trace_layer_norm_at(x.get(), shape.data(), shape.size(), weight.get(), bias.get(), eps, file, line));
    }
    static tensor rms_norm(const tensor &x, const tensor &weight, double eps = 1e-5, TRACE_AT) {
        return tensor(trace_rms_norm_at(x.get(), weight.get(), eps, file, line));
    }
    static tensor batch_norm(const tensor &x, const tensor &weight, const tensor &bias, const tensor &running_mean,
                             const tensor &running_var, double eps = 1e-5, TRACE_AT) {
        return tensor(trace_batch_norm_at(x.get(), weight.get(), bias.get(), running_mean.get(), running_var.get(), eps,
                                          file, line));
    }
    static tensor cross_entropy(const tensor &x, const tensor &target, const tensor &weight,
                                int reduction = TRACE_REDUCTION_MEAN, int64_t ignore_index = -100,
                                double label_smoothing = 0, TRACE_AT) {
        return tensor(trace_cross_entropy_at(x.get(), target.get(), weight.get(), reduction, ignore_index,
                                             label_smoothing, file, line));
    }
    static tensor reshape(const tensor &x, const dims &shape, TRACE_AT) {
        return tensor(trace_reshape_at(x.get(), shape.data(), shape.size(), file, line));
    }
    static tensor flatten(const tensor &x, int64_t start_dim = 0, int64_t end_dim = -1, TRACE_AT) {
        return tensor(trace_flatten_at(x.get(), start_dim, end_dim, file, line));
    }
    static tensor permute(const tensor &x, const dims &shape, TRACE_AT) {
        return tensor(trace_permute_at(x.get(), shape.data(), shape.size(), file, line));
    }
    static tensor transpose(const tensor &x, int64_t d0, int64_t d1, TRACE_AT) {
        return tensor(trace_transpose_at(x.get(), d0, d1, file, line));
    }
    static tensor expand(const tensor &x, const dims &shape, TRACE_AT) {
        return tensor(trace_expand_at(x.get(), shape.data(), shape.size(), file, line));
    }
    static tensor narrow(const tensor &x, int64_t dim, int64_t start, int64_t length, TRACE_AT) {
        return tensor(trace_narrow_at(x.get(), dim, start, length, file, line));
    }
    static tensor select(const tensor &x, int64_t dim, int64_t index, TRACE_AT) {
        return tensor(trace_select_at(x.get(), dim, index, file, line));
    }
    static tensor slice(const tensor &x, int64_t dim, int64_t start, int64_t end, int64_t step = 1, TRACE_AT) {
        return tensor(trace_slice_at(x.get(), dim, start, end, step, file, line));
    }
    static tensor squeeze(const tensor &x, int64_t dim = TRACE_ALL_DIMS, TRACE_AT) {
        return tensor(trace_squeeze_at(x.get(), dim, file, line));
    }
    static tensor unsqueeze(const tensor &x, int64_t dim, TRACE_AT) {
        return tensor(trace_unsqueeze_at(x.get(), dim, file, line));
    }
    static tensor as_strided(const tensor &x, const dims &shape, const dims &strides, int64_t offset = 0, TRACE_AT) {
        return tensor(trace_as_strided_at(x.get(), shape.data(),
                                          shape.size() == strides.size() ? strides.data() : nullptr, shape.size(),
                                          offset, file, line));
    }
    static tensor diagonal(const tensor &x, int64_t offset = 0, int64_t d0 = 0, int64_t d1 = 1, TRACE_AT) {
        return tensor(trace_diagonal_at(x.get(), offset, d0, d1, file, line));
    }
    static tensor unfold(const tensor &x, int64_t dim, int64_t size, int64_t step, TRACE_AT) {
        return tensor(trace_unfold_at(x.get(), dim, size, step, file, line));
    }
    static tensor flip(const tensor &x, const dims &shape, TRACE_AT) {
        return tensor(trace_flip_at(x.get(), shape.data(), shape.size(), file, line));
    }
    static tensor cat(const list &ts, int64_t dim, TRACE_AT) {
        return tensor(trace_cat_at(ts.data(), ts.size(), dim, file, line));
    }
    static tensor stack(const list &ts, int64_t dim, TRACE_AT) {
        return tensor(trace_stack_at(ts.data(), ts.size(), dim, file, line));
    }
    static tensor pad(const tensor &x, const dims &amounts, int mode = TRACE_PAD_CONSTANT, double value = 0, TRACE_AT) {
        return tensor(trace_pad_at(x.get(), amounts.data(), amounts.size(), mode, value, file, line));
    }
    static tensor gather(const tensor &x, int64_t dim, const tensor &index, TRACE_AT) {
        return tensor(trace_gather_at(x.get(), dim, index.get(), file, line));
    }
    static tensor index_select(const tensor &x, int64_t dim, const tensor &index, TRACE_AT) {
        return tensor(trace_index_select_at(x.get(), dim, index.get(), file, line));
    }
    static tensor embedding(const tensor &weight, const tensor &index, TRACE_AT) {
        return tensor(trace_embedding_at(weight.get(), index.get(), file, line));
    }
    static tensor linear(const tensor &x, const tensor &weight, const tensor &bias = tensor::none(), TRACE_AT) {
        return tensor(trace_linear_at(x.get(), weight.get(), bias.get(), file, line));
    }
    static tensor conv2d(const tensor &x, const tensor &weight, const tensor &bias = tensor::none(),
                         const pair &stride = {}, const pair &padding = {}, const pair &dilation = {},
                         int64_t groups = 1, TRACE_AT) {
        return tensor(trace_conv2d_at(x.get(), weight.get(), bias.get(), stride.data(), padding.data(), dilation.data(),
                                      groups, file, line));
    }
    static tensor scaled_dot_product_attention(const tensor &q, const tensor &k, const tensor &v,
                                               const tensor &mask = tensor::none(), bool is_causal = false,
                                               double scale = 0, bool enable_gqa = false, TRACE_AT) {
        return tensor(trace_scaled_dot_product_attention_at(q.get(), k.get(), v.get(), mask.get(), is_causal, scale,
                                                            enable_gqa, file, line));
    }
    static tensor max_pool2d(const tensor &x, const pair &kernel, const pair &stride = {}, const pair &padding = {},
                             const pair &dilation = {}, bool ceil_mode = false, TRACE_AT) {
        return tensor(trace_max_pool2d_at(x.get(), kernel.data(), stride.data(), padding.data(), dilation.data(),
                                          ceil_mode, file, line));
    }
    static tensor avg_pool2d(const tensor &x, const pair &kernel, const pair &stride = {}, const pair &padding = {},
                             bool ceil_mode = false, bool count_include_pad = true, int64_t divisor_override = 0,
                             TRACE_AT) {
        return tensor(trace_avg_pool2d_at(x.get(), kernel.data(), stride.data(), padding.data(), ceil_mode,
                                          count_include_pad, divisor_override, file, line));
    }
    static tensor gru_cell(const tensor &x, const tensor &h, const tensor &w_ih, const tensor &w_hh,
                           const tensor &b_ih = tensor::none(), const tensor &b_hh = tensor::none(), TRACE_AT) {
        return tensor(trace_gru_cell_at(x.get(), h.get(), w_ih.get(), w_hh.get(), b_ih.get(), b_hh.get(), file, line));
    }
    static tensor arange(const context &ctx, int64_t start, int64_t end, int64_t step = 1, dtype dtype_ = dtype::f32,
                         TRACE_AT) {
        return tensor(trace_arange_at(ctx.get(), start, end, step, static_cast<trace_dtype>(dtype_), file, line));
    }
    static tensor zeros(const context &ctx, const dims &shape, dtype dtype_ = dtype::f32, TRACE_AT) {
        return tensor(
            trace_zeros_at(ctx.get(), shape.data(), shape.size(), static_cast<trace_dtype>(dtype_), file, line));
    }
    static tensor ones(const context &ctx, const dims &shape, dtype dtype_ = dtype::f32, TRACE_AT) {
        return tensor(
            trace_ones_at(ctx.get(), shape.data(), shape.size(), static_cast<trace_dtype>(dtype_), file, line));
    }
    static std::vector<tensor> split(const tensor &x, std::int64_t size, std::int64_t dim = 0, TRACE_AT) {
        std::int64_t extent = x.size(dim);
        std::vector<trace_tensor *> raw(extent > 0 && size > 0 ? static_cast<std::size_t>((extent - 1) / size + 1) : 1);
        std::vector<tensor> pieces;
        if (trace_split_at(x.get(), size, dim, raw.data(), raw.size(), file, line) == TRACE_OK) {
            for (trace_tensor *t : raw) {
                pieces.emplace_back(t);
            }
        }
        return pieces;
    }
    static std::vector<tensor> chunk(const tensor &x, std::int64_t chunks, std::int64_t dim = 0, TRACE_AT) {
        std::int64_t extent = x.size(dim);
        return split(x, chunks > 0 && extent > 0 ? (extent - 1) / chunks + 1 : chunks > 0, dim, file, line);
    }

    // A counted loop: body(v) finds in v what a turn begins with and leaves there what the next one does. Gives the
    // values after the last turn. A body that throws fails the run it is recorded in.
    template <class Body>
    static std::vector<tensor> repeat(std::int64_t times, const list &first, Body &&body, TRACE_AT) {
        struct loop { // open until its end
            bool open = true;
            ~loop() {
                if (open) {
                    (void)trace_repeat_end_at(nullptr, 0, nullptr, 0);
                }
            }
        };
        std::vector<trace_tensor *> raw(first.data(), first.data() + first.size());
        std::vector<tensor> v, results;
        (void)trace_repeat_at(times, raw.data(), raw.size(), file, line); // a failure comes again from its end
        loop l;
        for (trace_tensor *t : raw) {
            v.emplace_back(t);
        }
        body(v);
        for (std::size_t i = 0; i < raw.size() && i < v.size(); i++) {
            raw[i] = v[i].get();
        }
        l.open = false;
        (void)trace_repeat_end_at(raw.data(), v.size(), file, line);
        for (trace_tensor *t : raw) {
            results.emplace_back(t);
        }
        return results;
    }

    // ---- operators --------------------------------------------------------------------------------------------

    // An operand of an operator: a tensor or a number, with the place of the expression.
    class operand {
      public:
        operand(const tensor &t, const char *f = __builtin_FILE(), int l = __builtin_LINE())
            : t_(&t), s_(0), file_(f), line_(l) {}
        template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
        operand(T v, const char *f = __builtin_FILE(), int l = __builtin_LINE())
            : t_(nullptr), s_(v), file_(f), line_(l) {}
        bool is_scalar() const noexcept { return t_ == nullptr; }
        const tensor &t() const noexcept { return *t_; }
        scalar s() const noexcept { return s_; }
        const char *file() const noexcept { return file_; }
        int line() const noexcept { return line_; }

      private:
        const tensor *t_;
        scalar s_;
        const char *file_;
        int line_;
    };
};

#undef TRACE_AT
#pragma pop_macro("check")
#pragma pop_macro("abs")
#pragma pop_macro("round")
#pragma pop_macro("sign")
#pragma pop_macro("square")
#pragma pop_macro("error")
#endif
