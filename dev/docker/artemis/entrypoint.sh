#!/bin/sh
# Makes an instance once, and becomes the broker.
set -eu

instance=/var/lib/artemis
if [ ! -e "$instance/created" ]; then
    /opt/artemis/bin/artemis create "$instance" --force --silent --user "$ARTEMIS_USER" --password "$ARTEMIS_PASSWORD" \
        --require-login --http-host 0.0.0.0 --relax-jolokia --nio --no-autotune --java-memory 512M
    touch "$instance/created"
fi
exec "$instance/bin/artemis" run
