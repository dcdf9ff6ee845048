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
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
