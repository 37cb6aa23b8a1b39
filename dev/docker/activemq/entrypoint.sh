#!/bin/sh
# Becomes the broker, so that signals reach it; its own start script would stay in between.
set -eu

printf '%s: %s, admin\n' "$ACTIVEMQ_WEB_USER" "$ACTIVEMQ_WEB_PASSWORD" >conf/jetty-realm.properties
home=$PWD
# Unquoted: options are several words.
# shellcheck disable=SC2086
exec java ${JAVA_OPTS:--Xmx512m} \
    -Dactivemq.home="$home" -Dactivemq.base="$home" -Dactivemq.conf="$home/conf" -Dactivemq.data="$home/data" \
    -Dconnection.user="$ACTIVEMQ_CONNECTION_USER" -Dconnection.password="$ACTIVEMQ_CONNECTION_PASSWORD" \
    -Djava.security.auth.login.config="$home/conf/login.config" -Djolokia.conf="file:$home/conf/jolokia-access.xml" \
    -jar bin/activemq.jar start
