#!/usr/bin/with-contenv bash
# Starts tidewire as an add-on of Home Assistant: writes the configuration from the options of the add-on, starts the
# server, and tells the Supervisor about it. The Supervisor passes it on to Home Assistant and to other add-ons.
#
# The variables exist for the test of this script (packaging/tests/home-assistant).
set -euo pipefail
umask 077

DATA=${TIDEWIRE_ADDON_DATA:-/data}
CERTIFICATES=${TIDEWIRE_ADDON_SSL:-/ssl}
EXTRA=${TIDEWIRE_ADDON_CONFIG:-/config}
SUPERVISOR=${TIDEWIRE_ADDON_SUPERVISOR:-http://supervisor}
API=${TIDEWIRE_ADDON_API:-0.0.0.0:18083}
HOST=${TIDEWIRE_ADDON_HOST:-$(hostname)}
# Seconds.
READY_MAX=120

options=$DATA/options.json
passwords=$DATA/passwords
configuration=$DATA/tidewire.toml

say() {
	echo "tidewire add-on: $*"
}

# option NAME: prints an option, or nothing.
option() {
	jq --raw-output --arg name "$1" '.[$name] // empty' "$options"
}

# toml TEXT: prints a TOML string. JSON strings are TOML strings.
toml() {
	jq --null-input --arg text "$1" '$text'
}

# secret NAME: prints the password of a user of this add-on, which is the same after each start.
secret() {
	[ -s "$DATA/secret-$1" ] || head -c 48 /dev/urandom | base64 --wrap 0 | tr -d '+/=' >"$DATA/secret-$1"
	cat "$DATA/secret-$1"
}

# add_user NAME: reads the password from standard input.
add_user() {
	tidewire passwd "$passwords.new" "$1" || { say "the login ${1@Q} cannot be added"; exit 1; }
}

# The file is made anew, so that a login that was removed from the options cannot log in.
write_users() {
	local index count
	rm -f "$passwords.new"
	secret homeassistant | tidewire passwd -c "$passwords.new" homeassistant
	secret addons | add_user addons
	count=$(jq '.logins // [] | length' "$options")
	for ((index = 0; index < count; index++)); do
		case "$(jq --raw-output ".logins[$index].username" "$options")" in
		homeassistant | addons) say "a login cannot have the name homeassistant or addons" && exit 1 ;;
		esac
		jq --join-output ".logins[$index].password" "$options" |
			add_user "$(jq --raw-output ".logins[$index].username" "$options")"
	done
	mv "$passwords.new" "$passwords"
}

write_configuration() {
	local certificate key providers='"users"'
	certificate=$CERTIFICATES/$(option certfile)
	key=$CERTIFICATES/$(option keyfile)
	[ "$(option home_assistant_users)" != true ] || providers='"users", "http"'
	cat >"$configuration" <<-TOML
		# Written at each start of the add-on.
		[node]
		data_dir = $(toml "$DATA/tidewire")

		[api]
		bind = $(toml "$API")

		[access]
		anonymous = "never"
		password_file = $(toml "$passwords")
		providers = [$providers]
	TOML
	if [ "$(option home_assistant_users)" = true ]; then
		cat >>"$configuration" <<-TOML

			[access.http]
			url = $(toml "$SUPERVISOR/auth")
			body_format = "form"
			answer = "status"
			cache_allowed = "5m"

			[access.http.headers]
			X-Supervisor-Token = $(toml "${SUPERVISOR_TOKEN:-}")

			[access.http.body]
			username = "\${username}"
			password = "\${password}"
		TOML
	fi
	if [ -f "$certificate" ] && [ -f "$key" ]; then
		cat >>"$configuration" <<-TOML

			[tls]
			cert_file = $(toml "$certificate")
			key_file = $(toml "$key")
		TOML
	else
		say "no certificate $certificate with the key $key: the ports for TLS are closed"
	fi
	if [ -f "$EXTRA/tidewire.toml" ]; then
		{ echo && cat "$EXTRA/tidewire.toml"; } >>"$configuration"
	fi
	tidewire check --config "$configuration" || { say "the configuration has mistakes, see above"; exit 1; }
}

# Only a password that was changed in the options is set: the console can change it, too.
set_console_password() {
	local seen=$DATA/console-password.seen digest
	[ -n "$(option console_password)" ] || return 0
	digest=$({ secret console && option console_password; } | sha256sum)
	[ "$(cat "$seen" 2>/dev/null)" != "$digest" ] || return 0
	mkdir -p "$DATA/tidewire"
	jq --join-output .console_password "$options" | tidewire passwd "$DATA/tidewire/admins" admin --role admin
	echo "$digest" >"$seen"
}

# send METHOD PATH: sends the JSON of standard input to the Supervisor.
send() {
	curl --silent --show-error --fail --max-time 30 --request "$1" --header "Authorization: Bearer ${SUPERVISOR_TOKEN:-}" \
		--header 'Content-Type: application/json' --data-binary @- --output /dev/null "$SUPERVISOR$2"
}

# service USER: prints how a client connects.
service() {
	jq --null-input --arg host "$HOST" --arg user "$1" --rawfile password <(secret "$1") \
		'{host: $host, port: 1883, ssl: false, protocol: "3.1.1", username: $user, password: $password}'
}

announce() {
	local second
	for ((second = 0; second < READY_MAX; second++)); do
		! curl --silent --fail --max-time 5 --output /dev/null "http://127.0.0.1:${API##*:}/readyz" || break
		sleep 1
	done
	service homeassistant | jq '{service: "mqtt", config: .}' | send POST /discovery ||
		say "Home Assistant was not told about the broker; add the MQTT integration by hand"
	# What is left of an earlier start.
	send DELETE /services/mqtt </dev/null 2>/dev/null || true
	service addons | send POST /services/mqtt ||
		say "other add-ons were not told about the broker; the Supervisor may have another MQTT service"
	say "ready"
}

[ -r "$options" ] || { say "$options cannot be read"; exit 1; }
write_users
write_configuration
set_console_password
announce &
exec tidewire --config "$configuration"
