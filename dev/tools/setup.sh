#!/usr/bin/env bash
# Brings a machine to where a target of the Makefile runs: the Debian packages that are missing, .venv with this
# checkout installed in it, and brokers in the cache folder of the user. What a target does not touch is left to the
# target that does. Does nothing, and says nothing, when all is there.
#
# Usage: dev/tools/setup.sh [--quiet] [WHAT]      --quiet: do not even say that it is ready
#
#   everything         for tests, soak and benchmark: each broker, Spark, each client, the tools. The default
#   python             for lint, docs and the fuzzers: .venv with each client and the tools; no broker
#   demo [WORD...]     for the demo with these words in its command line: the broker and the protocol among them
#
# PYTHON in the environment chooses the interpreter; root, or sudo, is only needed for packages.
#
# Packages and .venv are made side by side. Each step leaves a stamp in .venv/setup, with a fingerprint of what decides
# on it, and is taken again when that has changed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly venv=.venv
readonly state=$venv/setup
readonly lock=requirements-dev.txt
if [[ -t 1 ]]; then
    readonly every_s=1 erase=$'\r\e[K' newline=''
else
    readonly every_s=10 erase='' newline=$'\n'
fi
# shellcheck source=dev/tools/debian.sh
source dev/tools/debian.sh

# What is wanted: packages by what they are for, extras of the package, distributions in the words of testbed.fetch.
rabbitmq=no java=no maven=no others=no compiler=no
extras=() brokers=()
lanes=()

main() {
    local quiet=no
    if [[ ${1:-} == --quiet ]]; then
        quiet=yes
        shift
    fi
    want "$@"
    local python=${PYTHON:-$(command -v python3.11 || command -v python3 || true)}
    check_python "$python"
    mkdir -p "$state"
    trap remove_policy EXIT

    local before beside made installed fetched
    before=$(packages_for_python "$python")
    beside=$(packages_beside)
    made=$(fingerprint_of_venv "$python")
    installed=$(fingerprint "$made" pyproject.toml "$lock")
    # Where they are in testbed is of no concern here.
    fetched=$(find dev/testbed -name fetch.py -o -name distributions.py -o -name debian.py | sort)
    # Unquoted: one word a file.
    # shellcheck disable=SC2086
    fetched=$(fingerprint "${PYSPARK_MQ_CACHE:-}" $fetched)

    # Asked for here, as nobody can be asked in the background.
    [[ -z $before$beside ]] || ((EUID == 0)) || ! command -v sudo >/dev/null || sudo -v
    # shellcheck disable=SC2086
    [[ -z $before ]] || step packages "Debian packages: ${before//$'\n'/ }" install_packages $before
    trap 'end_lanes; exit 130' INT TERM
    if ! stamped venv "$made"; then
        begin_lane python make_venv "$python" "$made" "$installed"
    elif ! stamped extras "$installed" "${extras[@]}"; then
        begin_lane python install "$installed"
    fi
    if [[ -n $beside ]] || ! stamped brokers "$fetched" "${brokers[@]}"; then
        begin_lane packages packages_and_brokers "$python" "$beside" "$fetched"
    fi
    await_lanes
    [[ $others == no || -f $venv/spark-classes.jsa ]] ||
        step python "an archive of the classes of Spark, and the tests compiled, to start both in half the time" archive
    [[ $quiet == yes ]] || echo "ready: $venv ($("$venv/bin/python" --version))"
}

# -- what is wanted ----------------------------------------------------------------------------

want() {
    case ${1:-everything} in
        everything)
            rabbitmq=yes java=yes maven=yes others=yes compiler=yes
            extras=(spark stomp amqp10 redis otel docs dev)
            brokers=(everything)
            ;;
        python)
            compiler=yes
            extras=(spark stomp amqp10 redis otel docs dev)
            ;;
        demo)
            shift
            want_demo "$@"
            ;;
        *)
            echo "setup: there is no set-up for '$1'; known: everything, python, demo" >&2
            exit 2
            ;;
    esac
}

# A word that means nothing here is for the demo to judge.
want_demo() {
    local word broker=rabbitmq protocol='' own=no
    java=yes
    extras=(spark demo)
    for word in "$@"; do
        case $word in
            rabbitmq | activemq | artemis) broker=$word ;;
            amqp-0-9-1 | amqp-1.0 | stomp) protocol=$word ;;
            --url) own=yes ;;
            --dashboard) extras+=(otel dashboard) ;;
        esac
    done
    if [[ $own == yes ]]; then
        # Its URL says what it speaks.
        extras+=(stomp amqp10)
        compiler=yes
        return
    fi
    case $broker in
        rabbitmq) rabbitmq=yes ;;
        *)
            maven=yes
            brokers=("$broker")
            protocol=${protocol:-stomp}
            ;;
    esac
    case $protocol in
        stomp) extras+=(stomp) ;;
        amqp-1.0)
            extras+=(amqp10)
            compiler=yes
            ;;
    esac
}

