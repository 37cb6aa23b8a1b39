#!/usr/bin/env bash
# Runs a command with brokers in containers at hand, on images built from dev/docker/.
#
# Usage: dev/tools/containers.sh COMMAND...
#
# A Docker that answers is used. Else one is started, on a socket of its own, with its data in build/docker, and stopped
# at the end; that needs root, and the packages docker.io and iptables, which are installed if they are missing. Where no
# registry can be reached, the base images are made of Debian packages.
# BIN in the environment is the folder of the Python to use. Does little the second time: images and their layers stay.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=dev/tools/debian.sh
source dev/tools/debian.sh

readonly bin=${BIN:-.venv/bin}
readonly logs=build/containers
readonly ours=pyspark-mq-test
# Of containers; the one in dev/testbed/brokers/containers.py.
readonly label=pyspark-mq
daemon=
place=
# Debian's Docker has the classic builder only.
export DOCKER_BUILDKIT=0

main() {
    mkdir -p "$logs"
    : >"$logs/setup.log"
    trap clean_up EXIT
    # In a condition bash ignores `set -e`, so what is called here chains with && and ||.
    prepare || exit 1
    export PYSPARK_MQ_RABBITMQ_IMAGE=$ours/rabbitmq PYSPARK_MQ_RABBITMQ_IMAGE_4=$ours/rabbitmq4
    export PYSPARK_MQ_ACTIVEMQ_IMAGE=$ours/activemq PYSPARK_MQ_ARTEMIS_IMAGE=$ours/artemis
    "$@"
}

# Docker and all images.
prepare() {
    docker info >/dev/null 2>&1 || start_docker || return 1
    local bookworm trixie
    bookworm=$(base_image bookworm) && trixie=$(base_image trixie) || return 1
    build rabbitmq rabbitmq "$bookworm" &&
        build rabbitmq4 rabbitmq "$trixie" &&
        build activemq activemq "$bookworm" "$(distribution ACTIVEMQ_VERSIONS 5)" &&
        build artemis artemis "$bookworm" "$(distribution ARTEMIS_VERSIONS 2)"
}

say() {
    echo "containers: $*" >&2
}

# Runs a command quietly; what it said is shown when it fails.
quietly() {
    if ! "$@" >>"$logs/setup.log" 2>&1; then
        tail -n 40 "$logs/setup.log" >&2
        say "failed: $*; all of it is in $logs/setup.log"
        return 1
    fi
}

start_docker() {
    if ((EUID != 0)); then
        say "Docker does not answer, and only root can start one"
        return 1
    fi
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v iptables >/dev/null || missing+=(iptables)
    if ((${#missing[@]})); then
        say "Debian packages: ${missing[*]}"
        quietly install_packages "${missing[@]}" || return 1
    fi
    # Short: the path of a socket has at most 107 characters.
    place=$(mktemp -d /tmp/pyspark-mq-docker-XXXXXX)
    unset DOCKER_CONTEXT
    export DOCKER_HOST=unix://$place/docker.sock
    say "a Docker of our own, its log in $logs/dockerd.log"
    dockerd --host "$DOCKER_HOST" --data-root "$PWD/build/docker" --exec-root "$place/exec" --pidfile "$place/pid" \
        >"$logs/dockerd.log" 2>&1 &
    daemon=$!
    local _
    for _ in {1..300}; do
        ! docker info >/dev/null 2>&1 || return 0
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$logs/dockerd.log" >&2
    say "Docker did not start"
    return 1
}

clean_up() {
    remove_policy
    [[ -n $daemon ]] || return 0
    # A run that was killed has left some.
    docker ps --all --quiet --filter "label=$label" | xargs --no-run-if-empty docker rm --force --volumes >/dev/null || true
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" || true
    # The daemon leaves the network of the host mounted as a file.
    umount "$place"/exec/netns/* 2>/dev/null || true
    rm -rf --one-file-system "$place"
}

# base_image SUITE: prints the name of an image of that Debian, which the others are based on.
base_image() {
    local official=debian:$1-slim own=$ours/base:$1 name
    for name in "$official" "$own"; do
        if docker image inspect "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    if timeout 120 docker pull "$official" >>"$logs/setup.log" 2>&1; then
        echo "$official"
        return
    fi
    say "$official cannot be pulled; made of Debian packages instead"
    if ((EUID != 0)); then
        say "that needs root"
        return 1
    fi
    command -v debootstrap >/dev/null || quietly install_packages debootstrap || return 1
    local root
    root=$(mktemp -d)
    quietly debootstrap --variant=minbase "$1" "$root" &&
        tar -C "$root" -c . | docker import - "$own" >>"$logs/setup.log" || return 1
    rm -rf --one-file-system "$root"
    echo "$own"
}

distribution() {
    "$bin/python" -c 'import sys; from testbed import distributions
versions = getattr(distributions, sys.argv[1])
print(distributions.fetch(versions[next(one for one in versions if one.startswith(sys.argv[2]))]))' "$@"
}

# build IMAGE FOLDER BASE [DISTRIBUTION]
build() {
    say "image $ours/$1"
    local files=(-C "$PWD/dev/docker/$2" .)
    [[ -z ${4:-} ]] || files+=(--transform "s,^$(basename "$4"),distribution," -C "$(dirname "$4")" "$(basename "$4")")
    tar -c "${files[@]}" | quietly docker build --network host --build-arg "BASE=$3" --tag "$ours/$1" -
}

main "$@"
