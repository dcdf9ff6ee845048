#!/usr/bin/env bash
# tests/test_html.sh: opens an explanation in headless Chromium: nothing wider than the window, everything there, with
# and without the script, at the widths of a desk and of a phone. Screenshots are left beside the page to be looked at.
#
#     test_html.sh page.html [word that has to be on it]...
set -u
page=$1
shift
browser=
for b in chromium chromium-browser google-chrome chrome; do
    command -v "$b" >/dev/null 2>&1 && browser=$b && break
done
if [ -z "$browser" ]; then
    echo "skipped: no chromium on PATH (apt-get install chromium)"
    exit 0
fi
[ -s "$page" ] || { echo "FAIL: $page is missing or empty"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAIL: $*"
    failed=1
}
run() { # width, further options; the page is the last argument
    local width=$1
    shift
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" \
        --window-size="$width",1800 "$@" 2>"$work/errors"
}

# Nothing may be fetched: no address, no import, no source of a script or picture.
grep -qE '(src|href)="(https?:|//|file:)|url\([^#]|@import|<link|<iframe|<img' "$page" && fail "the page refers to other files"

# The same page with a probe at its end, which opens everything, clicks a box and tells its frame what sticks out.
probe='<script>addEventListener("load",function(){document.querySelectorAll("details").forEach(function(d){d.open=true});
var w=document.documentElement.clientWidth,o=[];
document.querySelectorAll("body *").forEach(function(e){var r=e.getBoundingClientRect(),p=e.parentElement,inside=false;
for(;p;p=p.parentElement)if(/auto|scroll|hidden/.test(getComputedStyle(p).overflowX)){inside=true;break}
if(!inside&&r.right>w+1)o.push(e.tagName+"."+e.className)});
var n=document.querySelector("a.n"),i=document.querySelector(".info");
if(n)n.dispatchEvent(new MouseEvent("click",{bubbles:true,cancelable:true}));
parent.postMessage([w+" "+document.documentElement.scrollWidth+" ["+o.slice(0,5)+"]",i?i.textContent:"",
document.documentElement.outerHTML],"*")})</script>'
{ cat "$page" && printf '%s\n' "$probe"; } >"$work/probe.html"
for width in 1280 390; do
    # In a frame of that width: a window of the browser is never narrower than 500.
    cat >"$work/frame.html" <<END
<!doctype html><body style="margin:0"><pre id="width"></pre><pre id="info"></pre><pre id="dom"></pre>
<script>addEventListener("message",function(e){["width","info","dom"].forEach(function(k,i){
document.getElementById(k).textContent=e.data[i]})})</script>
<iframe src="probe.html" style="border:0;width:${width}px;height:1800px"></iframe>
END
    run 1400 --virtual-time-budget=8000 --dump-dom "file://$work/frame.html" >"$work/dom.html" ||
        fail "no DOM at $width: $(tail -1 "$work/errors")"
    found=$(grep -o '<pre id="width">[^<]*' "$work/dom.html" | head -1)
    case $found in
    "<pre id=\"width\">$width $width []") echo "ok: $width px: nothing is wider than the window" ;;
    *) fail "$width px: '$found' (window, content, what sticks out)" ;;
    esac
    for what in '&lt;svg' 'class="n h' 'class="kernels"' 'class="bars"' '&lt;pre&gt;' 'Graph breaks' Recompiles Segments \
        'Values in memory' "$@"; do
        grep -qF -- "$what" "$work/dom.html" || fail "$width px: '$what' is not in the page"
    done
    grep -qE '<pre id="info">(input|[a-z0-9_]+) ' "$work/dom.html" || fail "$width px: a click on a box shows nothing"
    run "$width" --screenshot="${page%.html}-$width.png" "file://$page" >/dev/null || fail "no screenshot at $width"
    [ -s "${page%.html}-$width.png" ] || fail "the screenshot at $width is empty"
done
sed 's|<script>.*</script>||' "$page" >"$work/noscript.html"
run 390 --screenshot="${page%.html}-noscript.png" "file://$work/noscript.html" >/dev/null
[ -s "${page%.html}-noscript.png" ] || fail "no screenshot without the script"
[ $failed = 0 ] && echo "ok: ${page##*/}: screenshots at ${page%.html}-{1280,390,noscript}.png"
exit $failed