check_python() {
    if [[ -z $1 ]] || ! "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "setup: Python 3.10 or later is needed, not '$1'; choose one with PYTHON=" >&2
        exit 1
    fi
}

# Packages are known by what they provide: somebody may have it from elsewhere. These are needed before .venv is made.
packages_for_python() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    [[ $compiler == yes ]] || return 0
    # python-qpid-proton is compiled.
    command -v gcc >/dev/null || echo gcc libc6-dev
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists openssl 2>/dev/null || echo libssl-dev
    "$1" -c 'import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' || echo python3-dev
}

packages_beside() {
    [[ $rabbitmq == no ]] || compgen -G '/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server' >/dev/null ||
        echo rabbitmq-server
    [[ $java == no && $maven == no ]] || [[ -n ${JAVA_HOME:-} ]] || command -v java >/dev/null ||
        echo openjdk-17-jre-headless
    [[ $maven == no ]] || command -v mvn >/dev/null || echo maven
    [[ $others == yes ]] || return 0
    command -v redis-server >/dev/null || echo redis-server
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || echo postgresql
    command -v openssl >/dev/null || echo openssl
    # The site of the documentation is looked at.
    command -v chromium >/dev/null || echo chromium
    # The tests compile a JMS client.
    command -v javac >/dev/null || echo openjdk-17-jdk-headless
}

# -- steps -------------------------------------------------------------------------------------

make_venv() {
    local python=$1 made=$2 installed=$3
    rm -f "$state"/{venv,extras}.stamp
    step python "virtual environment in $venv" "$python" -m venv "$venv"
    stamp venv "$made"
    install "$installed"
}

install() {
    # With what is there: the demo after the tests takes nothing away.
    local all
    all=$({ printf '%s\n' "${extras[@]}" && { words_of extras "$1" || true; }; } | sort -u | paste -sd,)
    rm -f "$state/extras.stamp" "$venv/spark-classes.jsa"
    step python "this package and its tools (extras $all)" install_checkout "$all"
    step python "check that Spark will find it" check_import
    # shellcheck disable=SC2086
    stamp extras "$1" ${all//,/ }
}

packages_and_brokers() {
    local python=$1 missing=$2 fetched=$3 all
    # shellcheck disable=SC2086
    [[ -z $missing ]] || step packages "Debian packages: ${missing//$'\n'/ }" install_packages $missing
    ! stamped brokers "$fetched" "${brokers[@]}" || return 0
    all=$({ printf '%s\n' "${brokers[@]}" && { words_of brokers "$fetched" || true; }; } | sort -u | paste -sd' ')
    case $all in
        *everything*) step packages "ActiveMQ, Artemis, Kafka and jars for Spark, by Maven; RabbitMQ 4, by apt" fetch "$python" ;;
        *) step packages "$all, by Maven" fetch "$python" "${brokers[@]}" ;;
    esac
    # shellcheck disable=SC2086
    stamp brokers "$fetched" $all
}

# The versions that are pinned, or the newest where those cannot be had: by another index, or another system. By uv,
# which takes a third of the time that pip does; where uv cannot be had, or cannot do it, by pip.
install_checkout() {
    local pip=("$venv/bin/python" -m pip install --disable-pip-version-check) what=(--editable ".[$1]")
    echo "pyspark is a download of some 450 MB"
    "${pip[@]}" --quiet --no-deps --require-hashes --requirement <(sed -n '/^uv==/,/[^\\]$/p' "$lock") &&
        install_with_uv "${what[@]}" && return
    echo "uv could not; now pip"
    # pip accepts no hashes where a folder is installed.
    "${pip[@]}" --constraint <(sed 's/ \\$//; /^ *--hash/d' "$lock") "${what[@]}" || "${pip[@]}" "${what[@]}"
}

install_with_uv() {
    local index cache=$state/uv done=0
    # uv does not read what pip was told.
    index=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config list | sed -n "s/^[^=]*\.index-url='\(.*\)'\$/\1/p" | tail -n 1)}
    # pyspark comes as source, and jars in a wheel gain nothing by being compressed again: 15 s.
    # With a cache of its own, as what was unpacked and built of it stays there: 2 GB, and as much again each time where
    # the index does not say that a file never changes.
    env ${index:+UV_DEFAULT_INDEX="$index"} ${PIP_CERT:+SSL_CERT_FILE="$PIP_CERT"} \
        "$venv/bin/uv" pip install --cache-dir "$cache" --python "$venv/bin/python" --constraint "$lock" \
        --config-settings-package pyspark:--build-option=--compression=stored "$@" || done=$?
    rm -rf "$cache"
    ((done == 0)) && compile_modules
}

# As pip does. Where PYTHONDONTWRITEBYTECODE is set each process compiles all it imports, which takes one of Spark's
# seconds. What cannot be compiled is of no business here: some packages have templates and tests for other versions.
compile_modules() {
    "$venv/bin/python" -m compileall -qq -j 0 "$venv/lib" || true
}

