# Sourced by the scripts here: installs Debian packages and starts none of their services.
# shellcheck shell=bash

readonly policy=/usr/sbin/policy-rc.d
policy_is_ours=no
# Of what there is to install: asked for once.
lists_are_new=no

# To be called with `trap remove_policy EXIT` in force.
install_packages() {
    local root=()
    if ((EUID != 0)); then
        if ! command -v sudo; then
            echo "Not root and no sudo. As root: apt-get install $*"
            return 1
        fi
        root=(sudo)
    fi
    local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120)
    refuse_service_starts "${root[@]}" &&
        { [[ $lists_are_new == yes ]] || "${apt[@]}" update; } &&
        lists_are_new=yes &&
        "${apt[@]}" install --yes --no-install-recommends "$@"
    local code=$?
    remove_policy
    return "$code"
}

# Debian starts a service as soon as it is installed, for example a RabbitMQ on all the usual ports.
# The policy file says no, for as long as we install; one that exists is somebody else's.
refuse_service_starts() {
    if [[ ! -e $policy ]]; then
        policy_is_ours=yes
        printf '#!/bin/sh\nexit 101\n' | "$@" tee "$policy" && "$@" chmod 755 "$policy"
    fi
}

remove_policy() {
    if [[ $policy_is_ours == yes ]]; then
        if ((EUID == 0)); then rm -f "$policy"; else sudo rm -f "$policy"; fi
        policy_is_ours=no
    fi
}
