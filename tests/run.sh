#!/usr/bin/env bash
# Runs test programs one after another: run.sh LOG PROGRAM...
# One line each, and what they note (lines "note: ..."); all the output of those that fail. Programs named test_* are libcheck's and count their checks, any
# other is one test that passes with exit status 0. The last line is "N passed, N failed".
set -uo pipefail
log=$1
shift
read -ra prefix <<<"${RUN_PREFIX:-}"
: >"$log"
passed=0 failed=0
for p in "$@"; do
    out=$log.out
    start=$(date +%s%N)
    timeout -k 10 "${TEST_TIMEOUT:-600}" "${prefix[@]}" "$p" >"$out" 2>&1 </dev/null
    rc=$?
    ms=$((($(date +%s%N) - start) / 1000000))
    ok=0 bad=0
    counts=$(sed -n 's/^[0-9]*%: Checks: \([0-9]*\), Failures: \([0-9]*\), Errors: \([0-9]*\)$/\1 \2 \3/p' "$out" | tail -n 1)
    case $(basename "$p") in
    test_*)
        if [ -n "$counts" ]; then
            read -r checks failures errors <<<"$counts"
            bad=$((failures + errors)) ok=$((checks - bad))
        fi
        ;;
    *) [ $rc -eq 0 ] && ok=1 ;;
    esac
    # A program that died, or that reports a leak after its last check, has failed whatever it counted.
    if [ $rc -ne 0 ] && [ $bad -eq 0 ]; then bad=1; fi
    if [ $rc -eq 0 ] && [ $((ok + bad)) -eq 0 ]; then bad=1; fi
    passed=$((passed + ok)) failed=$((failed + bad))
    printf '%-4s %-32s %5d passed %3d failed %7d ms\n' "$([ $bad -eq 0 ] && echo ok || echo FAIL)" "$(basename "$p")" \
        $ok $bad $ms
    sed -n 's/^note: /       /p' "$out"
    { printf '== %s (exit %d)\n' "$p" $rc && cat "$out"; } >>"$log"
    if [ $bad -ne 0 ]; then
        [ $rc -eq 124 ] && echo "timed out after ${TEST_TIMEOUT:-600} s"
        tail -n 200 "$out"
    fi
    rm -f "$out"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
