#!/usr/bin/env bash
# Compiles and runs the hello programs against an installed copy, as a user would: test_embed_install.sh PREFIX
# By pkg-config with the shared library and with the archive, by CMake, in C and in C++.
set -uo pipefail
prefix=$1
src=$(cd "$(dirname "$0")/../docs/examples" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
unset TRACEJIT_LLVM
read -ra cc <<<"${CC:-gcc}"
read -ra cxx <<<"${CXX:-g++}"
passed=0 failed=0

check() { # name command...
    local name=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $name"
    else
        failed=$((failed + 1))
        echo "FAIL $name: $*"
        tail -n 30 "$work/out"
    fi
}
flags() { pkg-config "$@" tracejit; }

check "version" test "$(pkg-config --modversion tracejit)" = "$(awk '/#define TRACE_VERSION_/ { v = v (v == "" ? "" : ".") $3 }
    END { print v }' "$prefix/include/tracejit.h")"
check "no relative or build paths in the package files" sh -c "! grep -r @ $prefix/lib/pkgconfig $prefix/lib/cmake"
check "only trace_ names exported" sh -c "nm -D --defined-only $prefix/lib/libtracejit.so | awk '\$2 != \"A\" && \$3 !~ /^trace_/ { print; bad = 1 } END { exit bad }'"
check "only trace_ names in the archive" sh -c "nm -g --defined-only $prefix/lib/libtracejit.a | awk 'NF == 3 && \$3 !~ /^trace_/ { print; bad = 1 } END { exit bad }'"
if [ -e "$prefix/lib/libtracejit-llvm.so" ]; then
    check "one name exported by the module" sh -c "nm -D --defined-only $prefix/lib/libtracejit-llvm.so | awk '\$2 != \"A\" { n++; ok = \$3 == \"tj_llvm_module\" } END { exit !(ok && n == 1) }'"
    check "no libstdc++, no LLVM among the needed" sh -c "! readelf -d $prefix/lib/libtracejit-llvm.so | grep NEEDED | grep -E 'stdc|LLVM|libz'"
fi

for lang in c cpp; do
    [ -e "$src/hello.$lang" ] || continue
    if [ $lang = c ]; then compiler=("${cc[@]}" -std=c11) lib=C; else compiler=("${cxx[@]}" -std=c++17) lib=CXX; fi
    # shellcheck disable=SC2046
    check "hello.$lang, pkg-config, shared: compiles" "${compiler[@]}" "$src/hello.$lang" -o "$work/$lang.shared" $(flags --cflags --libs) \
        "-Wl,-rpath,$prefix/lib"
    check "hello.$lang, pkg-config, shared: runs" "$work/$lang.shared"
    # shellcheck disable=SC2046
    check "hello.$lang, archive: compiles" "${compiler[@]}" "$src/hello.$lang" -o "$work/$lang.static" $(flags --cflags) \
        "$prefix/lib/libtracejit.a" -lm -ldl -lpthread
    check "hello.$lang, archive: runs" env TRACEJIT_LLVM= "$work/$lang.static"
    if command -v cmake >/dev/null; then
        mkdir -p "$work/$lang"
        cat >"$work/$lang/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.16)
project(hello $lib)
find_package(tracejit 0.1 REQUIRED)
add_executable(shared $src/hello.$lang)
target_link_libraries(shared tracejit::tracejit)
add_executable(static $src/hello.$lang)
target_link_libraries(static tracejit::static)
if($lib STREQUAL CXX)
  set_target_properties(shared static PROPERTIES CXX_STANDARD 17)
endif()
CMAKE
        check "hello.$lang, CMake: configures" cmake -S "$work/$lang" -B "$work/$lang/build" -DCMAKE_PREFIX_PATH="$prefix"
        check "hello.$lang, CMake: builds" cmake --build "$work/$lang/build"
        check "hello.$lang, CMake, shared: runs" "$work/$lang/build/shared"
        check "hello.$lang, CMake, static: runs" "$work/$lang/build/static"
    fi
done
# The tree works elsewhere than where it was installed, through links, and from a directory that is left since.
cat >"$work/where.c" <<'C'
#include <stdio.h>
#include <string.h>
#include <tracejit.h>
#include <unistd.h>
// Exit status 0: the library and its compiler module are mapped from the folder argv[1].
int main(int argc, char **argv) {
    trace_context *ctx = NULL;
    trace_region *r = NULL;
    char line[4096];
    int lib = 0, module = 0, others = 0;
    if (argc < 2 || chdir("/") || trace_context_create(NULL, &ctx) || trace_region_create(ctx, "r", NULL, &r)) return 2;
    trace_tensor *x = trace_from(ctx, TRACE_F32, (const float[]){1, 2, 3}, TRACE_DIMS(3)), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x))) y = trace_exp(x);
    if (trace_end(r, &y, 1)) return 3;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) {
        lib |= strstr(line, argv[1]) && strstr(line, "libtracejit.so");
        module |= strstr(line, argv[1]) && strstr(line, "libtracejit-llvm.so");
        others |= !strstr(line, argv[1]) && strstr(line, "libtracejit");
    }
    if (!lib || !module || others) fprintf(stderr, "library %d, module %d, others %d\n", lib, module, others);
    return !lib || !module || others;
}
C
if [ -e "$prefix/lib/libtracejit-llvm.so" ]; then
    new="$work/moved"
    cp -a "$prefix" "$new"
    pc=(env PKG_CONFIG_PATH="$new/lib/pkgconfig" pkg-config --cflags --libs tracejit)
    # shellcheck disable=SC2046
    check "moved, pkg-config: compiles" "${cc[@]}" -std=gnu11 "$work/where.c" -o "$work/where" $("${pc[@]}") "-Wl,-rpath,$new/lib"
    check "moved: library and module of the copy" "$work/where" "$new"
    for how in --define-prefix "--define-variable=prefix=$new"; do
        check "moved, pkg-config $how" sh -c 'case $(PKG_CONFIG_PATH="$1/lib/pkgconfig" pkg-config "$2" --cflags --libs tracejit) in *"$1/include"*"$1/lib"*) ;; *) exit 1 ;; esac' - "$new" "$how"
    done
    mkdir -p "$work/links/lib" "$work/links/include"
    ln -s "$new" "$work/linked"
    ln -s "$new"/lib/libtracejit.so* "$work/links/lib"
    check "linked prefix: library and module" env LD_LIBRARY_PATH="$work/linked/lib" "$work/where" "$new"
    check "a link to the library alone: its module" env LD_LIBRARY_PATH="$work/links/lib" "$work/where" "$new"
    "${cc[@]}" -std=gnu11 "$work/where.c" -o "$work/where.bare" -I"$new/include" -L"$new/lib" -ltracejit
    check "a relative folder of libraries, left before the first compile" sh -c 'cd "$1" && LD_LIBRARY_PATH=moved/lib ./where.bare "$1/moved"' - "$work"
    if command -v cmake >/dev/null; then
        mkdir -p "$work/find" "$work/stow/lib/cmake"
        ln -s "$new/lib/cmake/tracejit" "$work/stow/lib/cmake/tracejit"
        cat >"$work/find/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.16)
