#!/usr/bin/env bash
# Brings a machine to where tests, demo and benchmark run: the Debian packages that are missing,
# .venv with this checkout installed in it, and further brokers in the cache folder of the user.
# Does nothing, and says nothing, when all is there.
#
# Usage: tools/setup.sh [--quiet]      --quiet: do not even say that it is ready
# PYTHON in the environment chooses the interpreter; root, or sudo, is only needed for packages.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly venv=.venv
readonly log=$venv/setup.log
readonly stamp=$venv/setup.stamp
readonly lock=requirements-dev.txt
readonly extras=spark,stomp,amqp10,redis,otel,docs,dev
if [[ -t 1 ]]; then
    readonly every_s=1 erase=$'\r\e[K' newline=''
else
    readonly every_s=10 erase='' newline=$'\n'
fi
# shellcheck source=tools/debian.sh
source tools/debian.sh

main() {
    local python=${PYTHON:-$(command -v python3.11 || command -v python3 || true)}
    check_python "$python"
    mkdir -p "$venv"
    trap remove_policy EXIT

    local missing wanted
    missing=$(missing_packages "$python")
    if [[ -n $missing ]]; then
        : >"$log"
        # Unquoted: one word per package.
        # shellcheck disable=SC2086
        step "Debian packages: ${missing//$'\n'/ }" install_packages $missing
    fi
    wanted=$(fingerprint "$python")
    if [[ ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
        [[ -n $missing ]] || : >"$log"
        rm -f "$stamp"
        step "virtual environment in $venv" "$python" -m venv "$venv"
        step "this package and its tools (extras $extras)" install_checkout
        step "check that Spark will find it" check_import
        step "ActiveMQ, Artemis, Kafka and jars for Spark, by Maven; RabbitMQ 4, by apt" fetch_brokers
        printf '%s\n' "$wanted" >"$stamp"
    fi
    [[ ${1:-} == --quiet ]] || echo "ready: $venv ($("$venv/bin/python" --version))"
}

# What a step does is shown while it does it: on a terminal in one line that is written again each second,
# elsewhere a line every ten. The whole log only when it failed. The step is a command or a function; bash
# ignores `set -e` in functions called from a condition, so those chain with &&.
step() {
    local text=$1 began=$SECONDS code=0 show
    shift
    printf 'setup: %s ...\n' "$text"
    show_progress "$began" &
    show=$!
    "$@" >>"$log" 2>&1 || code=$?
    { kill "$show" && wait "$show"; } 2>/dev/null || true
    if ((code == 0)); then
        printf '%ssetup: %s: done in %d s\n' "$erase" "$text" "$((SECONDS - began))"
    else
        printf '%ssetup: %s: failed (%d)\n' "$erase" "$text" "$code"
        cat "$log" >&2
        echo "setup: the above is also in $log" >&2
        exit "$code"
    fi
}

show_progress() {
    local last
    while sleep "$every_s"; do
        last=$(tail -c 2000 "$log" | tr '\r' '\n' | LC_ALL=C tr -cd '[:print:]\n' | grep -v '^[[:space:]]*$' | tail -n 1 | cut -c 1-80 || true)
        printf '%s       %3d s: %s%s' "$erase" "$((SECONDS - $1))" "$last" "$newline"
    done
}

check_python() {
    if [[ -z $1 ]] || ! "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "setup: Python 3.10 or later is needed, not '$1'; choose one with PYTHON=" >&2
        exit 1
    fi
}

# By what they provide: somebody may have it from elsewhere.
missing_packages() {
    compgen -G '/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server' >/dev/null ||
        echo rabbitmq-server
    command -v redis-server >/dev/null || echo redis-server
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || echo postgresql
    command -v openssl >/dev/null || echo openssl
    [[ -n ${JAVA_HOME:-} ]] || command -v java >/dev/null || echo openjdk-17-jre-headless
    command -v mvn >/dev/null || echo maven
    # The tests compile a JMS client.
    command -v javac >/dev/null || echo openjdk-17-jdk-headless
    "$1" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    # pip compiles python-qpid-proton.
    command -v gcc >/dev/null || echo gcc libc6-dev
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists openssl 2>/dev/null || echo libssl-dev
    "$1" -c 'import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' || echo python3-dev
}

# The versions that are pinned, or the newest where those cannot be had: by another index, or another system.
install_checkout() {
    local pip=("$venv/bin/python" -m pip install --disable-pip-version-check)
    "${pip[@]}" --constraint "$lock" --editable ".[$extras]" || "${pip[@]}" --editable ".[$extras]"
}

# Now, so that no test waits for it. Without them their tests are skipped, but not in CI.
fetch_brokers() {
    "$venv/bin/python" -m testbed.fetch || [[ -z ${CI:-} ]]
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

# What, when it changes, asks for a new installation. The folder: a venv cannot be moved.
fingerprint() {
    pwd
    "$1" -c 'import sys; print(sys.version)'
    sha256sum pyproject.toml "$lock" tools/setup.sh tools/debian.sh testbed/{fetch,distributions,debian}.py
}

main "$@"
