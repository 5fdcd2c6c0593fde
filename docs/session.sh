#!/bin/sh
# Records the session in docs/cli.md: starts a service of its own in a fresh home, and shows each command with what it
# prints. From the project's folder, in its environment:  sh docs/session.sh > session.txt
set -u
home=$(mktemp -d)
port=${PORT:-8765}
export ADMETA_HOME="$home" ADMETA_URL="http://127.0.0.1:$port" COLUMNS=120
admeta serve --port "$port" >"$home/serve.log" 2>&1 &
service=$!
trap 'kill $service; wait $service; rm -rf "$home"' EXIT
until admeta list >/dev/null 2>&1; do sleep 1; done

show() {
    echo "\$ $*"
    eval "$*" 2>&1 | sed "s|$home|~/.admeta|g; s|:$port|:8000|g; s/adm_[A-Za-z0-9_-]*/adm_…/; s/ *$//"
    echo
}

show admeta doctor
show admeta submit studies/digits.yaml --set task.epochs=4 --set budget.trials_per_optimizer=5 --wait
show admeta list
show admeta show digits
show admeta compare digits
show admeta best --task digits
show admeta best --task digits --optimizer admetar -o json
show admeta trials digits --order best --limit 3
show admeta trials digits admetar/0
show admeta runs digits --optimizer admetar --stage confirm
run=$(admeta runs digits --stage confirm --limit 1 -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["items"][0]["id"])')
show admeta run "$run"
show admeta logs "$run" --tail 3
show admeta importance digits
show "admeta export digits digits.csv && head -n 2 digits.csv | cut -c 1-100"
rm -f digits.csv
show "admeta events digits | head -n 5"
show admeta clone digits digits-long --set task.epochs=30
show admeta pause digits-long
show admeta resume digits-long
show admeta cancel digits-long
show "admeta cancel digits-long; echo exit code \$?"
show admeta delete digits-long --yes
show admeta cluster
show admeta token create ci --scope write --expires 90d
show admeta token list
show admeta db current
show "admeta show nothing; echo exit code \$?"
