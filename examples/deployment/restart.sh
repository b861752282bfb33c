#!/bin/sh
# Replaces the servers one after another, as root: each gets no new call before it stops, and none is lost.
set -eu
SITE=/etc/nginx/conf.d/mcp-server.conf

# Takes nginx's new configuration into use, and waits for the answers that are under way with the old one.
reload() {
    systemctl reload nginx
    sleep 1
    for _ in $(seq 60); do
        pgrep -f 'nginx: worker process is shutting down' > /dev/null || return 0
        sleep 1
    done
}

for port in 8000 8001; do
    sed -i "s/server 127.0.0.1:$port /&down /" "$SITE"
    reload
    systemctl restart "mcp-server@$port"
    curl --silent --fail --retry 60 --retry-connrefused --retry-delay 1 "http://127.0.0.1:$port/ready"
    sed -i "s/server 127.0.0.1:$port down /server 127.0.0.1:$port /" "$SITE"
    reload
done