project(find C)
find_package(tracejit 0.1 REQUIRED)
add_executable(where ../where.c)
target_link_libraries(where tracejit::tracejit)
CMAKE
        for at in moved linked stow; do
            check "CMake finds it: $at" sh -c 'cd "$1" && cmake -S find -B "find/$2" -DCMAKE_PREFIX_PATH="$1/$2" && cmake --build "find/$2" && "find/$2/where" "$1/moved"' - "$work" $at
        done
    fi
fi

# Programs without a dynamic linker: no shared object can be loaded there, so the interpreter runs after one event.
cat >"$work/alone.c" <<'C'
#include <stdio.h>
#include <string.h>
#include <tracejit.h>
static int events, named;
static const char *reason = "";
static void on_event(void *user, const trace_event *e) {
    (void)user;
    events += e->kind == TRACE_EVENT_FALLBACK;
    named += e->kind == TRACE_EVENT_FALLBACK && strstr(e->what, reason);
}
int main(int argc, char **argv) {
    if (argc > 1) reason = argv[1];
    trace_context *ctx = NULL;
    trace_region *r = NULL;
    float out[300 * 300];
    double sum = 0;
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = on_event, .threads = 3), &ctx) || trace_region_create(ctx, "r", NULL, &r)) return 1;
    for (int run = 0; run < 3; run++) {
        trace_tensor *x = trace_full_f(ctx, TRACE_DIMS(300, 300), 0.5, TRACE_F32), *y = NULL;
        if (trace_begin(r, TRACE_ARGS(x))) {
            y = trace_matmul(x, x);
            if (trace_item_f64(trace_amax(y, NULL, 0, false), &sum) || sum != 75) return 2;
            y = trace_exp(trace_sub_f(y, 75 - run % 2));
        }
        if (trace_end(r, &y, 1) || trace_read(y, out, sizeof out)) return 3;
        if (run != 1 && (out[0] != 1 || out[300 * 300 - 1] != 1)) return 4;
        trace_release(x);
        trace_release(y);
    }
    if (trace_context_shutdown(ctx, 1000)) return 5;
    trace_region_release(r);
    trace_context_release(ctx);
    return events != 1 || named != 1;
}
C
[ -e "$prefix/lib/libtracejit-llvm.so" ] && why="statically linked" || why="no compiler"
for how in -static -static-pie; do
    # shellcheck disable=SC2046
    if "${cc[@]}" -std=c11 $how "$work/alone.c" -o "$work/alone" $(flags --cflags) "$prefix/lib/libtracejit.a" -lm -ldl -lpthread 2>"$work/err"; then
        check "$how: runs, after one event" "$work/alone" "$why"
        check "$how, the module named: runs, after one event" env "TRACEJIT_LLVM=$prefix/lib/libtracejit-llvm.so" "$work/alone" "$why"
    else
        echo "skip $how: does not link here"
    fi
done

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