# Spark looks for its data sources with pkgutil, which does not see every kind of editable install.
check_import() {
    # Isolated: the current folder must not be what it is found in.
    "$venv/bin/python" -I -c '
import pkgutil, sys
names = {module.name for module in pkgutil.iter_modules()}
sys.exit(None if "pyspark_mq" in names else "pyspark_mq is installed but pkgutil does not see it")
'
}

# Nothing depends on it. pytest rewrites assertions, and each of its workers would do so for each module.
archive() {
    PYTHONDONTWRITEBYTECODE='' "$venv/bin/python" -m pytest --quiet --collect-only >/dev/null &
    "$venv/bin/python" -m testbed.spark.class_archive || true
    wait $! || true
}

# fetch PYTHON [BROKER...]: now, so that no test waits for it. Without them their tests are skipped, but not in CI; a demo
# needs what it names. Any Python will do, so it need not wait for .venv.
fetch() {
    PYTHONPATH=dev "$1" -m testbed.fetch "${@:2}" || { (($# == 1)) && [[ -z ${CI:-} ]]; }
}

# -- stamps ------------------------------------------------------------------------------------

# What, when it changes, asks for a new .venv. The folder: a venv cannot be moved.
fingerprint_of_venv() {
    fingerprint "$PWD $("$1" -c 'import sys; print(sys.version)')"
}

# fingerprint TEXT [FILE...]
fingerprint() {
    { echo "$1" && sha256sum "${@:2}" dev/tools/setup.sh dev/tools/debian.sh; } | sha256sum | cut -c 1-64
}

# stamp STEP FINGERPRINT [WORD...]: it was done, for these.
stamp() {
    { echo "$2" && { (($# == 2)) || printf '%s\n' "${@:3}"; }; } >"$state/$1.stamp"
}

# stamped STEP FINGERPRINT [WORD...]: was it done, for all of these at least?
stamped() {
    local word words
    # Who asks for no broker has all of them.
    [[ $1 != brokers || $# -gt 2 ]] || return 0
    words=$(words_of "$1" "$2") || return 1
    for word in "${@:3}"; do
        [[ " ${words//$'\n'/ } " == *" $word "* || " ${words//$'\n'/ } " == *" everything "* ]] || return 1
    done
}

# words_of STEP FINGERPRINT: what it was done for; fails if it was not, or something has changed since.
words_of() {
    local file=$state/$1.stamp
    [[ -f $file && $(head -n 1 "$file") == "$2" ]] && tail -n +2 "$file"
}

# -- side by side ------------------------------------------------------------------------------

# begin_lane NAME FUNCTION [ARGUMENT...]: steps in the background, one after the other. A group of its own, so that all
# of it can be ended.
begin_lane() {
    local name=$1
    shift
    : >"$state/$name.log"
    set -m
    (
        set +m
        trap remove_policy EXIT
        "$@"
    ) </dev/null &
    set +m
    lanes+=("$name:$!")
}

# What the lanes do is shown while they do it: on a terminal in one line that is written again each second, elsewhere a
# line every ten.
await_lanes() {
    ((${#lanes[@]})) || return 0
    local began=$SECONDS lane running code=0 shown
    while :; do
        running=()
        for lane in "${lanes[@]}"; do
            ! kill -0 "${lane#*:}" 2>/dev/null || running+=("${lane%:*}")
        done
        ((${#running[@]})) || break
        if ((SECONDS - began > ${shown:-0} && (SECONDS - began) % every_s == 0)); then
            shown=$((SECONDS - began))
            show_progress "$shown" "${running[@]}"
        fi
        sleep 0.1
    done
    for lane in "${lanes[@]}"; do
        wait "${lane#*:}" || code=$?
    done
    ((code == 0)) || exit "$code"
}

show_progress() {
    local seconds=$1 name last line=''
    shift
    for name in "$@"; do
        last=$(tail -c 2000 "$state/$name.log" | tr '\r' '\n' | LC_ALL=C tr -cd '[:print:]\n' |
            grep -v '^[[:space:]]*$' | tail -n 1 | cut -c "1-$((80 / $#))" || true)
        line+=${line:+ | }$last
    done
    printf '%s       %3d s: %s%s' "$erase" "$seconds" "$line" "$newline"
}

end_lanes() {
    local lane
    for lane in "${lanes[@]}"; do
        kill -- "-${lane#*:}" 2>/dev/null || true
    done
    wait || true
}

# step LANE TEXT COMMAND...: the whole log is shown only when it failed. The command may be a function; bash
# ignores `set -e` in functions called from a condition, so those chain with &&.
step() {
    local log=$state/$1.log text=$2 began=$SECONDS code=0
    shift 2
    printf '%ssetup: %s ...\n' "$erase" "$text"
    # What is shown until the step itself says something.
    echo "$text" >"$log"
    "$@" >>"$log" 2>&1 || code=$?
    if ((code == 0)); then
        printf '%ssetup: %s: done in %d s\n' "$erase" "$text" "$((SECONDS - began))"
    else
        printf '%ssetup: %s: failed (%d)\n' "$erase" "$text" "$code"
        cat "$log" >&2
        echo "setup: the above is also in $log" >&2
        exit "$code"
    fi
}

main "$@"
