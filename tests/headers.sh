#!/usr/bin/env bash
# Compiles the public headers as hosts do: strict sets of warnings, without exceptions and RTTI, beside macros and names
# of their own: headers.sh. One line each; the last is "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

ok() { # name command...
    local name=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: $(grep -m1 error "$work/out" || head -n 1 "$work/out")"
    fi
}
both() { # name, compiler, flags...; the source on stdin
    local name=$1 c=$2 cc lang
    shift 2
    cat >"$work/source"
    for cc in $c; do
        case $cc in *++) lang=c++ ;; *) lang=c ;; esac
        ok "$name, $cc $*" "$cc" -x $lang "$@" -Iinclude -c "$work/source" -o "$work/o"
    done
}

# ---- warnings
strict="-Wall -Wextra -pedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wundef -Wmissing-declarations
    -Wredundant-decls -Wdouble-promotion -Wformat=2 -Wcast-align -Wswitch-default -Wswitch-enum -Wnull-dereference -Wfloat-equal
    -Wvla -Wpointer-arith -Wwrite-strings -Wunused-macros -Werror"
cat >"$work/t.c" <<'C'
#include <tracejit.h>
int main(void) {
    trace_context *ctx = NULL;
    trace_region *r = NULL;
    trace_tensor *y = NULL;
    double d = 0;
    const float v[2] = {1, 2};
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx) ||
        trace_region_create(ctx, "r", TRACE_REGION_OPTIONS(.fullgraph = true), &r))
        return 1;
    trace_tensor *x = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(2)), *parts[2] = {NULL, NULL};
    if (trace_begin(r, TRACE_ARGS(x))) {
        y = trace_sum(trace_linear(x, trace_reshape(x, TRACE_DIMS(1, 2)), TRACE_NONE), TRACE_SCALAR, false);
        trace_repeat(3, &y, 1);
        y = trace_mul_f(y, 2);
        trace_repeat_end(&y, 1);
        trace_split(x, 1, 0, parts, 2);
    }
    return trace_end(r, &y, 1) || trace_item_f64(y, &d) || trace_print(y, "y");
}
C
cat >"$work/t.cpp" <<'CPP'
#include <tracejit.hpp>
int main() {
    trace::context ctx;
    trace::region r(ctx, "r");
    const float v[2] = {1, 2};
    trace::tensor x = trace::from(ctx, trace::dtype::f32, v, {2}), y, z;
    if (trace::run run{r, {x}}) {
        y = trace::relu(x * 2 + 1) / 3 - x;
        z = 1 / y;
        y = trace::conv2d(trace::reshape(x, {1, 1, 1, 2}), trace::ones(ctx, {1, 1, 1, 1}));
        trace::check(run.end({y, z}));
    }
    return trace::split(x == y, 1).empty();
}
CPP
printf '#include <tracejit.h>\nint main() { return trace_zeros(nullptr, TRACE_SCALAR, TRACE_F32) == TRACE_NONE; }\n' >"$work/u.cpp"
for std in c99 c11 c17 c2x; do
    # shellcheck disable=SC2086
    both "strict -std=$std" "gcc clang" -std=$std $strict -Wstrict-prototypes -Wmissing-prototypes -Wbad-function-cast <"$work/t.c"
done
for std in c++17 c++20; do
    for f in t u; do
        # shellcheck disable=SC2086
        both "strict -std=$std" "g++ clang++" -std=$std $strict -Wold-style-cast -Wzero-as-null-pointer-constant -Wnon-virtual-dtor \
            -Woverloaded-virtual -Wextra-semi -Wctor-dtor-privacy <"$work/$f.cpp"
    done
done
# shellcheck disable=SC2086
both "strict" g++ -std=c++17 $strict -Weffc++ -Wuseless-cast -Wduplicated-cond -Wduplicated-branches -Wlogical-op -Wsuggest-override \
    -Wnoexcept -Wsign-promo <"$work/t.cpp"
both "no exceptions, no RTTI" "g++ clang++" -std=c++17 -Wall -Wextra -Werror -fno-exceptions -fno-rtti <"$work/t.cpp"

# ---- names of the host
host="-Wall -Wextra -Werror"
xlib='#define Status int
#define Bool int
#define True 1
#define False 0
#define None 0L
#define Success 0
#define Always 2
#define Below 1
#define CurrentTime 0L
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define near
#define far
#define small char
#define interface struct
#define ERROR 0'
# shellcheck disable=SC2086
{
    both "macros of Xlib and Windows" "gcc clang" -std=c11 $host < <(printf '%s\n#include <complex.h>\n#include <tracejit.h>\n' "$xlib")
    both "macros of Xlib and Windows" "g++ clang++" -std=c++17 $host < <(printf '%s\n#include <tracejit.hpp>\n' "$xlib")
    both "macros of Unreal and Arduino" "g++ clang++" -std=c++17 <<'CPP'
#define check(e) do { if (!(e)) __builtin_trap(); } while (0)
#define verify(e) check(e)
#define ensure(e) (e)
#define sign(x) ((x) < 0)
#define square(x) ((x) * (x))
#include <tracejit.hpp>
int main() { check(sign(-1)); verify(square(2) == 4); }
CPP
    both "a function trace()" "g++ clang++" -std=c++17 $host <<'CPP'
void trace(const char *format, ...);
#include <tracejit.hpp>
int main() {
    trace("x");
    return trace::tensor().valid();
}
CPP
    both "a variable trace" "g++ clang++" -std=c++17 $host <<'CPP'
#include <tracejit.hpp>
static int trace = 0;
int main() { return trace; }
CPP
    for lang in "gcc clang" "g++ clang++"; do
        both "trace_begin() and others of the host" "$lang" $host <<'C'
#include <tracejit.h>
static void trace_begin(const char *name) { (void)name; }
static void trace_end(void) {}
static void trace_print(const char *text) { (void)text; }
struct probe {
    void (*trace_read)(const char *, int);
    int trace_data;
};
int use(struct probe *p);
int use(struct probe *p) {
    p->trace_read("x", 1);
    return p->trace_data;
}
int main(void) {
    trace_begin("frame");
    trace_print("x");
    trace_end();
    return 0;
}
C
        both "macros N and Y of the host" "$lang" <<'C'
#define N 64
#define Y 1
#include <tracejit.h>
int use(trace_region *r, trace_tensor *y);
int use(trace_region *r, trace_tensor *y) {
    if (trace_begin(r, NULL, 0)) trace_print(y, "y");
    return trace_end(r, &y, 1) + N + Y;
}
C
        both "trace_begin() of three arguments, TRACE_NO_MACROS" "$lang" $host <<'C'
#define TRACE_NO_MACROS
#include <tracejit.h>
static void trace_begin(const char *f, const char *n, int l) { (void)f, (void)n, (void)l; }
int main(void) {
    trace_begin("a", "b", 1);
    return 0;
}
C
    done
}
ok "TRACE_NO_MACROS leaves no lower-case macro" sh -c '! echo "#include <tracejit.h>" | gcc -E -dM -DTRACE_NO_MACROS -Iinclude - | grep "#define trace_"'
ok "the C++ header leaves no lower-case macro" sh -c '! echo "#include <tracejit.hpp>" | g++ -x c++ -E -dM -Iinclude - | grep "#define trace_"'

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
